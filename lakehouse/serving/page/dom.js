// Nodes from plain values. Text stays text: data never becomes markup.

import { clock, count, cut, UNKNOWN } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

/** Make an element; `options` contains attributes, `on` (listeners), `style` (CSS properties), and `key` (for focus). */
export function el(name, options = {}, ...children) {
  return filled(document.createElement(name), options, children);
}

/** Make an SVG element in the same way. */
export function svg(name, options = {}, ...children) {
  return filled(document.createElementNS(SVG, name), options, children);
}

/** Replace a node's content, and return the focus to the element with the same key. */
export function swap(parent, ...children) {
  const active = document.activeElement;
  const key = parent.contains(active) ? active.dataset.key : null;
  const top = parent.scrollTop;
  parent.replaceChildren(...nodes(children));
  parent.scrollTop = top;
  if (key) {
    const same = [...parent.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key);
    same?.focus({ preventScroll: true });
  }
}

const told = new WeakMap();

/** Replace a node's content only if it has changed; for nodes without listeners, updated every second. */
export function renew(parent, ...children) {
  const next = nodes(children);
  const before = told.get(parent) ?? [];
  if (before.length !== next.length || before.some((one, index) => !one.isEqualNode(next[index]))) {
    told.set(parent, next.map((one) => one.cloneNode(true)));
    swap(parent, ...next);
  }
}

let isPressed = false;
addEventListener("pointerdown", () => (isPressed = true), true);
for (const kind of ["pointerup", "pointercancel"]) {
  addEventListener(kind, () => setTimeout(() => (isPressed = false)), true);
}

/** Wait until no button is held down, so that nothing disappears under a click. */
export async function calm() {
  while (isPressed) {
    await new Promise((done) => setTimeout(done, 50));
  }
}

/** Set a node's text if it has changed. */
export function say(node, text) {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** Set an SVG node's text, cut in the middle if it is wider than `width`; a tooltip shows the whole text. */
export function fit(node, text, width) {
  if (told.get(node) === text) {
    return;
  }
  told.set(node, text);
  node.textContent = text;
  for (let most = text.length - 1; most > 2 && node.getComputedTextLength() > width; most -= 1) {
    node.textContent = cut(text, most);
  }
  if (node.textContent !== text) {
    node.append(svg("title", {}, text));
  }
}

const wide = new ResizeObserver((entries) => entries.forEach(({ target }) => hint(target.closest(".scrolls"))));

/** Mark a table whose rightmost columns are hidden. */
function hint(scrolls) {
  const hidden = scrolls.scrollWidth - scrolls.clientWidth - scrolls.scrollLeft;
  scrolls.parentNode.classList.toggle("cut", hidden > 1);
}

/** A table with headings; `numeric` names the right-aligned columns. */
export function table(caption, headings, rows, { numeric = [], empty = "Nothing." } = {}) {
  if (rows.length === 0) {
    return el("p", { class: "muted" }, empty);
  }
  const right = new Set(numeric);
  const kind = (heading) => (right.has(heading) ? "number" : null);
  const head = headings.map((one) => el("th", { scope: "col", class: kind(one) }, one));
  const body = rows.map((cells) =>
    el("tr", {}, ...cells.map((cell, index) => el("td", { class: kind(headings[index]) }, cell))),
  );
  const inner = el(
    "table",
    {},
    el("caption", { class: "unseen" }, caption),
    el("thead", {}, el("tr", {}, ...head)),
    el("tbody", {}, ...body),
  );
  return scrolling(caption, inner);
}

/** A table that scrolls sideways if it is too wide, with a hint if columns are hidden. */
export function scrolling(caption, inner) {
  const scrolls = el(
    "div",
    { class: "scrolls", tabindex: "0", role: "region", "aria-label": caption, key: `t:${caption}`, on: { scroll: () => hint(scrolls) } },
    inner,
  );
  wide.observe(scrolls);
  wide.observe(inner);
  return el("div", { class: "table" }, el("p", { class: "hint" }, "More columns: scroll to the right →"), scrolls);
}

/** A message of this project as nodes, with text in backticks as code. */
export function prose(text) {
  return text.split("`").map((part, index) => (index % 2 === 0 ? part : el("code", {}, part)));
}

/** The text that stands for data until it arrives. */
export function loading(what) {
  return el("p", { class: "muted" }, `Loading ${what} …`);
}

/** A labelled form field. */
export function field(label, control) {
  return el("label", { class: "field" }, el("span", {}, label), control);
}

/** A list to choose from; `choices` contains values, or pairs of a value and its label. */
export function select(name, choices, chosen) {
  const options = choices.map((one) => {
    const [value, label] = Array.isArray(one) ? one : [one, one];
    return el("option", { value, selected: String(value) === String(chosen ?? "") }, label);
  });
  return el("select", { name, key: `s:${name}` }, ...options);
}

export function badge(word, kind = word) {
  return el("span", { class: `badge ${kind}` }, word);
}

/** A formatted number, with the exact value for machines and as a tooltip. */
export function exact(value) {
  return value === null || value === undefined ? UNKNOWN : el("data", { value, title: value }, count(value));
}

/** A time as an element, with the exact time for machines. */
export function moment(value) {
  const date = new Date(value ?? Number.NaN);
  if (Number.isNaN(date.getTime())) {
    return String(value ?? UNKNOWN);
  }
  return el("time", { datetime: date.toISOString(), title: `${date.toISOString()}` }, clock(value));
}

function filled(node, { on = {}, style = {}, key = null, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  for (const [name, value] of Object.entries(style)) {
    node.style.setProperty(name, value);
  }
  for (const [name, listener] of Object.entries(on)) {
    node.addEventListener(name, listener);
  }
  if (key !== null) {
    node.dataset.key = key;
  }
  node.append(...nodes(children));
  return node;
}

function nodes(children) {
  const kept = children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false);
  return kept.map((one) => (one instanceof Node ? one : document.createTextNode(String(one))));
}
