// Drags a job or one of its hosts onto a host.  Without this script a press picks it up, and another puts it down.
"use strict";
(() => {
  const board = document.querySelector("form[data-board]:not([data-heard])");
  if (!board) return;
  board.dataset.heard = "yes";
  let held = null;
  let dragged = false;

  const under = (event) => document.elementFromPoint(event.clientX, event.clientY)?.closest("button[name=host]");

  function mark(target) {
    for (const one of board.querySelectorAll(".over")) one.classList.remove("over");
    if (target && target !== held?.button) target.classList.add("over");
  }

  function drop() {
    board.classList.remove("dragging");
    mark(null);
    held = null;
  }

  board.addEventListener("pointerdown", (event) => {
    const button = event.target.closest("button[data-movable]");
    dragged = false;
    if (!button || event.button !== 0 || event.pointerType === "touch") return;
    held = { button, x: event.clientX, y: event.clientY };
  });
  addEventListener("pointermove", (event) => {
    if (!held) return;
    dragged = dragged || Math.hypot(event.clientX - held.x, event.clientY - held.y) > 6;
    if (!dragged) return;
    board.classList.add("dragging");
    mark(under(event));
  });
  addEventListener("pointerup", (event) => {
    if (!held) return;
    const { button } = held;
    const target = under(event);
    drop();
    if (!dragged || !target || target === button || target.disabled) return;
    board.elements.picked.value = `${button.name}:${button.value}`;
    board.requestSubmit(target);
  });
  addEventListener("pointercancel", drop);
  board.addEventListener(
    "click",
    (event) => {
      // The press that ended a drag is no press of a button; what requestSubmit sends has no pointer.
      if (dragged && event.detail > 0) event.preventDefault();
      dragged = false;
    },
    true,
  );
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") drop();
  });
})();
