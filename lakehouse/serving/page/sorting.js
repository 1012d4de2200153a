// Tables whose rows are sorted by a click on a heading. The choice is kept when the table is drawn again.

import { el } from "./dom.js";

const choices = new Map();

/** Make the table in `node` sortable. Tables with the same caption share the choice. Without a choice, rows keep their order. */
export function sortable(node) {
  const inner = node.querySelector("table");
  if (inner === null) {
    return node;
  }
  const caption = inner.caption.textContent;
  const headings = [...inner.tHead.rows[0].cells];
  const given = [...inner.tBodies[0].rows];
  const apply = () => {
    const { heading, direction } = choices.get(caption) ?? {};
    const at = headings.findIndex((one) => one.textContent === heading);
    headings.forEach((one, index) => one.setAttribute("aria-sort", index === at ? direction : "none"));
    inner.tBodies[0].append(...(at < 0 ? given : sorted(given, at, direction === "ascending" ? 1 : -1)));
  };
  for (const heading of headings) {
    const name = heading.textContent;
    const click = () => {
      const { heading: before, direction } = choices.get(caption) ?? {};
      const next = before !== name ? "ascending" : direction === "ascending" ? "descending" : null;
      next === null ? choices.delete(caption) : choices.set(caption, { heading: name, direction: next });
      apply();
    };
    heading.replaceChildren(el("button", { type: "button", key: `sort:${caption}:${name}`, on: { click } }, name));
  }
  apply();
  return node;
}

/** The rows by the values of a column; rows without a value come last. */
function sorted(rows, at, sign) {
  const values = new Map(rows.map((row) => [row, valueOf(row.cells[at])]));
  const compared = (one, other) => (typeof one === "number" && typeof other === "number" ? one - other : String(one) < String(other) ? -1 : String(one) > String(other) ? 1 : 0);
  return [...rows].sort((one, other) => {
    const [a, b] = [values.get(one), values.get(other)];
    return a === "" || b === "" ? (a === "") - (b === "") : sign * compared(a, b);
  });
}

function valueOf(cell) {
  const number = cell.querySelector("data")?.getAttribute("value");
  const time = cell.querySelector("time")?.getAttribute("datetime");
  return number === null || number === undefined ? (time ?? cell.textContent) : Number(number);
}
