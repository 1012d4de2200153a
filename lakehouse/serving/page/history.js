// The streams' history: sparklines of the last day for the overview, and charts of an hour, a day or a week.

import { ask, query } from "./api.js";
import { distinguish, DURATIONS, lines, together } from "./chart.js";
import { el, loading, svg, swap, table } from "./dom.js";
import { briefly, clock, compact, count, dated, seconds } from "./format.js";
import { zone } from "./zone.js";

const AGAIN_MS = 60_000;
const [WIDTH, HEIGHT] = [72, 20];
const SPANS = [
  ["hour", 1, 12],
  ["day", 24, 144],
  ["week", 168, 168],
];
const rounded = (value) => count(Math.round(value * 10) / 10);
/** The measures in a stream's history: name in the API, title, description, and how to format a value. */
export const MEASURES = [
  { name: "landedPerS", title: "rate", about: "records per second read", tell: rounded },
  { name: "waitedS", title: "wait", about: "longest wait", tell: briefly },
  { name: "openLetters", title: "letters", about: "open dead letters", tell: compact },
];

/** Load the last day of all streams at intervals: `of(name)` returns a stream's history; `changed` is called after each. */
export function lastDay(changed) {
  let found = new Map();
  const again = async () => {
    try {
      const { streams } = await ask(query("/api/v1/history", { hours: 24, points: 48 }));
      found = new Map(streams.map((one) => [one.name, one]));
      changed();
    } catch {
      // The previous history stays, and the status above says what is unavailable.
    }
  };
  again();
  const timer = setInterval(() => document.hidden || again(), AGAIN_MS);
  return { of: (name) => found.get(name) ?? null, close: () => clearInterval(timer) };
}

/** A sparkline of one measure for a stream's last day; a dash if no value is known. */
export function sparkline(past, { name, about, tell }) {
  const values = past?.[name] ?? [];
  const known = values.filter((one) => one !== null);
  if (known.length === 0) {
    return el("span", { class: "muted" }, "–");
  }
  const most = Math.max(...known);
  const x = (index) => (values.length < 2 ? WIDTH / 2 : 1 + (index * (WIDTH - 2)) / (values.length - 1));
  const y = (value) => HEIGHT - 2 - (most === 0 ? 0 : (value * (HEIGHT - 4)) / most);
  const label = `${about} in the last 24 hours: from ${tell(Math.min(...known))} to ${tell(most)}, last ${tell(known.at(-1))}`;
  const path = values.map((value, index) => (value === null ? "" : `${(values[index - 1] ?? null) === null ? "M" : "L"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`));
  const last = values.lastIndexOf(known.at(-1));
  return svg(
    "svg",
    { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    svg("title", {}, label),
    svg("path", { d: path.join("") }),
    svg("circle", { cx: x(last), cy: y(values[last]), r: 1.8 }),
  );
}

/** A stream's history: buttons for the time span, a strip of its health, and a chart for each measure. `chosen` is called with a span's name and hours. */
export function pastOf(name, chosen) {
  const state = { span: SPANS[1], charts: null, isClosed: false };
  const [buttons, place] = [el("div", { class: "buttons", role: "group", "aria-label": "Span" }), el("div", {}, loading("the past"))];
  const node = el("section", { "aria-label": "Past" }, el("h2", {}, "Past"), buttons, place);
  const choose = (span) => {
    state.span = span;
    renewButtons();
    chosen(...span);
    again();
  };
  const renewButtons = () =>
    swap(buttons, ...SPANS.map((one) => el("button", { type: "button", key: `span:${one[0]}`, "aria-pressed": String(one === state.span), on: { click: () => choose(one) } }, one[0])));
  const again = async () => {
    const [, hours, points] = state.span;
    let shown;
    try {
      shown = drawn(name, await ask(query("/api/v1/history", { stream: name, hours, points })));
    } catch (problem) {
      shown = { node: el("p", { class: "trouble", role: "alert" }, problem.message), begin() {}, close() {} };
    }
    if (state.isClosed || state.span[1] !== hours) {
      return;
    }
    state.charts?.close();
    state.charts = shown;
    swap(place, shown.node);
    shown.begin();
  };
  renewButtons();
  const timer = setInterval(() => document.hidden || again(), AGAIN_MS);
  return {
    node,
    begin: again,
    close() {
      state.isClosed = true;
      clearInterval(timer);
      state.charts?.close();
    },
  };
}

function drawn(name, { start, stepS, streams }) {
  const [past] = streams;
  const times = past.word.map((_word, index) => new Date(start).getTime() / 1000 + index * stepS);
  const points = times.map((at, index) => ({ at, ...Object.fromEntries([...MEASURES.map((one) => one.name), "arrivedPerS"].map((each) => [each, past[each][index]])) }));
  if (past.word.every((one) => one === null)) {
    return { node: el("p", { class: "muted" }, "Nothing is recorded for this time. A live run records its streams every five minutes."), begin() {}, close() {} };
  }
  const rate = (name, measure) => ({ name, points: points.map((one) => ({ at: one.at, value: one[measure] })) });
  const rates = [rate("arrived", "arrivedPerS"), rate("read", "landedPerS")];
  const alone = (title, { name: measure, about }, axis) => lines(title, [{ name: about, points }], measure, stepS, axis, true);
  distinguish([...rates.map((one) => one.name), MEASURES[1].about, MEASURES[2].about]);
  const all = [
    lines("Records per second", rates, "value", stepS, { label: "records/s" }, true),
    alone("Longest wait", MEASURES[1], DURATIONS),
    alone("Open dead letters", MEASURES[2], { label: "letters" }),
  ];
  const rows = points.flatMap((one, index) =>
    past.word[index] === null
      ? []
      : [[clock(one.at * 1000), past.word[index], rounded(one.arrivedPerS ?? Number.NaN), rounded(one.landedPerS ?? Number.NaN), seconds(one.waitedS), count(one.openLetters)]],
  );
  const values = table("Values", [`from (${zone()})`, "health", "arrived/s", "read/s", "longest wait", "open letters"], rows.reverse(), { numeric: ["arrived/s", "read/s", "longest wait", "open letters"] });
  const node = el("div", {}, strip(name, past.word, times), el("div", { class: "charts" }, ...all.map((one) => el("div", {}, one.node))), el("details", {}, el("summary", {}, "Values"), values));
  return together(all, node);
}

/** A strip with a piece for each interval, coloured by its health, and text with the share of each health. */
function strip(name, words, times) {
  const pieces = words.map((word, index) => el("i", { class: word ?? "none", title: `${dated(times[index] * 1000)}: ${word ?? "not recorded"}` }));
  const known = words.filter((one) => one !== null);
  const shares = [...new Set(known)].map((word) => `${word} ${Math.round((100 * known.filter((one) => one === word).length) / known.length)} %`);
  return el("div", { class: "health", role: "img", "aria-label": `Health of ${name}: ${shares.join(", ")}` }, el("div", { class: "strip" }, ...pieces), el("span", { class: "muted" }, shares.join(", ")));
}
