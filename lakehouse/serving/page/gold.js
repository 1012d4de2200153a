// A gold table: its rows by key and time, a chart, and the SQL and the URL that return the same rows.

import { ask, declared, query } from "./api.js";
import { copyButton } from "./copying.js";
import { calm, el, field, loading, moment, select, swap } from "./dom.js";
import { drawn } from "./drawing.js";
import { count, words } from "./format.js";
import { live, on } from "./live.js";
import { groupOf, rowsTable, timeOf } from "./rows.js";
import { sqlOf } from "./sql.js";
import { ailing, sinceWhen } from "./states.js";
import { zone } from "./zone.js";

const SPANS = [["900", "15 minutes"], ["3600", "hour"], ["21600", "6 hours"], ["86400", "24 hours"], ["604800", "7 days"], ["", "everything"]];
const SHORT = 3600; // windows up to this length are first shown for six hours, and longer ones for all times
const MOST = 1000;
const PAUSE_MS = 1000;

export function open(root, parameters, name) {
  const state = { parameters, close: () => {}, isClosed: false };
  begin(root, name, state).catch((problem) => {
    swap(root, el("h1", {}, "Gold"), el("p", { class: "trouble", role: "alert" }, problem.message));
  });
  return {
    update: (changed) => {
      state.parameters = changed;
      state.again?.(true);
    },
    close() {
      state.isClosed = true;
      state.close();
    },
  };
}

async function begin(root, name, state) {
  const streams = await declared();
  const all = streams.flatMap((stream) => stream.tables.map((one) => ({ ...one, stream: stream.name })));
  const table = name === undefined ? all[0] : all.find((one) => one.name === name);
  root.append(el("h1", {}, "Gold"), tabs(streams, table));
  if (table === undefined) {
    root.append(el("p", { class: "trouble" }, name === undefined ? "No stream has a gold table." : `There is no table ${name}.`));
    return;
  }
  const parts = Object.fromEntries(["form", "facts", "picture", "rows", "same"].map((one) => [one, el("div", { class: one })]));
  parts.facts.append(loading("the rows"));
  parts.form.append(form(table, chosen(table, state.parameters), new Map(groupOf(table).map((column) => [column, new Set()]))));
  root.append(...Object.values(parts));
  let chart = null;
  let isBusy = false;
  let timer = null;
  const seen = new Map(groupOf(table).map((column) => [column, new Set()]));
  const again = async (isNew) => {
    if (isBusy) {
      timer ??= setTimeout(() => { timer = null; again(false); }, PAUSE_MS);
      return;
    }
    isBusy = true;
    try {
      const wanted = chosen(table, state.parameters);
      const found = await rowsOf(table, wanted);
      await calm();
      if (!state.isClosed) {
        found.rows.forEach((row) => seen.forEach((values, column) => values.add(row.key[column])));
        if (isNew || !parts.form.contains(document.activeElement)) {
          swap(parts.form, form(table, wanted, seen));
        }
        swap(parts.facts, ...facts(table, found));
        chart = draw(parts.picture, chart, drawn(table, found.rows, wanted));
        swap(parts.rows, rowsTable(table, found.rows));
        swap(parts.same, ...same(table, wanted, found));
      }
    } catch (problem) {
      chart?.close();
      chart = null;
      swap(parts.form, form(table, chosen(table, state.parameters), seen));
      swap(parts.picture);
      swap(parts.facts, el("p", { class: problem.status === 404 ? "notice" : "trouble", role: "alert" }, problem.message));
    }
    isBusy = false;
  };
  state.again = again;
  const off = on("table", (changed) => {
    if (changed === `gold.${table.name}` && timer === null) {
      timer = setTimeout(() => { timer = null; again(false); }, PAUSE_MS);
    }
  });
  const themed = () => {
    chart?.close();
    chart = null;
    again(false);
  };
  addEventListener("theme", themed);
  state.close = () => {
    off();
    removeEventListener("theme", themed);
    clearTimeout(timer);
    chart?.close();
  };
  if (state.isClosed) {
    state.close();
    return;
  }
  await again(true);
}

/** Show a chart, or update the current one if it is of the same kind. */
function draw(place, before, next) {
  if (before !== null && before.kind !== undefined && before.kind === next.kind) {
    before.take(next);
    return before;
  }
  before?.close();
  swap(place, next.node);
  next.begin();
  return next;
}

