// Every stream in one word, its pipeline, and the alerts that fire.

import { askIfThere, query } from "./api.js";
import { badge, el, renew, say } from "./dom.js";
import { drawer } from "./drawer.js";
import { ago, clock, count, exact, seconds } from "./format.js";
import { live, on } from "./live.js";
import { pipeline } from "./pipeline.js";

const ALERTS_EVERY_MS = 5000;

export function open(root) {
  const alerts = el("div", { class: "alerts" });
  const said = el("div", {});
  const streams = el("div", { class: "streams" });
  root.append(el("h1", {}, "Overview"), alerts, said, streams);
  const cards = new Map();
  const update = () => {
    renew(said, ...troubles());
    for (const state of live.status?.streams ?? []) {
      if (!cards.has(state.name)) {
        cards.set(state.name, card(state.name));
        streams.append(cards.get(state.name).node);
      }
      cards.get(state.name).update(state, live.status.at);
    }
  };
  const off = on("status", update);
  update();
  tellAlerts(alerts);
  const timer = setInterval(() => document.hidden || tellAlerts(alerts), ALERTS_EVERY_MS);
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
    return [notice("This server has no /api/v1/status, so health and backlog are not known here.")];
  }
  if (live.status === null) {
    return [live.trouble === null ? el("p", { class: "muted" }, "Loading the streams …") : notice(live.trouble)];
  }
  const reasons = [live.trouble && `${live.trouble}; what follows is of ${clock(live.status.at)} UTC`, live.status.lakeReason, live.status.brokerReason];
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
    update(state, now) {
      const { health } = state;
      say(word, health.word);
      word.className = `badge ${health.word}`;
      say(reason, health.reason);
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

function told(state, now) {
  const letters = query("#/letters", { stream: state.name });
  const open = state.openLetters;
  return [
    state.freshnessS === null ? null : el("span", {}, `newest event ${seconds(state.freshnessS)} old`),
    open === null ? null : el("a", { href: letters, key: letters }, `${count(open)} open dead ${open === 1 ? "letter" : "letters"}`),
    state.gate === null ? null : el("span", {}, state.gate.isOpen ? "gate open" : "gate closed"),
    ...running(state.runs, now),
  ];
}

function running(runs, now) {
  if (runs === undefined) {
    return [];
  }
  if (runs.length === 0) {
    return [el("span", { class: "stopped" }, "no process runs it")];
  }
  return runs.map((run) =>
    el("span", {}, `process ${run.pid} on ${run.host} runs ${run.layers.join(", ")}; last seen ${ago(run.beatAt, now)}`),
  );
}

async function tellAlerts(root) {
  let found;
  try {
    found = await askIfThere("/api/v1/alerts");
  } catch (problem) {
    renew(root, el("p", { class: "muted" }, `Which alerts fire is not known: ${problem.message}`));
    return;
  }
  if (found === null) {
    renew(root, el("p", { class: "muted" }, "This server does not report alerts."));
    return;
  }
  const firing = found.alerts.filter((one) => one.state === "firing");
  const items = firing.map(alertItem);
  renew(root, items.length === 0 ? el("p", { class: "muted" }, "No alert fires.") : el("ul", { "aria-label": "Alerts that fire" }, ...items));
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
