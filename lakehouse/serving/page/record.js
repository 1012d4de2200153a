// A record's bytes as text, hex and JSON, 256 KiB at a time; JSON is formatted as text, so numbers stay exact.

import { ask, query } from "./api.js";
import { el, swap } from "./dom.js";
import { count, cut } from "./format.js";

const MOST = 2_000_000;
const ROW = 16;
const MARK = "(JSON in a string)"; // outside quotation marks, where no record can have it
const HIDDEN = "Raw bytes may contain personal data: viewing them requires a token with the scope payload.";

/** The value of a letter's record, and its key and headers on request, or a notice if the caller may not see them. */
export async function record(id) {
  const path = `/api/v1/dead-letters/${encodeURIComponent(id)}/record`;
  let found;
  try {
    found = await ask(path);
  } catch (problem) {
    return problem.status === 403 ? el("p", { class: "muted" }, HIDDEN) : el("p", { class: "trouble", role: "alert" }, problem.message);
  }
  const { keyLength, headers, headerCount } = found;
  const others = [
    ["Key", keyLength, { part: "key" }],
    ...headers.map((one, index) => [`Header ${cut(one.key, 60)}`, one.length, { part: "header", header: index }]),
  ];
  return el(
    "div",
    { class: "record" },
    part("Value", found.bytes, (offset) => query(path, { offset })),
    ...others.map(([title, length, which]) => onRequest(title, length, (offset) => query(path, { ...which, offset }))),
    headerCount > headers.length ? el("p", { class: "muted" }, `${count(headerCount - headers.length)} more headers`) : null,
  );
}

/** A part that is loaded on request. */
function onRequest(title, length, pathAt) {
  if (length === null) {
    return part(title, null, pathAt);
  }
  const show = async () => node.replaceWith(await read(title, 0, pathAt));
  const button = el("button", { type: "button", class: "quiet", key: `s:${title}`, on: { click: show } }, "Show");
  const node = el("section", {}, el("header", {}, el("h3", {}, title), el("span", { class: "muted" }, `${count(length)} bytes`), button));
  return node;
}

async function read(title, offset, pathAt) {
  try {
    return part(title, (await ask(pathAt(offset))).bytes, pathAt);
  } catch (problem) {
    return el("section", {}, el("h3", {}, title), el("p", { class: "trouble", role: "alert" }, problem.message));
  }
}

function part(title, data, pathAt) {
  if (data === null) {
    return el("section", {}, el("h3", {}, title), el("p", { class: "muted" }, "null"));
  }
  const ways = {
    JSON: data.text !== null && (data.json !== null || data.text.trim() === "null") ? () => laidOut(data.text) : null,
    Text: data.text === null ? null : () => data.text,
    Hex: () => dumped(data.hex, data.offset),
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
  const isWhole = data.offset === 0 && data.next === null;
  const size = isWhole ? `${count(data.length)} bytes` : `bytes ${count(data.offset)} to ${count(data.next ?? data.length)} of ${count(data.length)}`;
  const move = (verb, offset) => {
    const go = async () => node.replaceWith(await read(title, offset, pathAt));
    return el("button", { type: "button", class: "quiet", key: `${verb}:${title}`, on: { click: go } }, verb);
  };
  const moves = [data.offset > 0 ? move("First", 0) : null, data.next === null ? null : move("Next", data.next)];
  const head = el("header", {}, el("h3", {}, title), el("span", { class: "muted" }, size), ...buttons, ...moves);
  const node = el("section", {}, head, shown);
  return node;
}

/** JSON with one line per member. Tokens are unchanged, except that JSON in a string is also laid out, after a mark. */
export function laidOut(text, indent = 0) {
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/gs) ?? [];
  let depth = indent;
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
      const inner = next === ":" ? null : inside(token);
      out += token === ":" ? ": " : inner === null ? token : `${MARK} ${laidOut(inner, depth)}`;
    }
  });
  return out;
}

/** The JSON object or array in a string, as text, or null for any other token. */
function inside(token) {
  if (!token.startsWith('"')) {
    return null;
  }
  try {
    const text = JSON.parse(token);
    return /^\s*[{[]/.test(text) && JSON.parse(text) ? text : null;
  } catch {
    return null;
  }
}

/** "0000  7b 22 …  {"…" with sixteen bytes per line; the first byte is at `offset` in the part. */
function dumped(hex, offset) {
  const lines = [];
  for (let at = 0; at < hex.length; at += ROW * 2) {
    const bytes = hex.slice(at, at + ROW * 2).match(/../g);
    const text = bytes.map((one) => {
      const code = Number.parseInt(one, 16);
      return code >= 32 && code < 127 ? String.fromCharCode(code) : ".";
    });
    lines.push(`${(offset + at / 2).toString(16).padStart(4, "0")}  ${bytes.join(" ").padEnd(ROW * 3 - 1)}  ${text.join("")}`);
  }
  return lines.join("\n");
}
