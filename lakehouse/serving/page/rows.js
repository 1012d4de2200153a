// Gold rows as a table: the key, every field of the message, the other columns, and whether the row is final.

import { badge, el, exact, moment, table } from "./dom.js";
import { camel, words } from "./format.js";
import { sortable } from "./sorting.js";

const TIME = /^ts$|(At|Time|Start|End)$/;
const COORDINATES = new Set(["partition", "offset"]);
const MOST = 200;

export function isTimeField(name) {
  return TIME.test(name);
}

/** The columns that identify a series: the key without its time and Kafka coordinates. */
export function groupOf(described) {
  return described.key.filter((column) => column !== described.time && !COORDINATES.has(column));
}

/** A row's time in epoch milliseconds: from its key, its message, or its other columns. */
export function timeOf(described, row) {
  return Number(row.key[described.time] ?? row.data[camel(described.time)] ?? row.columns[described.time]);
}

/** The fields of a table's messages that are neither times nor part of its key. */
export function measures(described) {
  const keys = new Set(described.key.map(camel));
  return described.fields.filter((name) => !keys.has(name) && !isTimeField(name) && name !== "isFinal");
}

export function rowsTable(described, rows) {
  const others = described.fields.filter((name) => !described.key.some((one) => camel(one) === name) && name !== "isFinal");
  const says = rows.some((row) => row.isFinal !== null);
  const shown = rows.slice(0, MOST);
  const numeric = others.filter((name) => !isTimeField(name) && areNumbers(shown.map((row) => row.data[name])));
  const columns = Object.entries(described.columns);
  const cells = shown.map((row) => [
    ...described.key.map((column) => (isTimeField(camel(column)) ? moment(row.key[column]) : text(row.key[column]))),
    ...others.map((name) => value(name, row.data[name], numeric.includes(name))),
    ...columns.map(([name, type]) => other(row.columns[name], type)),
    ...(says ? [row.isFinal === null ? "" : badge(row.isFinal ? "final" : "provisional")] : []),
  ]);
  const headings = [...described.key, ...others, ...columns.map(([name]) => name), ...(says ? ["state"] : [])].map(words);
  const list = sortable(table(`Rows of ${described.name}`, headings, cells, { numeric: numeric.map(words), empty: "No row matches." }));
  return rows.length > MOST ? [list, el("p", { class: "muted" }, `Only the newest ${MOST} are listed and sorted.`)] : [list];
}

/** Whether a value is a number, including one that a double cannot represent. */
export function isNumber(found) {
  return typeof found === "number" || (typeof found === "string" && /^-?\d+(\.\d+)?([eE][-+]?\d+)?$/.test(found));
}

/** Whether a column contains only numbers; a payload may be any JSON. */
function areNumbers(values) {
  const known = values.filter((one) => one !== null && one !== undefined);
  return known.length > 0 && known.every(isNumber);
}

function value(name, found, numeric) {
  if (found === null || found === undefined) {
    return "";
  }
  return isTimeField(name) ? moment(found) : numeric ? exact(found) : text(found);
}

/** The value of a column that is not in the message, by its SQL type. */
function other(found, type) {
  return found === null ? "" : type === "timestamp" ? moment(found) : ["long", "integer"].includes(type) ? exact(found) : text(found);
}

function text(found) {
  return typeof found === "object" && found !== null ? el("code", {}, JSON.stringify(found)) : String(found ?? "");
}
