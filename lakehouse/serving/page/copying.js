// Buttons that copy text to the clipboard, or save it as a file.

import { el } from "./dom.js";

const SAID_MS = 2000;
const KEPT_MS = 60_000; // a browser reads the file only after the click
const INSECURE = "Browsers copy only on HTTPS and on localhost.";

/** A button that copies `text`; its label ends with `what`, which is shown to screen readers only. */
export function copyButton(text, what) {
  return copying(text, `c:${what}`, "Copy", el("span", { class: "unseen" }, ` the ${what}`));
}

/** Two buttons for the same rows as JSON lines: one copies them, the other saves them as a file. */
export function jsonLines(rows, name) {
  const text = rows.map((row) => `${JSON.stringify(row)}\n`).join("");
  const save = () => {
    const url = URL.createObjectURL(new Blob([text], { type: "application/jsonl" }));
    el("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), KEPT_MS);
  };
  return [
    copying(text, `c:${name}`, "Copy as JSON lines"),
    el("button", { type: "button", class: "quiet", key: `d:${name}`, on: { click: save } }, "Download as JSON lines"),
  ];
}

function copying(text, key, ...label) {
  const canCopy = navigator.clipboard !== undefined;
  const copy = async () => {
    const isCopied = await navigator.clipboard.writeText(text).then(() => true, () => false);
    button.replaceChildren(isCopied ? "Copied" : "Not copied");
    setTimeout(() => button.replaceChildren(...label), SAID_MS);
  };
  const attributes = { type: "button", class: "quiet", key, disabled: !canCopy, title: canCopy ? null : INSECURE };
  const button = el("button", { ...attributes, on: { click: copy } }, ...label);
  return button;
}