function tabs(streams, shown) {
  const items = streams.map((stream) =>
    el(
      "li",
      {},
      el("span", { class: "muted" }, stream.name),
      ...stream.tables.map((one) =>
        el("a", { href: `#/gold/${one.name}`, "aria-current": one.name === shown?.name ? "page" : null }, one.name),
      ),
    ),
  );
  return el("nav", { class: "tabs", "aria-label": "Tables" }, el("ul", {}, ...items));
}

function chosen(table, parameters) {
  const keys = Object.fromEntries(groupOf(table).map((column) => [column, parameters[column] ?? ""]));
  return { keys, within: parameters.within ?? ((table.windowSeconds ?? Infinity) > SHORT ? "" : "21600") };
}

/** The newest rows in the time span that ends with the newest row; `path` is the URL that returns them. */
async function rowsOf(table, { keys, within }) {
  const filters = { ...keys, order: "newest" };
  let start = null;
  if (table.time !== null && within !== "") {
    const newest = await ask(query(table.links.rows, { ...filters, limit: 1 }));
    if (newest.rows.length > 0) {
      start = timeOf(table, newest.rows[0]) - Number(within) * 1000;
    }
  }
  const path = query(table.links.rows, { ...filters, start, limit: MOST });
  return { ...(await ask(path)), path, start };
}

function form(table, wanted, seen) {
  const inputs = groupOf(table).map((column) => {
    const list = `known-${column}`;
    const known = [...seen.get(column)].filter((one) => one !== null).slice(0, 200).sort();
    return field(
      words(column),
      [
        el("input", { name: column, value: wanted.keys[column], list, key: `i:${column}`, placeholder: "any", autocomplete: "off", spellcheck: "false" }),
        el("datalist", { id: list }, ...known.map((one) => el("option", { value: one }))),
      ],
    );
  });
  const span = table.time === null ? null : field("Span before the newest row", select("within", SPANS, wanted.within));
  const node = el("form", { class: "filters", role: "search" }, ...inputs, span, el("button", { type: "submit", class: "main" }, "Search"));
  const go = () => {
    const { within, ...keys } = Object.fromEntries(new FormData(node));
    const path = query(`#/gold/${table.name}`, keys);
    location.hash = within === undefined ? path : `${path}${path.includes("?") ? "&" : "?"}within=${within}`;
  };
  node.addEventListener("change", go);
  node.addEventListener("submit", (event) => {
    event.preventDefault();
    go();
  });
  return node;
}

function facts(table, found) {
  const provisional = found.rows.filter((row) => row.isFinal === false).length;
  const stream = live.status?.streams.find((one) => one.name === table.stream);
  const state = stream?.tables.find((one) => one.name === `gold.${table.name}`);
  const settings = Object.entries(table.settings ?? {}).map(([name, value]) => `${name} ${value}`);
  const said = [
    `${count(found.rows.length)} ${found.rows.length === 1 ? "row" : "rows"}${found.next === null ? "" : ", the newest"}${state?.rows ? ` of ${count(state.rows)}` : ""}`,
    provisional === 0 ? null : `${count(provisional)} provisional`,
    `version ${count(found.version)}`,
    ...settings,
    ...sent(stream?.queries.find((one) => one.name === `export.${table.name}`)),
  ];
  return [el("p", { class: "facts" }, ...said.filter(Boolean).map((one) => el("span", {}, one)))];
}

/** How far the export has sent a table, when, and which stores lack rows; nothing if that is unknown. */
function sent(query) {
  if (query === undefined) {
    return [];
  }
  const told = query.done === null ? "nothing sent yet" : [`sent up to version ${count(query.done)} at `, moment(query.doneAt), ` ${zone()}`];
  const late = ailing({ queries: [query] }).map((one) => el("span", { class: "late" }, `▲ ${one.name} ${one.word}`, " ", sinceWhen(one.since, "")));
  return [told, ...late];
}

function same(table, wanted, found) {
  const sql = sqlOf(table, wanted.keys, found.start, MOST);
  return [
    el("h2", {}, "The same rows in SQL and the API"),
    el("div", { class: "same-row" }, el("span", {}, "SQL"), el("code", {}, sql), copyButton(sql, "SQL")),
    el("div", { class: "same-row" }, el("span", {}, "API"), el("a", { href: found.path }, el("code", {}, found.path)), copyButton(new URL(found.path, location.href).href, "URL")),
  ];
}
