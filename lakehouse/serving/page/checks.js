// Checks: whether gold may be exported, the last audit's comparisons, and the suites' findings.

import { ask, askIfThere, declared } from "./api.js";
import { confirmed } from "./acting.js";
import { badge, calm, el, loading, moment, swap, table } from "./dom.js";
import { ago, count, words } from "./format.js";
import { zone } from "./zone.js";
import { on } from "./live.js";

const EVERY_MS = 10000;
const KEYS = 10;

export function open(root) {
  const parts = ["gates", "audit", "suites"].map((name) => el("section", { class: `card ${name}` }));
  const wait = loading("the checks");
  root.append(el("h1", {}, "Checks"), wait);
  const [gates, audit, suites] = parts;
  let left = parts.length; // the sections are first drawn together, so that none of them moves another
  const waiting = [];
  const tell = async (node, title, asked, draw) => {
    let shown;
    try {
      shown = draw(await asked());
    } catch (problem) {
      shown = [el("p", { class: "trouble", role: "alert" }, problem.message)];
    }
    await calm();
    waiting.push(() => swap(node, el("h2", {}, title), ...shown));
    left -= 1;
    if (left <= 0) {
      wait.replaceWith(...parts);
      waiting.splice(0).forEach((each) => each());
    }
  };
  const looks = new Map([
    ["ops.gates", () => tell(gates, "Gates", async () => [(await ask("/api/v1/gates")).gates, await declared()], drawnGates)],
    ["ops.events", () => tell(audit, "Audit", () => askIfThere("/api/v1/audit"), (found) => drawnAudit(found, again))],
    ["ops.expectation_results", () => tell(suites, "Suites", () => ask("/api/v1/expectations"), (found) => drawnSuites(found, again))],
  ]);
  const again = () => looks.forEach((look) => look());
  again();
  const timer = setInterval(() => document.hidden || again(), EVERY_MS);
  const off = on("table", (name) => looks.get(name)?.());
  return {
    close() {
      clearInterval(timer);
      off();
    },
  };
}

function drawnGates([gates, streams]) {
  const known = new Map(gates.map((one) => [one.stream, one]));
  const rows = streams.map(({ name }) => {
    const gate = known.get(name);
    return gate === undefined
      ? [name, "never checked", "", ""]
      : [name, badge(gate.isOpen ? "open" : "closed", gate.isOpen ? "well" : "blocked"), moment(gate.changedAt), (gate.reasons ?? []).join("; ")];
  });
  const about = el("p", { class: "muted" }, "With ", el("code", {}, "lakehouse run all --gate"), ", gold is exported only while its suites hold.");
  return [table("Gates", ["stream", "gate", "since", "why"], rows), gates.length < streams.length ? about : null];
}

function runNow(verb, action, title, text, again) {
  const run = async () => (await confirmed({ title, text, verb, body: { action } })) !== null && again();
  return el("div", { class: "buttons" }, el("button", { type: "button", key: `run:${action}`, on: { click: run } }, verb));
}

function drawnAudit(found, again) {
  const button = runNow("Run the audit now", "audit", "Compare every layer with the one before it?", "The audit runs alongside the streams and changes nothing.", again);
  if (found === null) {
    return [el("p", { class: "muted" }, "This server does not report the last audit."), button];
  }
  const { audit } = found;
  if (audit === null) {
    return [el("p", { class: "muted" }, "No audit has run yet."), button];
  }
  const rows = audit.checks.map((one) => [
    one.stream,
    one.name,
    one.subject ?? "",
    count(one.compared),
    count(one.differences),
    auditBadge(one.differences, one.not_compared ?? []),
    one.at === undefined ? "" : ago(one.at, new Date()),
    [one.examples ?? [], one.not_compared ?? [], one.notes ?? []].flat().map((each) => (typeof each === "string" ? each : JSON.stringify(each))).slice(0, KEYS).join("; "),
  ]);
  const headings = ["stream", "check", "subject", "compared", "differences", "result", "checked", "examples"];
  return [
    el("p", { class: "lead" }, badge(audit.isClean ? "clean" : "not clean", audit.isClean ? "well" : "blocked"), " ", ago(audit.at, new Date()), ", ", moment(audit.at), ` ${zone()}, by `, audit.actor),
    button,
    table("Checks of the audit", headings, rows, { numeric: ["compared", "differences"] }),
  ];
}

function auditBadge(differences, notCompared) {
  if (differences > 0) {
    return badge("differs", "blocked");
  }
  return notCompared.length > 0 ? badge("incomplete", "behind") : badge("clean", "well");
}

function drawnSuites({ expectations: found, dataDocs }, again) {
  const button = runNow("Run the suites now", "expect", "Run every suite on the current tables?", "The findings are stored in ops.expectation_results.", again);
  const failed = found.filter((one) => !one.success);
  const isFailing = (name) => failed.some((one) => one.table === name);
  const names = [...new Set(found.map((one) => one.table))].sort((one, other) => isFailing(other) - isFailing(one) || (one < other ? -1 : 1));
  if (names.length === 0) {
    return [el("p", { class: "muted" }, "No suite has run yet."), button];
  }
  const pages = dataDocs === null ? null : el("p", {}, el("a", { href: dataDocs.slice(1) }, "Data Docs"), " of all runs, as pages");
  return [failed.length === 0 ? null : lastFailed(failed, found.length), button, pages, ...names.flatMap((name) => drawnSuite(name, found.filter((one) => one.table === name)))];
}

/** A sentence with the expectation that failed last. */
function lastFailed(failed, all) {
  const last = failed.reduce((newest, one) => (one.checkedAt > newest.checkedAt ? one : newest));
  return el("p", { class: "trouble" }, `${count(failed.length)} of ${count(all)} expectations fail; the last, at `, moment(last.checkedAt), ` ${zone()}: ${last.table}: ${last.expectation}`);
}

function drawnSuite(name, results) {
  const failed = results.filter((one) => !one.success);
  const ordered = [...failed, ...results.filter((one) => one.success)];
  const rows = ordered.map((one) => [
    badge(one.success ? "holds" : one.severity, one.success ? "well" : one.severity === "fail" ? "blocked" : "behind"),
    one.expectation,
    one.error ?? (one.success ? "" : one.observed || `${count(one.unexpected)} rows`),
    one.success ? "" : el("code", {}, (one.examples ?? []).slice(0, KEYS).map(key).join("; ")),
  ]);
  const first = results[0];
  const verdict = failed.length === 0 ? `all ${results.length} hold` : `${failed.length} of ${results.length} fail`;
  return [
    el("h3", {}, name),
    el("p", { class: "facts" }, el("span", {}, verdict), el("span", {}, `version ${count(first.version)}, ${count(first.rows)} rows`), el("span", {}, moment(first.checkedAt), ` ${zone()}`)),
    table(`Suite of ${name}`, ["result", "expectation", "found", "failing keys"], rows),
  ];
}

function key(example) {
  if (typeof example !== "object" || example === null) {
    return String(example);
  }
  return Object.entries(example).map(([name, value]) => `${words(name)} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
}
