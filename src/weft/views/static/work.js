// The progress of work that a page waits for, and a button that ends it.  A hidden tab does not listen: a browser has
// few connections to a server, and each tab that waits holds one for its page.
"use strict";
(() => {
  const waiting = document.querySelector("section[data-work]:not([data-heard])");
  if (!waiting) return;
  waiting.dataset.heard = "yes";
  const bar = waiting.querySelector("progress");
  const words = waiting.querySelector("output");
  const button = waiting.querySelector("button");
  let events = null;
  const end = () => {
    events?.close();
    document.removeEventListener("visibilitychange", listen);
  };
  function listen() {
    events?.close();
    if (document.hidden) return;
    events = new EventSource(`${waiting.dataset.work}/events`);
    events.onmessage = (event) => {
      const { done, total } = JSON.parse(event.data);
      if (!total) return;
      bar.max = total;
      bar.value = done;
      words.textContent = `${done.toLocaleString("en")} of ${total.toLocaleString("en")}`;
    };
    events.addEventListener("end", end);
    events.onerror = end;
  }
  document.addEventListener("visibilitychange", listen);
  listen();
  button.hidden = false;
  button.addEventListener("click", () => {
    button.disabled = true;
    fetch(`${waiting.dataset.work}/cancel`, { method: "POST" });
  });
})();
