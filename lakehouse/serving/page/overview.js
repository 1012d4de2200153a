// The firing alerts, a one-sentence summary of all streams, and the table of streams.

import { askIfThere, query } from "./api.js";
import { badge, el, exact, prose, renew } from "./dom.js";
import { dated } from "./format.js";
import { live, on } from "./live.js";
import { troubles } from "./states.js";
import { streamsTable } from "./streams.js";

const ALERTS_EVERY_MS = 5000;

export function open(root) {
  const alerts = el("div", { class: "alerts" }, el("p", { class: "muted" }, "Loading the alerts …"));
  const said = el("div", {});
  const summary = el("p", { class: "headline" });
  const streams = streamsTable();
  root.append(el("h1", {}, "Overview"), alerts, said);
  let answer = null;
  const update = () => {
    renew(said, ...troubles());
    answer === null || renew(alerts, firing(answer));
    if (live.status === null) {
      return;
    }
    renew(summary, `${live.status.summary}.`);
    streams.update(live.status);
    if (!summary.isConnected) {
      root.append(summary, streams.node);
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
      streams.close();
    },
  };
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
    return el("div", {}, el("p", { class: "trouble" }, ...prose(sentence(found.reason))), ...list);
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
    el("span", { class: "muted" }, `since ${dated(alert.since)}`),
    stream === undefined ? null : el("a", { href: letters, key: `${alert.rule}:${of}` }, "Dead letters"),
  );
}
