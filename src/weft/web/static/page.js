// Buttons that copy the text beside them; sliders below numbers; what is folded is unfolded for printing.
"use strict";
(() => {
  for (const button of document.querySelectorAll("button[data-copy]")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = button.parentElement.querySelector("code").textContent;
      let done = "Copied";
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        done = "Not allowed";
      }
      button.textContent = done;
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
  }
  // Steps of equal ratio from the least to the most, through what counts where nothing is given; letting go sends the
  // form, keys do not.  The number alone is sent.
  for (const input of document.querySelectorAll("input[data-slide]")) {
    const [least, most, perDoubling] = input.dataset.slide.split(" ").map(Number);
    const usual = Number(input.placeholder) || least;
    const place = (value) => Math.round(perDoubling * Math.log2(value / usual));
    const slider = document.createElement("input");
    slider.type = "range";
    slider.min = place(least);
    slider.max = place(most);
    slider.setAttribute("aria-label", `${input.labels[0].textContent}, slider`);
    const follow = () => {
      slider.value = place(input.valueAsNumber || usual);
      slider.setAttribute("aria-valuetext", input.value || input.placeholder);
    };
    slider.addEventListener("input", () => {
      const value = usual * 2 ** (slider.valueAsNumber / perDoubling);
      input.value = slider.value === "0" ? "" : Number(input.step === "any" ? value.toPrecision(3) : Math.round(value));
      slider.setAttribute("aria-valuetext", input.value || input.placeholder);
    });
    let held = false;
    slider.addEventListener("pointerdown", () => (held = true));
    slider.addEventListener("keydown", () => (held = false));
    slider.addEventListener("change", () => held && input.form.requestSubmit());
    input.addEventListener("input", follow);
    follow();
    input.after(slider);
  }
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const one of closed) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of closed) one.open = false;
  });
})();
