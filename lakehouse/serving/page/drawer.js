// One layer of a stream: its backlog, tables, micro-batches with their phases, and events.

import { askIfThere, query } from "./api.js";
import { el, moment, renew, table } from "./dom.js";
import { bytes, count, dated, rate, seconds, words } from "./format.js";
import { layerOf, tablesOf } from "./states.js";

const QUERIES = { topic: "bronze", bronze: "bronze", silver: "silver", letters: "silver", gold: "gold" };
const layerOfNode = (node) => QUERIES[node] ?? "export"; // any other node is a store
const TROUBLES = new Set(["failure", "refusal", "recovery", "data_loss", "schema_change", "start", "stop"]);
const MOST = 200;
const SHOWN = 20;

/** A stream's drawer; `open(layer, title)` shows it, and `update` passes it the newest status. */
export function drawer(name) {
  let dialog = null;
  let layer = null;
  let last = null;
  let happenings = null;
  const fill = () => dialog !== null && last !== null && renew(dialog.body, ...content(layer, ...last, happenings));
  return {
    async open(chosen, title) {
      layer = chosen;
      happenings = null;
      dialog = made(`${title} of ${name}`, () => (dialog = null));
      fill();
      const found = await past(name, layerOfNode(chosen));
      if (layer === chosen) {
        happenings = found;
        fill();
      }
    },
    update(state, now) {
      last = [state, now];
      fill();
    },
    close: () => dialog?.close(),
  };
}

function made(title, gone) {
  const body = el("div", { class: "body" });
  const close = el("button", { type: "button", class: "quiet", autofocus: true, on: { click: () => node.close() } }, "Close");
  const node = el("dialog", { class: "drawer", "aria-labelledby": "drawer-title" }, el("header", {}, el("h2", { id: "drawer-title" }, title), close), body);
  node.addEventListener("click", (event) => event.target === node && node.close());
  node.addEventListener("close", () => {
    node.remove();
    gone();
  });
  document.getElementById("dialogs").append(node);
  node.showModal();
  return { body, close: () => node.close() };
}

async function past(stream, layer) {
  try {
    const found = await askIfThere(query("/api/v1/happenings", { stream, limit: MOST }));
    const of = (one) => TROUBLES.has(one.kind) && (one.layer === null || one.layer === layer);
    return found === null ? "This server does not report events." : found.happenings.filter(of).slice(0, SHOWN);
  } catch (problem) {
    return problem.message;
  }
}

function content(layer, state, now, happenings) {
  const query_ = layerOfNode(layer);
  return [
    layer === "letters" ? el("p", {}, el("a", { href: query("#/letters", { stream: state.name }), key: "letters" }, "Show the dead letters")) : null,
    el("h3", {}, "Backlog"),
    query_ === "bronze" ? partitions(state) : backlog(state, query_),
    ...(query_ === "export" || layer === "topic" ? [] : [el("h3", {}, "Tables"), tables(state, layer)]),
    el("h3", {}, "Micro-batches"),
    batches(state, query_),
    ...phases(state, query_),
    el("h3", {}, "Starts, errors and restarts"),
    events(happenings),
  ];
}

function partitions(state) {
  const rows = state.partitions.map((one) => [
    one.topic,
    count(one.partition),
    count(one.position),
    count(one.end),
    count(one.records),
    seconds(one.seconds),
  ]);
  const headings = ["topic", "partition", "position", "end", "records", "oldest"];
  return [...reasons(state.partitions), table("Lag of each partition", headings, rows, { numeric: headings.slice(1) })];
}

/** The reasons why numbers are unknown, without duplicates. */
function reasons(lags) {
  const known = new Set(lags.map((one) => one.reason).filter(Boolean));
  return [...known].map((one) => el("p", { class: "trouble" }, one));
}

function backlog(state, layer) {
  const lags = state.layers.filter((one) => one.layer === layer);
  const rows = lags.map((one) => [one.query, one.source, count(one.records), count(one.commits), seconds(one.seconds)]);
  return [...reasons(lags), table("Backlog of each query", ["query", "reads", "rows", "commits", "oldest"], rows, { numeric: ["rows", "commits", "oldest"] })];
}

function tables(state, layer) {
  const found = layer === "letters" ? state.tables.filter((one) => one.name.endsWith(".dead_letters")) : tablesOf(state, layer);
  const marks = new Map(state.eventTimes.map((one) => [one.table, one.watermark]));
  const rows = found.map((one) => [
    one.name,
    count(one.version),
    moment(one.committedAt),
    count(one.rows),
    count(one.files),
    bytes(one.sizeBytes),
    marks.has(one.name) ? moment(marks.get(one.name)) : "",
  ]);
  const headings = ["table", "version", "written", "rows", "files", "size", "watermark"];
  return table("Tables", headings, rows, { numeric: ["version", "rows", "files", "size"], empty: "No table exists yet." });
}

function batches(state, layer) {
  const rows = state.queries
    .filter((one) => one.layer === layer)
    .map((one) => [one.name, count(one.done), moment(one.doneAt)]);
  return table("Micro-batches", ["query", "version", "at"], rows, { numeric: ["version"], empty: "No micro-batch has run yet." });
}

function phases(state, layer) {
  const found = (state.runs ?? []).flatMap((run) => run.queries).filter((one) => layerOf(one.name) === layer);
  return found.flatMap((one) => {
    const parts = Object.entries(one.phasesS ?? {}).sort(([, a], [, b]) => b - a);
    const most = Math.max(...parts.map(([, took]) => took), 0.001);
    const bars = parts.map(([name, took]) =>
      el(
        "li",
        {},
        el("span", {}, words(name)),
        el("span", { class: "track" }, el("i", { style: { width: `${(100 * took) / most}%` } })),
        el("span", { class: "number" }, `${Math.round(took * 1000)} ms`),
      ),
    );
    return [
      el("h4", {}, `${one.name}, micro-batch ${count(one.batch)}`),
      el("p", { class: "muted" }, `${count(one.rows)} rows, ${rate(one.rowsPerS ?? null, "rows") ?? "– rows/s"}, ${count(one.restarts ?? 0)} restarts, at ${dated(one.at)}`),
      one.error ? el("p", { class: "trouble" }, one.error) : null,
      el("ul", { class: "phases" }, ...bars),
    ];
  });
}

function events(happenings) {
  if (happenings === null) {
    return el("p", { class: "muted" }, "Loading …");
  }
  if (typeof happenings === "string") {
    return el("p", { class: "muted" }, happenings);
  }
  const rows = happenings.map((one) => [moment(one.at), words(one.kind), el("span", { class: "message" }, one.message)]);
  return table("Starts, errors and restarts", ["at", "what", "message"], rows, { empty: "No events." });
}
