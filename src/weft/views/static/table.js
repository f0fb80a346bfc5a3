// Tables that sort by a click on a heading, filter by words or conditions as "tp=8 mem<60", and show 20 rows at a time.
// Without this script they are plain tables with all rows.
"use strict";
(() => {
  const pageRows = 20;
  const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  const condition = /^([^<>=]+)(<=|>=|=|<|>)(.+)$/;
  const holds = {
    "=": (a, b) => a === b,
    "<": (a, b) => a < b,
    ">": (a, b) => a > b,
    "<=": (a, b) => a <= b,
    ">=": (a, b) => a >= b,
  };

  const words = (cell) => cell.textContent.trim();
  const shown = (cell) => parseFloat(words(cell).replaceAll(",", ""));

  function compared(one, other) {
    if (one.dataset.key !== undefined && other.dataset.key !== undefined) {
      return parseFloat(one.dataset.key) - parseFloat(other.dataset.key);
    }
    return collator.compare(words(one), words(other));
  }

  function turn(table, page) {
    const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
    const begin = page * pageRows;
    rows.forEach((row, i) => row.classList.toggle("later", i < begin || i >= begin + pageRows));
    const [bar, words, back, on] = table.pager;
    bar.hidden = rows.length <= pageRows;
    words.textContent = `Rows ${begin + 1} to ${Math.min(begin + pageRows, rows.length)} of ${rows.length}`;
    back.disabled = begin === 0;
    on.disabled = begin + pageRows >= rows.length;
    back.onclick = () => turn(table, page - 1);
    on.onclick = () => turn(table, page + 1);
  }

  function preparePages(table) {
    const bar = document.createElement("div");
    bar.className = "turn";
    const words = document.createElement("output");
    const [back, on] = ["Previous", "Next"].map((name) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      return button;
    });
    bar.append(words, back, on);
    table.parentElement.after(bar);
    table.pager = [bar, words, back, on];
    turn(table, 0);
  }

  function sort(table, column, falling) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const empty = (row) => words(row.cells[column]) === "" || words(row.cells[column]) === "-";
    rows.sort((a, b) => {
      if (empty(a) !== empty(b)) return empty(a) ? 1 : -1;
      const order = compared(a.cells[column], b.cells[column]);
      return falling ? -order : order;
    });
    body.append(...rows);
    turn(table, 0);
    [...table.tHead.rows[0].cells].forEach((head, i) => {
      if (i === column) head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  function prepareSort(table) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(table, column, head.getAttribute("aria-sort") === "ascending"));
      head.append(button);
    });
  }

  function matching(table, text) {
    const names = [...table.tHead.rows[0].cells].map((head) => words(head).toLowerCase());
    const terms = text.toLowerCase().split(/\s+/).filter(Boolean);
    return (row) =>
      terms.every((term) => {
        const [, name, sign, value] = term.match(condition) || [];
        const column = name === undefined ? -1 : names.findIndex((one) => one.startsWith(name));
        if (column < 0) return row.textContent.toLowerCase().includes(term);
        const cell = row.cells[column];
        const [a, b] = [shown(cell), parseFloat(value)];
        if (Number.isNaN(a) || Number.isNaN(b)) return sign === "=" && words(cell).toLowerCase() === value;
        return holds[sign](a, b);
      });
  }

  function prepareFilter(table) {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < 10) return;
    const bar = document.createElement("div");
    bar.className = "filter";
    const label = document.createElement("label");
    label.textContent = "Filter ";
    const input = document.createElement("input");
    input.type = "search";
    const column = [...table.tHead.rows[0].cells].find((head, i) => i > 0 && head.classList.contains("number"));
    input.placeholder = column ? `words, or ${words(column)}=1` : "words";
    label.append(input);
    const count = document.createElement("output");
    input.addEventListener("input", () => {
      const match = matching(table, input.value);
      for (const row of rows) row.hidden = !match(row);
      turn(table, 0);
      const left = rows.filter((row) => !row.hidden).length;
      count.textContent = input.value.trim() ? `${left} of ${rows.length} rows` : "";
    });
    bar.append(label, count);
    table.parentElement.before(bar);
  }

  for (const table of document.querySelectorAll("table[data-sortable]")) {
    preparePages(table);
    prepareFilter(table);
    prepareSort(table);
  }
})();
