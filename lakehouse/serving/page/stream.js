// One stream: its health, the drawing of its pipeline, a search for a record, its history, steps, events and settings.

import { askIfThere, declared, query } from "./api.js";
import { badge, el, loading, moment, renew, table } from "./dom.js";
import { drawer } from "./drawer.js";
import { finder } from "./finding.js";
import { ago, briefly, bytes, count, dated, seconds, UNKNOWN } from "./format.js";
import { pastOf } from "./history.js";
import { live, on } from "./live.js";
import { happeningsOf } from "./log.js";
import { pipeline } from "./pipeline.js";
import { advice, alsoFails, briefReason, failing, isUnrun, layerOf, sinceWhen, storesOf, tablesOf, total, troubles } from "./states.js";

export function open(root, parameters, name) {
  document.title = `${name} · lakehouse`;
  const [said, head, facts, steps, settings] = ["", "lead", "facts", "steps", "settings"].map((kind) => el("div", { class: kind || null }));
  const details = drawer(name);
  const events = happeningsOf(name);
  const past = pastOf(name, events.within);
  const records = finder(name);
  const drawn = pipeline(name, details.open);
  const shown = el("div", { "data-stream": name }, head, facts, el("div", { class: "card" }, drawn.node), records.node, past.node, steps, events.node, settings);
  root.append(el("p", { class: "crumb" }, el("a", { href: "#/" }, "Overview")), el("h1", {}, name), said);
  const update = () => {
    const { status } = live;
    const state = status?.streams.find((one) => one.name === name);
    const none = status !== null && state === undefined ? el("p", { class: "notice" }, `This server has no stream ${name}.`) : null;
    renew(said, ...troubles(), none);
    if (state === undefined) {
      shown.remove();
      return;
    }
    if (!shown.isConnected) {
      root.append(shown);
      past.begin();
    }
    renew(head, ...health(state, status));
    renew(facts, ...told(state, status.at));
    renew(steps, ...stepsOf(state));
    drawn.update(state, status.at);
    details.update(state, status.at);
  };
  const off = on("status", update);
  update();
  records.update(parameters.record);
  declared().then((all) => drawn.exportTo(all.find((one) => one.name === name)?.stores ?? []), () => {});
  renew(settings, loading("the settings"));
  settingsOf(name).then((found) => renew(settings, ...found));
  return {
    update: (changed) => records.update(changed.record),
    close() {
      off();
      past.close();
      drawn.close();
      details.close();
      events.close();
    },
  };
}

function health(state, status) {
  const { word, since } = state.health;
  const reason = briefReason(state, status);
  return [
    badge(word),
    alsoFails(state) ? badge("failing", "blocked") : null,
    el("span", { class: "reason" }, ...advice(reason, state.health)),
    sinceWhen(since, reason),
  ];
}

function told(state, now) {
  const { name, gate, openLetters: open } = state;
  const link = (href, text) => el("a", { href, key: href }, text);
  return [
    state.freshnessS === null ? null : el("span", {}, `newest event ${seconds(state.freshnessS)} old`),
    link(query("#/letters", { stream: name }), open === null ? "dead letters" : `${count(open)} open dead ${open === 1 ? "letter" : "letters"}`),
    link(query("#/log", { stream: name }), "events"),
    ...tablesOf(state, "gold").map((one) => link(`#/${one.name.replace(".", "/")}`, one.name)),
    gate === null ? null : el("span", {}, gate.isOpen ? "gate open" : `gate closed since ${dated(gate.changedAt)}: ${gate.reasons.join("; ")}`),
    isUnrun(state) ? el("span", { class: "late" }, "no running process") : null,
    ...state.runs.map((run) => el("span", {}, `process ${run.pid} on ${run.host} runs ${run.layers.join(", ")}; last seen ${ago(run.beatAt, now)}`)),
  ];
}

