// Charts of a table's rows: percentile bands of one series, several series compared, or bars.

import { bands, distinguish, lines, together } from "./chart.js";
import { el, exact } from "./dom.js";
import { camel, unitOf, words } from "./format.js";
import { groupOf, isNumber, measures, timeOf } from "./rows.js";

const MOST_SERIES = 8;
const MOST_LINKS = 100; // to series, including those that are not in the chart
const MOST_CHARTS = 12;
const MOST_BARS = 30;
const MOST_TIMES = 5; // times the threshold; if a bar is longer, the scale is logarithmic, so that the others stay visible

/** A chart of rows (newest first): its node, `begin` (to be called once the node is in the page), and `close`. */
export function drawn(table, rows, wanted) {
  const numeric = measures(table).filter((name) => rows.some((row) => isNumber(row.data[name])));
  if (rows.length === 0 || numeric.length === 0) {
    return still(el("div", {}));
  }
  const measure = numeric.includes("avg") ? "avg" : numeric[0];
  if (table.windowSeconds === null) {
    return table.time === null ? bars(table, rows, measure) : still(el("div", {}));
  }
  const series = grouped(table, rows, wanted);
  if (series.length === 1 && numeric.includes("p50") && numeric.includes("p99")) {
    const [{ name, rows: [row] }] = series;
    const unit = unitOf(metricOf(table, row));
    const of = seriesOf(table, row);
    distinguish([of]);
    return bands(name, of, points(table, series[0].rows), table.windowSeconds, { label: unit || "value" });
  }
  const apart = unitsOf(table, series);
  const drawable = [...apart].slice(0, MOST_CHARTS).map(([unit, found]) => [unit, found, found.slice(0, MOST_SERIES)]);
  distinguish(drawable.flatMap(([, , first]) => first.map((one) => one.name)));
  const charts = drawable.map(([unit, found, first]) => {
    const shown = first.map((one) => ({ ...one, points: points(table, one.rows) }));
    const some = shown.length < found.length ? `${shown.length} of ${found.length}` : `${found.length}`;
    const title = `${unit === "" ? "" : `${unit}: `}${words(measure)} of ${some} series`;
    const axis = { label: [words(measure), unitOf(unit) && `(${unitOf(unit)})`].filter(Boolean).join(" ") };
    const chart = lines(title, shown, measure, table.windowSeconds, axis, apart.size > 1);
    const links = found.slice(0, MOST_LINKS).map((one) => el("a", { class: "choice", href: address(table, one.rows[0], wanted) }, one.name));
    const choose = el("details", { class: "muted" }, el("summary", {}, "Show one series with its percentiles"), ...links);
    return { ...chart, node: el("div", {}, chart.node, numeric.includes("p50") && shown.length > 1 ? choose : null) };
  });
  const left = apart.size - charts.length;
  const more = left > 0 ? el("p", { class: "muted" }, `${left} more charts: choose one above`) : null;
  return together(charts, el("div", {}, el("div", { class: charts.length > 1 ? "charts" : null }, ...charts.map((one) => one.node)), more));
}

/** A row's metric, the last of several key columns, or "" if there is only one. */
function metricOf(table, row) {
  const columns = groupOf(table);
  return columns.length > 1 ? String(row.key[columns.at(-1)]) : "";
}

/** The name of a row's series without the metric, which has the same colour in all charts. */
function seriesOf(table, row) {
  const columns = groupOf(table);
  return columns.slice(0, Math.max(1, columns.length - 1)).map((column) => row.key[column]).join(" · ");
}

/** Group series by metric: each metric has its own unit and axis. */
function unitsOf(table, series) {
  const units = new Map();
  for (const one of series) {
    const unit = metricOf(table, one.rows[0]);
    units.set(unit, [...(units.get(unit) ?? []), { ...one, name: seriesOf(table, one.rows[0]) }]);
  }
  return new Map([...units].sort(([one], [other]) => (one < other ? -1 : 1)));
}

function still(node) {
  return { node, begin() {}, close() {} };
}

/** Group rows by series; a series' name consists of the key columns that are not filtered. */
function grouped(table, rows, wanted) {
  const told = groupOf(table).filter((column) => !wanted.keys[column]);
  const columns = told.length === 0 ? groupOf(table) : told;
  const groups = new Map();
  for (const row of rows) {
    const name = columns.map((column) => row.key[column]).join(" · ");
    groups.has(name) ? groups.get(name).push(row) : groups.set(name, [row]);
  }
  return [...groups].map(([name, found]) => ({ name, rows: found })).sort((one, other) => other.rows.length - one.rows.length || (one.name < other.name ? -1 : 1));
}

function points(table, rows) {
  return rows.map((row) => ({ at: timeOf(table, row) / 1000, isFinal: row.isFinal, ...row.data })).reverse();
}

function address(table, row, wanted) {
  const keys = groupOf(table).map((column) => [column, row.key[column]]);
  return `#/gold/${table.name}?${new URLSearchParams([...keys, ["within", wanted.within]])}`;
}

/** Bars for rows without windows, longest first; a threshold in the table's settings is marked. */
function bars(table, rows, measure) {
  const threshold = Object.entries(table.settings ?? {}).find(([name, value]) => name.endsWith("threshold") && isNumber(value));
  const limit = threshold === undefined ? null : Number(threshold[1]);
  const shown = [...rows].sort((one, other) => Number(other.data[measure]) - Number(one.data[measure])).slice(0, MOST_BARS);
  const values = shown.map((row) => Number(row.data[measure]));
  const greatest = Math.max(...values, 1e-9);
  const isLog = limit !== null && limit > 0 && greatest > limit * MOST_TIMES;
  const most = limit === null || isLog ? greatest : Math.max(limit * 1.25, greatest);
  const least = Math.min(limit ?? most, ...values.filter((one) => one > 0)) / 2; // so that the smallest bar is visible
  const share = (value) => (isLog ? Math.log(Math.max(value, least) / least) / Math.log(most / least) : Math.max(0, value) / most);
  const percent = (value) => `${100 * share(Number(value))}%`;
  const items = shown.map((row) => {
    const value = row.data[measure];
    const isOver = limit !== null && Number(value) >= limit;
    const mark = limit === null ? null : el("b", { class: "limit", style: { left: percent(limit) } });
    return el(
      "li",
      { class: isOver ? "over" : null },
      el("span", { class: "name" }, groupOf(table).map((column) => row.key[column] ?? row.data[camel(column)]).join(" · ")),
      el("span", { class: "track" }, el("i", { style: { width: percent(value) } }), mark),
      el("span", { class: "number" }, exact(value), isOver ? el("span", { class: "badge behind" }, "over") : null),
    );
  });
  const about = limit === null ? words(measure) : `${words(measure)}${isLog ? " (logarithmic scale)" : ""}, with the threshold of ${threshold[1]} marked`;
  return still(el("figure", {}, el("figcaption", { class: "muted" }, about), el("ul", { class: "bars" }, ...items)));
}
