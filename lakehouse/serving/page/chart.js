// Charts of windows, drawn by uPlot: the percentile bands of one series, or several series compared.

import { el } from "./dom.js";
import { clock, count, dated, seconds, words } from "./format.js";
import { zone } from "./zone.js";

const HEIGHT = 300;
const LOW = 190; // the height if there are several charts
const [MINUTE, HOUR, DAY] = [60, 3600, 86400];
/** Allowed distances between the labels of a time axis, in seconds. */
const STEPS = [1, 5, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 30 * DAY, 90 * DAY, 365 * DAY];
const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6", "--line-7", "--line-8"];
const DASHES = [[], [6, 4], [2, 3]];

/** An axis of durations in seconds. */
export const DURATIONS = { label: "duration", tell: seconds, incrs: [0.1, 0.5, ...STEPS] };

/** A chart of one series in the colour of the series `of`: its average, and the bands p50 to p90 and p90 to p99. `axis` is as in `lines`. */
export function bands(name, of, points, windowSeconds, axis) {
  const line = lineOf(of).stroke;
  const [wide, close] = [`${line}1a`, `${line}38`]; // with an alpha of 10 and 22 %
  const { at, columns } = spread(points, windowSeconds, ["p99", "p90", "p50", "avg", "min", "max"]);
  const series = [
    { label: "p99", stroke: line, width: 1, dash: [2, 3], points: { show: false } },
    { label: "p90", stroke: line, width: 1, dash: [6, 4], points: { show: false } },
    { label: "p50", stroke: line, width: 2 },
    { label: "avg", stroke: line, width: 2, dash: [10, 3, 2, 3] },
    { label: "min", show: false, stroke: colour("--muted"), width: 1 },
    { label: "max", show: false, stroke: colour("--muted"), width: 1 },
  ];
  const options = {
    series,
    axis,
    bands: [
      { series: [1, 2], fill: wide },
      { series: [2, 3], fill: close },
    ],
  };
  return chart(`${name}: percentiles and average`, points, windowSeconds, [at, ...columns], options);
}

const KEY = "lakehouse.series";
const STYLES = COLOURS.length * DASHES.length;
const places = new Map(remembered()); // the number of each series' style, the series shown longest ago first

/**
 * Give each series name a colour and a dash, the same in all charts, which this browser remembers. New names get free
 * ones in alphabetical order, or else those of the series shown longest ago. Call it with the names of all charts
 * before drawing them.
 */
export function distinguish(names) {
  const shown = [...new Set(names)].sort();
  for (const name of shown.filter((one) => places.has(one))) {
    const at = places.get(name);
    places.delete(name);
    places.set(name, at);
  }
  for (const name of shown.filter((one) => !places.has(one))) {
    const old = places.size < STYLES ? undefined : [...places.keys()].find((one) => !shown.includes(one));
    const taken = new Set(places.values());
    let free = places.get(old) ?? 0;
    while (old === undefined && taken.has(free)) {
      free += 1;
    }
    places.delete(old);
    places.set(name, free);
  }
  try {
    localStorage.setItem(KEY, JSON.stringify([...places]));
  } catch {
    // The colours last as long as the page.
  }
}

function remembered() {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "[]").filter(([, at]) => Number.isInteger(at));
  } catch {
    return [];
  }
}

/** The style of a series' line; up to 24 names have different styles. */
function lineOf(name) {
  const at = places.get(name) ?? 0;
  const index = at % COLOURS.length;
  const dash = Math.floor(index / DASHES.length) + Math.floor(at / COLOURS.length);
  return { stroke: colour(COLOURS[index]), dash: DASHES[dash % DASHES.length] };
}

/** The places of the values between two gaps, which no line would show. */
function alone(values) {
  const isGap = (index) => (values[index] ?? null) === null;
  return [...values.keys()].filter((index) => !isGap(index) && isGap(index - 1) && isGap(index + 1));
}

/**
 * A chart of one `measure` of several series, `{name, points}`; `isLow` if it is one of several charts. `axis` has
 * the `label` of the value axis, with the unit, and optionally `tell`, which formats a value, and `incrs`, the
 * distances between the axis' labels.
 */
export function lines(title, compared, measure, windowSeconds, axis, isLow = false) {
  const all = compared.flatMap((one) => one.points);
  const times = whole([...new Set(all.map((one) => one.at))].sort((one, other) => one - other), windowSeconds);
  const columns = compared.map(({ points }) => {
    const known = new Map(points.map((one) => [one.at, number(one[measure])]));
    return times.map((at) => known.get(at) ?? null);
  });
  const points = { filter: (plot, index, areShown) => (areShown ? null : alone(plot.data[index])) };
  const series = compared.map(({ name }) => ({ label: name, ...lineOf(name), width: 2, points }));
  return chart(title, all, windowSeconds, [times, ...columns], { series, axis, height: isLow ? LOW : HEIGHT });
}

