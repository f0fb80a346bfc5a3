// Pictures that are zoomed with buttons, the wheel (with Ctrl) or a pinch, and moved by dragging.  What is seen of a
// picture stays from page to page.  Without this script the links above a picture show it larger.
"use strict";
(() => {
  const MOST = 40;

  for (const figure of document.querySelectorAll("figure[data-zoom]")) {
    const svg = figure.querySelector("svg");
    const links = figure.querySelector(".zooms");
    if (!svg || !links) continue;
    const whole = svg.viewBox.baseVal;
    const [width, height] = [whole.width, whole.height];
    const key = `zoom ${location.pathname} ${width} ${height}`;
    let view = { x: 0, y: 0, scale: 1 };
    figure.className = "chart fabric zoom-1";

    function show() {
      view.scale = Math.min(Math.max(view.scale, 1), MOST);
      view.x = Math.min(Math.max(view.x, 0), width - width / view.scale);
      view.y = Math.min(Math.max(view.y, 0), height - height / view.scale);
      svg.setAttribute("viewBox", `${view.x} ${view.y} ${width / view.scale} ${height / view.scale}`);
      svg.classList.toggle("near", view.scale > 1);
      sessionStorage.setItem(key, JSON.stringify(view));
    }

    // The point of the picture under a point of the window.
    function place(event) {
      const point = new DOMPoint(event.clientX, event.clientY);
      return point.matrixTransform(svg.getScreenCTM().inverse());
    }

    function zoom(factor, at) {
      const scale = Math.min(Math.max(view.scale * factor, 1), MOST);
      const share = view.scale / scale;
      view = { x: at.x - (at.x - view.x) * share, y: at.y - (at.y - view.y) * share, scale };
      show();
    }

    function button(text, label, action) {
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = text;
      made.setAttribute("aria-label", label);
      made.addEventListener("click", action);
      return made;
    }

    const middle = () => ({ x: view.x + width / view.scale / 2, y: view.y + height / view.scale / 2 });
    links.replaceChildren(
      button("+", "Nearer", () => zoom(1.5, middle())),
      button("\u2212", "Farther", () => zoom(1 / 1.5, middle())),
      button("Whole", "The whole picture", () => zoom(0, middle())),
    );
    svg.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        zoom(Math.exp(-event.deltaY / 300), place(event));
      },
      { passive: false },
    );

    let from = null;
    let moved = false;
    svg.addEventListener("pointerdown", (event) => {
      moved = false;
      if (view.scale > 1 && event.isPrimary) from = place(event);
    });
    addEventListener("pointermove", (event) => {
      if (!from || !event.isPrimary) return;
      const at = place(event);
      const far = Math.hypot(at.x - from.x, at.y - from.y) * view.scale;
      if (!moved && far < 6) return;
      moved = true;
      view.x -= at.x - from.x;
      view.y -= at.y - from.y;
      show();
    });
    addEventListener("pointerup", () => {
      from = null;
      setTimeout(() => (moved = false));
    });
    addEventListener("pointercancel", () => (from = null));
    svg.addEventListener("dragstart", (event) => event.preventDefault());
    svg.addEventListener("click", (event) => moved && event.preventDefault(), true);

    try {
      view = { ...view, ...JSON.parse(sessionStorage.getItem(key)) };
    } catch {
      sessionStorage.removeItem(key);
    }
    show();
  }
})();
