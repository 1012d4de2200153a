// Dead letters: counts, a list filtered by stream, rule, status and time, and actions on the matching letters.

import { ask, declared, query } from "./api.js";
import { badge, calm, el, field, moment, select, swap, table } from "./dom.js";
import { confirmed } from "./acting.js";
import { count, cut } from "./format.js";
import { on } from "./live.js";

const SPANS = [["", "any time"], ["900", "15 minutes"], ["3600", "hour"], ["21600", "6 hours"], ["86400", "24 hours"], ["604800", "7 days"]];
const STATUSES = [["open", "open"], ["replayed", "replayed"], ["discarded", "discarded"], ["resent", "resent"], ["duplicate", "duplicate"], ["superseded", "superseded"], ["deletion", "deletion"], ["", "any"]];
const TABLE = "silver.dead_letters";
const PAUSE_MS = 1000;

export function open(root, parameters) {
  const form = el("div", {});
  const counts = el("div", {});
  const list = el("div", {});
  root.append(el("h1", {}, "Dead letters"), form, el("div", { class: "sides" }, el("section", {}, counts), el("section", {}, list)));
  let wanted = chosen(parameters);
  let cursors = [null];
  let isBusy = false;
  const again = async () => {
    if (isBusy) {
      return;
    }
    isBusy = true;
    try {
      const filters = asked(wanted);
      const [found, counted, streams] = await Promise.all([
        ask(query("/api/v1/dead-letters", { ...filters, limit: 50, cursor: cursors.at(-1) })),
        ask(query("/api/v1/dead-letters/counts", { stream: wanted.stream, since: filters.since, until: filters.until })),
        declared(),
      ]);
      await calm();
      swap(form, filterForm(wanted, streams, counted.counts));
      swap(counts, el("h2", {}, "By rule"), countTable(counted.counts, wanted));
      swap(list, el("h2", {}, "Letters"), actions(wanted, filters, counted.counts, again), listTable(found.letters, wanted), pages(found));
    } catch (problem) {
      swap(list, el("p", { class: "trouble", role: "alert" }, problem.message));
    }
    isBusy = false;
  };
  const pages = (found) => {
    const move = (change) => () => {
      change();
      again();
    };
    return el(
      "div",
      { class: "buttons" },
      cursors.length > 1 ? el("button", { type: "button", key: "newer", on: { click: move(() => cursors.pop()) } }, "Newer") : null,
      found.next === null ? null : el("button", { type: "button", key: "older", on: { click: move(() => cursors.push(found.next)) } }, "Older"),
    );
  };
  let timer = null;
  const off = on("table", (name) => {
    if (name === TABLE && timer === null && !form.contains(document.activeElement)) {
      timer = setTimeout(() => {
        timer = null;
        again();
      }, PAUSE_MS);
    }
  });
  again();
  return {
    update(changed) {
      wanted = chosen(changed);
      cursors = [null];
      again();
    },
    close() {
      off();
      clearTimeout(timer);
    },
  };
}

function chosen({ stream = "", rule = "", status = "open", within = "", since = "", until = "" }) {
  return { stream, rule, status, within, since, until };
}

/** The request parameters; `within`, in seconds, becomes the time `since`. */
function asked({ stream, rule, status, within, since, until }) {
  const from = within === "" ? since : new Date(Date.now() - Number(within) * 1000).toISOString();
  return { stream, rule, status, since: from, until };
}

/** The URL of a view; "any status" must be explicit. */
function address({ status, ...others }) {
  const path = query("#/letters", others);
  return `${path}${path.includes("?") ? "&" : "?"}status=${status}`;
}

