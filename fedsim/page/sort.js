"use strict";
// A click on a head sorts the table by that column: numbers from the largest, text from A; a second
// click turns it round. Cells without a value stay last.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement;
    const column = head.cellIndex;
    const body = head.closest("table").tBodies[0];
    const numeric = head.classList.contains("number");
    const before = head.getAttribute("aria-sort");
    const rises = before ? before === "descending" : !numeric;
    const key = (row) => {
      const cell = row.cells[column];
      return numeric ? parseFloat(cell.dataset.value) : cell.textContent;
    };
    const compare = (a, b) => {
      if (!numeric) return (rises ? 1 : -1) * a.localeCompare(b, undefined, { numeric: true });
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
      return rises ? a - b : b - a;
    };
    const rows = Array.from(body.rows, (row) => [key(row), row]);
    rows.sort((a, b) => compare(a[0], b[0]));
    body.append(...rows.map((pair) => pair[1]));
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", rises ? "ascending" : "descending");
  });
}
