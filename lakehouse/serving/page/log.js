// The log: the pipeline's events, and this server's actions since it started.

import { ask, askIfThere, declared, query } from "./api.js";
import { badge, calm, el, field, loading, moment, select, swap, table } from "./dom.js";
import { count, words } from "./format.js";
import { on } from "./live.js";

const KINDS = ["start", "stop", "failure", "refusal", "recovery", "schema_change", "data_loss", "gate", "audit", "expect", "refused", "replay", "discard", "skip", "resolve", "rebuild", "maintenance", "copy", "alert", "events_lost"];
const SHOWN = ["kind", "stream", "layer", "table", "message", "actor"];
const EVERY_MS = 5000;
const MOST = 200;
const MOST_OF_STREAM = 10;

export function open(root, parameters) {
  const [form, list, actions] = [el("div", {}), el("section", {}, loading("the events")), el("section", {})];
  root.append(el("h1", {}, "Log"), form, list, actions);
  let wanted = parameters;
  const again = async () => {
    const mine = wanted;
    try {
      const [streams, found, done] = await Promise.all([
        declared(),
        askIfThere(query("/api/v1/happenings", { kind: mine.kind, stream: mine.stream, limit: MOST })),
        ask("/api/v1/actions"),
      ]);
      await calm();
      if (mine !== wanted) {
        return; // the filters have changed since
      }
      if (!form.contains(document.activeElement)) {
        swap(form, filterForm(wanted, streams));
      }
      swap(list, el("h2", {}, "What happened"), happenings(found));
      swap(actions, el("h2", {}, "Actions since this server started"), actionTable(done.actions));
    } catch (problem) {
      mine === wanted && swap(list, el("p", { class: "trouble", role: "alert" }, problem.message));
    }
  };
  swap(form, filterForm(wanted, [wanted.stream].filter(Boolean).map((name) => ({ name }))));
  again();
  const timer = setInterval(() => document.hidden || again(), EVERY_MS);
  const off = on("table", (name) => name === "ops.events" && again());
  return {
    update(changed) {
      wanted = changed;
      again();
    },
    close() {
      clearInterval(timer);
      off();
    },
  };
}

/** A stream's newest events, for its view: their node, and `close`. */
export function happeningsOf(stream) {
  const place = el("div", {}, loading("the events"));
  const again = async () => {
    try {
      const found = await askIfThere(query("/api/v1/happenings", { stream, limit: MOST_OF_STREAM }));
      await calm();
      swap(place, happenings(found));
    } catch (problem) {
      swap(place, el("p", { class: "trouble", role: "alert" }, problem.message));
    }
  };
  again();
  const all = el("a", { href: query("#/log", { stream }) }, "All events");
  return { node: el("section", {}, el("h2", {}, "Events"), place, el("p", {}, all)), close: on("table", (name) => name === "ops.events" && again()) };
}

function filterForm(wanted, streams) {
  const form = el(
    "form",
    { class: "filters" },
    field("Kind", select("kind", [["", "all"], ...KINDS.map((one) => [one, words(one)])], wanted.kind)),
    field("Stream", select("stream", [["", "all"], ...streams.map((one) => one.name)], wanted.stream)),
  );
  form.addEventListener("change", () => {
    location.hash = query("#/log", Object.fromEntries(new FormData(form)));
  });
  return form;
}

function happenings(found) {
  if (found === null) {
    return el("p", { class: "muted" }, "This server does not report events.");
  }
  const rows = folded(found.happenings).map(({ newest: one, oldest, times }) => {
    const repeats = times === 1 ? null : el("span", { class: "muted" }, ` ${count(times)} times since `, moment(oldest.at));
    return [moment(one.at), words(one.kind), one.stream ?? "", one.table ?? one.layer ?? "", el("span", { class: "message" }, one.message, repeats), one.actor];
  });
  return table("What happened", ["at", "what", "stream", "where", "message", "by"], rows, { empty: "No events." });
}

/** Fold successive events that differ only in time and process into one. */
function folded(happenings) {
  const found = [];
  for (const one of happenings) {
    const last = found.at(-1);
    if (last !== undefined && SHOWN.every((name) => last.newest[name] === one[name])) {
      last.oldest = one;
      last.times += 1;
    } else {
      found.push({ newest: one, oldest: one, times: 1 });
    }
  }
  return found;
}

function actionTable(actions) {
  const kinds = { running: "behind", succeeded: "well", failed: "blocked", cancelled: "blocked" };
  const rows = actions.map((one) => [moment(one.startedAt), one.actor, el("code", {}, one.command), badge(one.status, kinds[one.status]), one.endedAt === null ? "" : moment(one.endedAt)]);
  return table("Actions", ["started", "by", "command", "status", "ended"], rows, { empty: "None." });
}