/** Combine several charts into one; `node` contains them. */
export function together(charts, node) {
  return {
    kind: charts.map((one) => one.kind).join("\n\n"),
    node,
    charts,
    begin: () => charts.forEach((one) => one.begin()),
    take: (other) => charts.forEach((one, index) => one.take(other.charts[index])),
    close: () => charts.forEach((one) => one.close()),
  };
}

/** A chart; `take` replaces its data with data of the same kind, and keeps the zoom. */
function chart(title, points, windowSeconds, data, { series, axis, bands: filled = [], height = HEIGHT }) {
  const place = el("div", { class: "chart", role: "img", "aria-label": summary(title, points) });
  const note = el("span", { class: "provisional-note" });
  const node = el("figure", {}, el("figcaption", {}, title, " ", note), place);
  const shown = { data, provisional: [] };
  let plot = null;
  const tell = (now, all) => {
    shown.data = now;
    shown.provisional = all.filter((one) => one.isFinal === false).map((one) => one.at);
    note.textContent = shown.provisional.length === 0 ? "" : "shaded: provisional windows";
    place.setAttribute("aria-label", summary(title, all));
  };
  tell(data, points);
  const sized = new ResizeObserver(() => {
    if (plot !== null && place.clientWidth > 0 && place.clientWidth !== plot.width) {
      plot.setSize({ width: place.clientWidth, height });
    }
  });
  return {
    kind: [title, axis.label, ...series.map((one) => one.label)].join("\n"),
    node,
    source: { data, points },
    begin() {
      plot = new window.uPlot(options(place, { series, axis, bands: filled, height }, shown, windowSeconds), data, place);
      plot.root.setAttribute("aria-hidden", "true");
      sized.observe(place);
    },
    take(other) {
      const { min, max } = plot.scales.x;
      const isWhole = min <= shown.data[0][0] && max >= shown.data[0].at(-1);
      tell(other.source.data, other.source.points);
      plot.setData(shown.data, isWhole);
      isWhole || plot.redraw();
    },
    close() {
      sized.disconnect();
      plot?.destroy();
      plot = null;
    },
  };
}

function options(place, { series, axis: { label, tell = count, incrs }, bands: filled, height }, shown, windowSeconds) {
  const [muted, line, shade, surface] = ["--muted", "--line", "--shade", "--surface"].map(colour);
  const axis = { stroke: muted, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
  return {
    width: Math.max(200, place.clientWidth),
    height,
    tzDate: (at) => window.uPlot.tzDate(new Date(at * 1000), zone()),
    scales: { x: { time: true } },
    axes: [{ ...axis, incrs: STEPS.filter((one) => one >= Math.min(windowSeconds, DAY)), space: 58, values: (_plot, times) => times.map((...one) => axisTime(windowSeconds, ...one)) }, { ...axis, ...(incrs && { incrs }), size: 64, label, labelFont: axis.font, labelSize: 18, values: (_plot, values) => values.map(tell) }],
    series: [
      { label: zone(), value: (_plot, at) => (at === null ? "–" : clock(at * 1000)) },
      ...series.map((one) => ({ value: (_plot, value) => (value === null ? "–" : tell(value)), ...one, points: { fill: surface, ...one.points } })),
    ],
    bands: filled,
    cursor: { drag: { x: true, y: false } },
    hooks: { drawClear: [(plot) => shaded(plot, shown.provisional, windowSeconds, shade)] },
  };
}

/** "05:10", with seconds for windows below a minute, and the date at the start of a day or of the axis. */
function axisTime(windowSeconds, at, index, times) {
  const [day, time] = clock(at * 1000).split(" ");
  const isNewDay = index === 0 || clock(times[index - 1] * 1000).slice(0, 10) !== day;
  const told = windowSeconds < MINUTE ? time : time.slice(0, 5);
  return isNewDay ? `${told}\n${day}` : told;
}

function shaded(plot, provisional, windowSeconds, colourOf) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.fillStyle = colourOf;
  for (const at of new Set(provisional)) {
    const from = Math.max(bbox.left, plot.valToPos(at - windowSeconds / 2, "x", true));
    const to = Math.min(bbox.left + bbox.width, plot.valToPos(at + windowSeconds / 2, "x", true));
    ctx.fillRect(from, bbox.top, Math.max(0, to - from), bbox.height);
  }
  ctx.restore();
}

/** The points' values by name; a missing window between two others breaks the line. */
function spread(points, windowSeconds, names) {
  const at = whole(points.map((one) => one.at), windowSeconds);
  const known = new Map(points.map((one) => [one.at, one]));
  return { at, columns: names.map((name) => at.map((time) => number(known.get(time)?.[name]))) };
}

function whole(times, windowSeconds) {
  return times.flatMap((at, index) => (index > 0 && at - times[index - 1] > windowSeconds ? [times[index - 1] + windowSeconds, at] : [at]));
}

function number(value) {
  return value === null || value === undefined ? null : Number(value);
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function summary(title, points) {
  const times = points.map((one) => one.at * 1000);
  const [first, last] = [Math.min(...times), Math.max(...times)];
  return `${title}, from ${clock(first)} to ${dated(last)}; the table below contains the values`;
}
