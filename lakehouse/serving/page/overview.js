// Every stream's health in one word, its pipeline, and the firing alerts.

import { askIfThere, query } from "./api.js";
import { badge, el, exact, renew, say } from "./dom.js";
import { drawer } from "./drawer.js";
import { ago, clock, count, seconds } from "./format.js";
import { live, on } from "./live.js";
import { pipeline } from "./pipeline.js";

const ALERTS_EVERY_MS = 5000;

export function open(root) {
  const alerts = el("div", { class: "alerts" });
  const said = el("div", {});
  const streams = el("div", { class: "streams" });
  root.append(el("h1", {}, "Overview"), alerts, said, streams);
  const cards = new Map();
  let answer = null;
  const update = () => {
    renew(said, ...troubles());
    answer === null || renew(alerts, firing(answer));
    for (const state of live.status?.streams ?? []) {
      if (!cards.has(state.name)) {
        cards.set(state.name, card(state.name));
        streams.append(cards.get(state.name).node);
      }
      cards.get(state.name).update(state, live.status);
    }
  };
  const off = on("status", update);
  update();
  const again = async () => {
    answer = await askAlerts();
    renew(alerts, firing(answer));
  };
  again();
  const timer = setInterval(() => document.hidden || again(), ALERTS_EVERY_MS);
  return {
    close() {
      off();
      clearInterval(timer);
      cards.forEach((one) => one.close());
    },
  };
}

function troubles() {
  const notice = (text) => el("p", { class: "notice" }, text);
  if (live.isMissing) {
    return [notice("This server has no /api/v1/status, so health and backlog are unknown.")];
  }
  if (live.status === null) {
    return [live.trouble === null ? el("p", { class: "muted" }, "Loading the streams …") : notice(live.trouble)];
  }
  const reasons = [live.trouble && `${live.trouble}; the data below is from ${clock(live.status.at)} UTC`, live.status.lakeReason, live.status.brokerReason];
  return reasons.filter(Boolean).map(notice);
}

function card(name) {
  const word = badge("", "");
  const reason = el("span", { class: "reason" });
  const since = el("span", { class: "muted" });
  const facts = el("p", { class: "facts" });
  const drawn = pipeline(name, (layer) => details.open(layer));
  const details = drawer(name);
  const title = el("h2", { id: `stream-${name}` }, name);
  const head = el("header", {}, title, word, reason, since);
  const node = el("section", { class: "card", "aria-labelledby": title.id, "data-stream": name }, head, facts, drawn.node);
  return {
    node,
    update(state, status) {
      const { health } = state;
      const now = status.at;
      say(word, health.word);
      word.className = `badge ${health.word}`;
      say(reason, briefReason(health.reason, [status.lakeReason, status.brokerReason]));
      say(since, health.since === null ? "" : `since ${clock(health.since)} UTC`);
      renew(facts, ...told(state, now));
      drawn.update(state, now);
      details.update(state, now);
    },
    close() {
      drawn.close();
      details.close();
    },
  };
}

/** A stream's reason without a sentence that is already shown above all streams. */
function briefReason(reason, above) {
  const known = above.find((one) => one && reason.endsWith(one));
  if (known === undefined) {
    return reason;
  }
  const what = reason.slice(0, -known.length).replace(/:\s*$/, "");
  return what === "" ? "see above" : `${what} cannot be read: see above`;
}

function told(state, now) {
  const letters = query("#/letters", { stream: state.name });
  const open = state.openLetters;
  return [
    state.freshnessS === null ? null : el("span", {}, `newest event ${seconds(state.freshnessS)} old`),
    open === null ? null : el("a", { href: letters, key: letters }, `${count(open)} open dead ${open === 1 ? "letter" : "letters"}`),
    state.gate === null ? null : el("span", {}, state.gate.isOpen ? "gate open" : "gate closed"),
    ...running(state.runs, state.health, now),
  ];
}

function running(runs, health, now) {
  if (runs === undefined) {
    return [];
  }
  if (runs.length === 0) {
    return health.isUnrun ? [] : [el("span", { class: "unrun" }, "no running process")];
  }
  return runs.map((run) =>
    el("span", {}, `process ${run.pid} on ${run.host} runs ${run.layers.join(", ")}; last seen ${ago(run.beatAt, now)}`),
  );
}

/** The current alerts, as `{found}` or `{problem}`. */
async function askAlerts() {
  try {
    return { found: await askIfThere("/api/v1/alerts") };
  } catch (problem) {
    return { problem };
  }
}

function firing({ found, problem }) {
  const plain = (text) => el("p", { class: "muted" }, text);
  if (problem !== undefined) {
    const isAbove = problem.message === live.status?.brokerReason;
    return plain(`Firing alerts are unknown${isAbove ? " without Kafka." : `: ${problem.message}`}`);
  }
  if (found === null) {
    return plain("This server does not report alerts.");
  }
  const items = found.alerts.filter((one) => one.state === "firing").map(alertItem);
  const list = items.length === 0 ? [] : [el("ul", { "aria-label": "Firing alerts" }, ...items)];
  if (found.isEvaluated === false) {
    return el("div", {}, el("p", { class: "trouble" }, sentence(found.reason)), ...list);
  }
  return list[0] ?? plain("No alert is firing.");
}

function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

function alertItem(alert) {
  const labels = alert.labels ?? {};
  const stream = alert.stream ?? labels.stream;
  const of = Object.values(labels).join(", ") || stream || "";
  const value = alert.value === null || alert.value === undefined ? null : el("span", {}, exact(alert.value));
  const over = alert.threshold === null || alert.threshold === undefined ? null : [" against ", exact(alert.threshold)];
  const letters = query("#/letters", { stream, status: "open" });
  return el(
    "li",
    {},
    badge(alert.severity ?? "firing", alert.severity === "critical" ? "blocked" : "behind"),
    el("strong", {}, alert.rule),
    el("span", {}, of),
    alert.what ? el("span", { class: "reason" }, alert.what) : null,
    value === null ? null : el("span", { class: "muted" }, value, over),
    el("span", { class: "muted" }, `since ${clock(alert.since)} UTC`),
    stream === undefined ? null : el("a", { href: letters, key: `${alert.rule}:${of}` }, "Dead letters"),
  );
}