/** The backlog of each step in each of its sources, its last micro-batch, the failing steps, and each export's stores. */
function stepsOf(state) {
  const queries = new Map(state.queries.map((one) => [one.name, one]));
  const landed = state.backlogs.find((one) => one.layer === "bronze");
  const topics = [...new Set(state.partitions.map((one) => one.topic))];
  const bronze = state.queries.filter((one) => one.layer === "bronze");
  const last = bronze.map((one) => one.doneAt).filter(Boolean).sort().at(-1);
  const lags = state.layers.map((one) => ({ ...one, ...queries.get(one.query) }));
  const rows = [
    ...(landed === undefined ? [] : [{ query: "bronze", source: topics.join(", "), ...landed, done: bronze.length === 1 ? bronze[0].done : null, doneAt: last, sizeBytes: total(bronze.map((one) => one.sizeBytes)) }]),
    ...lags,
  ].map((one) => [
    one.query,
    one.source,
    one.records === null ? "?" : count(one.records),
    one.seconds === null ? "?" : briefly(one.seconds),
    count(one.done),
    moment(one.doneAt),
    ...roundOf(state, one.query),
    bytes(one.sizeBytes),
  ]);
  return [
    el("h2", {}, "Steps"),
    table("Steps", ["step", "reads", "waiting", "oldest", "version", "last micro-batch", "rows", "took", "added"], rows, { numeric: ["waiting", "oldest", "version", "rows", "took", "added"], empty: "The steps are unknown." }),
    ...failing(state).map((one) => el("p", { class: "trouble" }, `${one.name} fails: ${one.error}`)),
    el("h2", {}, "Stores"),
    storeTable(state),
  ];
}

function storeTable(state) {
  const rows = storesOf(state).map((one) => [one.name, one.of, badge(one.word), moment(one.since), el("span", { class: "message" }, ...advice(one.reason, one))]);
  return table("Stores", ["store", "export", "state", "since", "why, and what to do"], rows, { empty: "This stream is not exported." });
}

/** The rows of a step's last micro-batch and the seconds that it took, as its process reports them. For `bronze`, all steps are added up. */
function roundOf({ runs }, step) {
  const last = runs.flatMap((run) => run.queries).filter((one) => one.batch !== null && (one.name === step || layerOf(one.name) === step));
  const took = total(last.flatMap((one) => Object.values(one.phasesS ?? {})));
  return [count(total(last.map((one) => one.rows))), seconds(took)];
}

/** A sentence that names the settings that are not defaults. */
function given(settings) {
  const keys = settings.filter((one) => one.from !== "default").map((one) => el("code", {}, one.key));
  const told = keys.length === 0 ? "all have their default" : `${count(keys.length)} ${keys.length === 1 ? "is" : "are"} set: `;
  return el("p", {}, `Of ${count(settings.length)} settings, ${told}`, ...keys.flatMap((one, index) => (index === 0 ? [one] : [", ", one])), ".");
}

/** The settings that the stream depends on, its own first, and where each comes from. */
async function settingsOf(name) {
  const title = el("h2", {}, "Settings");
  try {
    const found = await askIfThere(query("/api/v1/settings", { stream: name }));
    const rows = (found?.settings ?? []).map((one) => [
      el("code", { class: "whole" }, one.key),
      one.value === "" ? UNKNOWN : el("code", { class: "message" }, typeof one.value === "string" ? one.value : JSON.stringify(one.value)),
      one.from === "default" ? el("span", { class: "muted" }, "default") : el("code", { class: "whole" }, one.from),
    ]);
    const about = el("p", { class: "muted" }, "The values that this server read when it started. Secrets are masked.");
    return [title, rows.length === 0 ? null : given(found.settings), table("Settings", ["setting", "value", "from"], rows, { empty: "This server does not report settings." }), rows.length === 0 ? null : about];
  } catch (problem) {
    return [title, el("p", { class: "trouble", role: "alert" }, problem.message)];
  }
}
