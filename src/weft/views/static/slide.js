// Sliders below numbers that have data-slide: the least, the most and the steps per doubling.  They go in equal ratios
// through the number that counts where none is given.  Letting go sends the form, keys do not.
"use strict";
(() => {
  for (const input of document.querySelectorAll("input[data-slide]")) {
    const [least, most, steps] = input.dataset.slide.split(" ").map(Number);
    const usual = Number(input.placeholder) || least;
    const place = (value) => Math.round(steps * Math.log2(value / usual));
    const slider = document.createElement("input");
    const told = () => slider.setAttribute("aria-valuetext", input.value || input.placeholder || "not given");
    slider.type = "range";
    slider.min = place(least);
    slider.max = place(most);
    slider.setAttribute("aria-label", `${input.labels[0].textContent}, slider`);
    const follow = () => {
      slider.value = place(input.valueAsNumber > 0 ? input.valueAsNumber : usual);
      told();
    };
    slider.addEventListener("input", () => {
      const value = usual * 2 ** (slider.valueAsNumber / steps);
      const rounded = input.step === "any" ? Number(value.toPrecision(3)) : Math.round(value);
      input.value = slider.valueAsNumber === 0 && input.placeholder ? "" : rounded;
      told();
    });
    let held = false;
    slider.addEventListener("pointerdown", () => (held = true));
    slider.addEventListener("keydown", () => (held = false));
    slider.addEventListener("change", () => held && input.form.requestSubmit());
    input.addEventListener("input", follow);
    follow();
    input.after(slider);
  }
})();