function filterForm(wanted, streams, counts) {
  const rules = [...new Set([...counts.map((one) => one.rule), wanted.rule])].filter(Boolean).sort();
  const names = streams.map((one) => one.name);
  const time = (name) => el("input", { name, value: wanted[name], placeholder: "2026-03-01T00:00:00Z", key: `i:${name}`, spellcheck: "false" });
  const form = el(
    "form",
    { class: "filters" },
    field("Stream", select("stream", [["", "all"], ...names], wanted.stream)),
    field("Rule", select("rule", [["", "all"], ...rules], wanted.rule)),
    field("Status", select("status", STATUSES, wanted.status)),
    field("First seen within", select("within", SPANS, wanted.within)),
    field("or since", time("since")),
    field("until", time("until")),
  );
  const go = () => {
    const values = Object.fromEntries(new FormData(form));
    if (values.since !== "") {
      values.within = "";
    }
    location.hash = address(values);
  };
  form.addEventListener("change", go);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    go();
  });
  return form;
}

function countTable(counts, wanted) {
  const rows = counts
    .filter((one) => wanted.status === "" || one.status === wanted.status)
    .map((one) => {
      const link = address({ ...wanted, stream: one.stream, rule: one.rule });
      const status = wanted.status === "" ? [one.status] : [];
      return [one.stream, el("a", { href: link, key: link }, one.rule), ...status, count(one.count)];
    });
  const headings = ["stream", "rule", ...(wanted.status === "" ? ["status"] : []), "letters"];
  return table("Letters by rule", headings, rows, { numeric: ["letters"], empty: "None." });
}

function listTable(letters, wanted) {
  const isMixed = wanted.status === "";
  const rows = letters.map((one) => {
    const link = `#/letters/${one.id}`;
    return [
      el("a", { href: link, key: link, class: "whole" }, cut(one.id, 11)),
      moment(one.firstSeen),
      one.stream,
      el("span", { class: "whole" }, `${one.topic} ${one.partition} @ ${one.offset}`),
      one.reasons.map((reason) => `${reason.rule}${reason.column ? ` (${reason.column})` : ""}`).join(", "),
      ...(isMixed ? [badge(one.status)] : []),
      count(one.attempts),
    ];
  });
  const headings = ["id", "first seen", "stream", "record", "rules", ...(isMixed ? ["status"] : []), "attempts"];
  return table("Letters", headings, rows, { numeric: ["attempts"], empty: "No dead letter matches." });
}

/** The buttons that try, replay or discard all open letters that match the filters. */
function actions(wanted, filters, counts, again) {
  if (wanted.status !== "open") {
    return el("p", { class: "muted" }, "Only open letters can be replayed or discarded.");
  }
  const { stream, rule, since, until } = filters;
  const which = { ...(stream && { stream: [stream] }), ...(rule && { rule }), ...(since && { since }), ...(until && { until }) };
  const body = Object.keys(which).length === 0 ? { all: true } : which;
  const open = counts.filter((one) => one.status === "open" && (!rule || one.rule === rule));
  const of = [stream && `of ${stream}`, rule && `with the rule ${rule}`, since && `first seen since ${since}`, until && `before ${until}`];
  const what = `Every open letter${of.filter(Boolean).map((one) => ` ${one}`).join("")}`;
  return actionButtons(body, what, open.length === 0, again);
}

/** The three buttons; `body` selects the letters, and `what` describes them. */
export function actionButtons(body, what, isNone, again) {
  const button = (verb, key, dialog, isDangerous = false) =>
    el(
      "button",
      {
        type: "button",
        key,
        disabled: isNone,
        class: isDangerous ? "danger" : null,
        on: { click: async () => (await confirmed({ ...dialog, verb, isDangerous })) !== null && again() },
      },
      verb,
    );
  return el(
    "div",
    { class: "buttons" },
    button("Dry run", "dry", { title: "Count the letters that would pass now?", text: `${what}, with the current rules. Nothing is changed.`, body: { action: "replay", ...body, dryRun: true } }),
    button("Replay", "replay", { title: "Replay these letters into silver?", text: [`${what}, with the current rules.`, "Letters that still fail stay open."], body: { action: "replay", ...body } }),
    button("Discard", "discard", { title: "Discard these letters?", text: [`${what}.`, "They stay in the table as discarded, and cannot be replayed."], body: { action: "discard", ...body } }, true),
  );
}
