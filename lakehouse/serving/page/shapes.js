// Dead letters grouped by the shape of their value, only on request, because the server has to read the values.

import { ask, query } from "./api.js";
import { el, loading, swap } from "./dom.js";
import { count } from "./format.js";

const HIDDEN = "Shapes contain names from the records: viewing them requires a token with the scope payload.";

/** A section that loads the shapes when it is opened: its node, and `update`, which is called with the view's filters. */
export function shapesOf() {
  const place = el("div", { "aria-live": "polite" });
  let view = null;
  let filters = null;
  const load = async () => {
    if (!node.open || filters === null) {
      return;
    }
    const mine = view;
    swap(place, loading("the shapes"));
    let shown;
    try {
      shown = drawn(await ask(query("/api/v1/dead-letters/shapes", filters)));
    } catch (problem) {
      shown = [problem.status === 403 ? el("p", { class: "muted" }, HIDDEN) : el("p", { class: "trouble", role: "alert" }, problem.message)];
    }
    mine === view && swap(place, ...shown);
  };
  const node = el("details", { class: "shapes", on: { toggle: load } }, el("summary", {}, el("h2", {}, "By shape of the value")), place);
  return {
    node,
    update(wanted, asked) {
      filters = asked;
      if (view !== JSON.stringify(wanted)) {
        view = JSON.stringify(wanted);
        load();
      }
    },
  };
}

function drawn({ shapes, letters, isAll }) {
  const items = shapes.map((one) => {
    const rules = Object.entries(one.rules).map(([rule, number]) => `${rule} ${count(number)}`);
    const newest = el("a", { href: `#/letters/${one.newest.id}` }, "newest");
    const what = `${count(one.count)} ${one.count === 1 ? "letter" : "letters"}: ${rules.join(", ")}; ${one.topics.join(", ")}; `;
    return el("li", {}, el("code", {}, one.shape), el("span", { class: "muted" }, what, newest));
  });
  const some = isAll ? null : el("p", { class: "muted" }, `Only the newest ${count(letters)} are grouped.`);
  return [items.length === 0 ? el("p", { class: "muted" }, "None.") : el("ul", { class: "reasons" }, ...items), some];
}
