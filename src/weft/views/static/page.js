// Buttons that copy the text beside them; what is folded is unfolded for printing.
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
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const one of closed) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of closed) one.open = false;
  });
})();
