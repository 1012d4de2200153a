// One dead letter: its origin, every reason, the attempts, and its bytes.

import { ask, askIfThere, query } from "./api.js";
import { copyButton } from "./copying.js";
import { badge, calm, el, loading, moment, swap, table } from "./dom.js";
import { address } from "./finding.js";
import { count, UNKNOWN, words } from "./format.js";
import { actionButtons } from "./letters.js";
import { record } from "./record.js";
import { on } from "./live.js";

const FACTS = ["stream", "stage", "topic", "partition", "offset", "kafkaTimestamp", "firstSeen", "lastAttempt", "attempts", "job", "batch", "codeVersion"];
const TIMES = new Set(["kafkaTimestamp", "firstSeen", "lastAttempt"]);
const NUMBERS = new Set(["partition", "offset", "batch"]); // copied into other tools, so without separators
const TRIED = new Set(["replay", "discard"]);

export function open(root, _parameters, id) {
  const body = el("div", {}, loading("the letter"));
  root.append(el("p", { class: "crumb" }, el("a", { href: "#/letters" }, "Dead letters")), el("h1", {}, "Dead letter"), body);
  const bytes = record(id); // read once, because they do not change
  const again = async () => {
    try {
      const letter = await ask(`/api/v1/dead-letters/${encodeURIComponent(id)}`);
      const tried = await tries(letter);
      await calm();
      swap(body, ...content(letter, await bytes, tried, again));
    } catch (problem) {
      swap(body, el("p", { class: "trouble", role: "alert" }, problem.message));
    }
  };
  again();
  return { close: on("table", (name) => name === "silver.dead_letters" && again()) };
}

function content(letter, bytes, tried, again) {
  const facts = FACTS.map((name) => [words(name), fact(name, letter[name])]);
  const reasons = letter.reasons.map((one) => [one.rule, one.column ?? "", one.message]);
  return [
    el("p", { class: "lead" }, badge(letter.status), el("code", { class: "id" }, letter.id), el("a", { href: address(letter.stream, letter) }, "Find the record in every layer")),
    actionButtons({ id: letter.id }, "This letter", letter.status !== "open", again),
    el("h2", {}, "Reasons"),
    table("Reasons", ["rule", "column", "message"], reasons),
    el("h2", {}, "Record"),
    bytes,
    el("h2", {}, "Attempts"),
    el("dl", { class: "facts-list" }, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    tried,
  ];
}

function fact(name, value) {
  if (NUMBERS.has(name)) {
    return value === null ? UNKNOWN : [String(value), " ", copyButton(String(value), name)];
  }
  return TIMES.has(name) ? moment(value) : count(value);
}

/** The replays and discards that may have included a letter since it was written. */
async function tries(letter) {
  let found;
  try {
    found = await askIfThere(query("/api/v1/happenings", { since: letter.firstSeen, limit: 500 }));
  } catch (problem) {
    return el("p", { class: "muted" }, problem.message);
  }
  if (found === null) {
    return el("p", { class: "muted" }, "This server does not report events.");
  }
  const of = (one) => TRIED.has(one.kind) && (one.stream === null || one.stream === letter.stream) && concerns(one.details, letter);
  const rows = found.happenings.filter(of).map((one) => [moment(one.at), words(one.kind), one.actor, one.message]);
  return table("Replays and discards", ["at", "what", "by", "message"], rows, { empty: "The log has no replay or discard of this letter." });
}

function concerns(details, letter) {
  let said = details;
  try {
    said = typeof details === "string" ? JSON.parse(details) : details;
  } catch {
    return true;
  }
  const { id, topic, rule } = said?.selection ?? {};
  return (!id || letter.id.startsWith(id)) && (!topic || letter.topic === topic) && (!rule || letter.reasons.some((one) => one.rule === rule));
}
