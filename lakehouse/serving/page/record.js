// A record's bytes as text, hex and JSON; JSON is laid out as text, so that no number changes.

import { el, swap } from "./dom.js";
import { cut } from "./format.js";

const MOST = 200_000;
const ROW = 16;

/** The key, the value and the headers of a letter's record; null where the caller may not see them. */
export function record(found) {
  if (found === null) {
    return el("p", { class: "muted" }, "The raw bytes may be personal data: they need a token with the scope payload.");
  }
  return el(
    "div",
    { class: "record" },
    part("Value", found.value),
    part("Key", found.key),
    ...found.headers.map((one) => part(`Header ${cut(one.key, 60)}`, one.value)),
  );
}

function part(title, data) {
  if (data === null) {
    return el("section", {}, el("h3", {}, title), el("p", { class: "muted" }, "null"));
  }
  const ways = {
    JSON: data.text !== null && (data.json !== null || data.text.trim() === "null") ? () => laidOut(data.text) : null,
    Text: data.text === null ? null : () => data.text,
    Hex: () => dumped(data.hex),
  };
  const shown = el("pre", { class: "lines", tabindex: "0", "aria-label": `${title} of the record` });
  const buttons = Object.keys(ways)
    .filter((way) => ways[way] !== null)
    .map((way) => el("button", { type: "button", class: "quiet", "data-way": way, on: { click: () => show(way) } }, way));
  const show = (way) => {
    buttons.forEach((one) => one.setAttribute("aria-pressed", String(one.dataset.way === way)));
    const text = ways[way]();
    swap(shown, text.length > MOST ? `${text.slice(0, MOST)}\n… ${text.length - MOST} more characters` : text);
  };
  show(buttons[0].dataset.way);
  const head = el("header", {}, el("h3", {}, title), el("span", { class: "muted" }, `${data.length} bytes`), ...buttons);
  return el("section", {}, head, shown);
}

/** JSON with a line for each member; its tokens stay as they are. */
export function laidOut(text) {
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/gs) ?? [];
  let depth = 0;
  let out = "";
  tokens.forEach((token, index) => {
    const next = tokens[index + 1];
    const line = () => `\n${"  ".repeat(Math.min(depth, 40))}`;
    if (token === "{" || token === "[") {
      const isEmpty = next === "}" || next === "]";
      depth += 1;
      out += isEmpty ? token : token + line();
    } else if (token === "}" || token === "]") {
      depth -= 1;
      out += ["{", "["].includes(tokens[index - 1]) ? token : line() + token;
    } else if (token === ",") {
      out += token + line();
    } else {
      out += token === ":" ? ": " : token;
    }
  });
  return out;
}

/** "0000  7b 22 …  {"…" with sixteen bytes a line. */
function dumped(hex) {
  const lines = [];
  for (let at = 0; at < hex.length && lines.length * 70 < MOST; at += ROW * 2) {
    const bytes = hex.slice(at, at + ROW * 2).match(/../g);
    const text = bytes.map((one) => {
      const code = Number.parseInt(one, 16);
      return code >= 32 && code < 127 ? String.fromCharCode(code) : ".";
    });
    lines.push(`${(at / 2).toString(16).padStart(4, "0")}  ${bytes.join(" ").padEnd(ROW * 3 - 1)}  ${text.join("")}`);
  }
  return lines.join("\n");
}
