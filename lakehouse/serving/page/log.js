// The log: the pipeline's events, and this server's actions since it started.

import { ask, askIfThere, declared, query } from "./api.js";
import { badge, calm, el, field, loading, moment, say, select, swap, table } from "./dom.js";
import { count, words } from "./format.js";
import { on } from "./live.js";

const KINDS = ["start", "stop", "failure", "refusal", "recovery", "schema_change", "data_loss", "gate", "audit", "expect", "refused", "replay", "discard", "skip", "resolve", "rebuild", "maintenance", "copy", "alert", "events_lost"];
const SHOWN = ["kind", "stream", "layer", "table", "message", "actor"];
const EVERY_MS = 5000;
const MOST = 200;
const MOST_OF_STREAM = 10;
const HOUR_MS = 3_600_000;
const SPANS = [["", "any time"], ["1", "hour"], ["24", "24 hours"], ["168", "7 days"]];

export function open(root, parameters) {
  const [form, list, actions] = [el("div", {}), el("section", {}, loading("the events")), el("section", {})];
  root.append(el("h1", {}, "Log"), form, list, actions);
  let wanted = parameters;
  const again = async () => {
    const mine = wanted;
    try {
      const [streams, found, done] = await Promise.all([
        declared(),
        askIfThere(query("/api/v1/happenings", { kind: mine.kind, stream: mine.stream, since: startOf(mine.within), limit: MOST })),
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

/** A stream's newest events, for its view: their node, `within`, which is called with a span's name and hours, and `close`. */
export function happeningsOf(stream) {
  const [place, title] = [el("div", {}, loading("the events")), el("h2", {}, "Events")];
  let span = { limit: MOST_OF_STREAM };
  const again = async () => {
    const mine = span;
    let shown;
    try {
      const { hours = "", limit } = mine;
      shown = happenings(await askIfThere(query("/api/v1/happenings", { stream, since: startOf(hours), limit })));
    } catch (problem) {
      shown = el("p", { class: "trouble", role: "alert" }, problem.message);
    }
    await calm();
    mine === span && swap(place, shown);
  };
  again();
  const all = el("a", { href: query("#/log", { stream }), key: "all" }, "All events");
  return {
    node: el("section", {}, title, place, el("p", {}, all)),
    within(name, hours) {
      say(title, `Events of the last ${name}`);
      span = { hours, limit: MOST };
      again();
    },
    close: on("table", (name) => name === "ops.events" && again()),
  };
}

/** The time `hours` ago, or null for any time. */
function startOf(hours = "") {
  return hours === "" ? null : new Date(Date.now() - Number(hours) * HOUR_MS).toISOString();
}

function filterForm(wanted, streams) {
  const form = el(
    "form",
    { class: "filters" },
    field("Kind", select("kind", [["", "all"], ...KINDS.map((one) => [one, words(one)])], wanted.kind)),
    field("Stream", select("stream", [["", "all"], ...streams.map((one) => one.name)], wanted.stream)),
    field("Within", select("within", SPANS, wanted.within)),
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
