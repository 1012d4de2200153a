// The table of dead letters, and the same letters as JSON lines.

import { jsonLines } from "./copying.js";
import { badge, el, moment, table } from "./dom.js";
import { address } from "./filters.js";
import { count, cut } from "./format.js";

const MOST_WHY = 240;
const SAME = 24; // characters that a value and a message share if they are about the same text
const FILE = "dead-letters.jsonl";

export function listing(letters, wanted) {
  const isMixed = wanted.status === "";
  const isTried = letters.some((one) => one.attempts > 1);
  const hasValues = letters.some((one) => one.value !== undefined);
  const rows = letters.map((one) => {
    const link = `#/letters/${one.id}`;
    return [
      el("a", { href: link, key: link, class: "whole" }, cut(one.id, 9)),
      moment(one.firstSeen),
      one.reasons.map((reason) => `${reason.rule}${reason.column ? ` (${reason.column})` : ""}`).join(", "),
      [why(one.reasons), beginning(one)],
      place(one, wanted),
      one.stream,
      ...(isMixed ? [badge(one.status)] : []),
      ...(isTried ? [one.attempts > 1 ? count(one.attempts) : ""] : []),
    ];
  });
  const headings = ["id", "first seen", "rules", hasValues ? "why, and the value" : "why", "record", "stream", ...(isMixed ? ["status"] : []), ...(isTried ? ["attempts"] : [])];
  const shown = table("Letters", headings, rows, { numeric: ["attempts"], empty: "No dead letter matches." });
  const lines = letters.map(({ value: _value, ...others }) => others); // copies leave out the records' content
  return letters.length === 0 ? [shown] : [shown, el("div", { class: "buttons" }, ...jsonLines(lines, FILE))];
}

/** The beginning of a record's value, if the caller may see it, and unless the message above it already has it. */
function beginning({ value, reasons }) {
  const isTold = value?.length >= SAME && reasons[0]?.message?.includes(value.slice(0, SAME));
  return value === undefined || isTold ? null : value === null ? el("span", { class: "muted" }, "null") : el("code", { class: "value" }, value);
}

/** The first reason's message, which ends with the refused value, and the number of further reasons. */
function why([first, ...others]) {
  const message = first?.message ?? "";
  const shown = cut(message, MOST_WHY);
  const more = others.length === 0 ? null : el("span", { class: "muted" }, ` +${others.length}`);
  return el("span", { class: "message", title: shown === message ? null : message }, shown, more);
}

/** Where a record is in Kafka; its topic is a link to the topic's letters. */
function place({ id, topic, partition, offset }, wanted) {
  const link = el("a", { href: address({ ...wanted, topic }), key: `topic:${id}` }, topic);
  return [wanted.topic === topic ? topic : link, " ", el("span", { class: "whole" }, `${partition} @ ${offset}`)];
}
