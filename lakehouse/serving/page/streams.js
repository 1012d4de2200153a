// The overview's table: a line for each stream, worst first, with the reasons below it.

import { query } from "./api.js";
import { badge, calm, el, exact, renew, scrolling, swap } from "./dom.js";
import { briefly, compact, count, UNKNOWN } from "./format.js";
import { lastDay, MEASURES, sparkline } from "./history.js";
import { advice, ailing, alsoFails, arriving, briefReason, failing, isUnrun, landing, sinceWhen, writtenAgoS } from "./states.js";

const CAPTION = "Streams, worst first";
const GROUPS = [
  { columns: [{ kind: "state", label: "state", tell: words }] },
  {
    title: "records/s",
    kind: "rates",
    columns: [
      { label: "in", about: "records/s in", tell: (stream) => rounded(arriving(stream)) },
      { label: "read", about: "records/s read", tell: (stream) => rounded(landing(stream)) },
    ],
  },
  {
    title: "newest row, ago",
    kind: "ages",
    columns: [
      ...["bronze", "silver", "gold"].map((layer) => ({ label: layer, about: `newest in ${layer}`, tell: (stream, now) => written(stream, now, layer) })),
      { label: "stores", about: "newest in stores", tell: sent },
    ],
  },
  {
    columns: [
      { kind: "waiting", label: "waiting", tell: waiting },
      { kind: "open", label: "open letters", tell: letters },
      { kind: "round", label: "last round", tell: (stream, now) => written(stream, now, null) },
    ],
  },
  {
    title: "last 24 hours",
    kind: "past",
    columns: MEASURES.map((measure) => ({ kind: "past", label: measure.title, about: measure.about, tell: (_stream, _now, past) => sparkline(past, measure) })),
  },
];
const COLUMNS = GROUPS.flatMap((group) => group.columns);

/** The address of a stream's own view. */
export function address(name) {
  return `#/streams/${encodeURIComponent(name)}`;
}

/** The table and the reasons: their node, `close`, and `update`, which takes a status and keeps the order of its streams. */
export function streamsTable() {
  const body = el("tbody", {});
  const table = el("table", { class: "streams" }, el("caption", { class: "unseen" }, CAPTION), ...spans(), headings(), body);
  const reasons = el("ul", { class: "reasons", "aria-label": "Reasons" });
  const rows = new Map();
  let order = [];
  let shown = null;
  const past = lastDay(() => shown === null || fill(shown));
  const fill = (status) => {
    for (const stream of status.streams) {
      if (!rows.has(stream.name)) {
        rows.set(stream.name, row(stream.name));
      }
      rows.get(stream.name).update(stream, status.at, past.of(stream.name));
    }
  };
  const place = async () => {
    await calm();
    swap(body, ...order.map((name) => rows.get(name).node));
  };
  return {
    node: el("div", {}, scrolling(CAPTION, table), reasons),
    close: past.close,
    update(status) {
      shown = status;
      fill(status);
      const names = status.streams.map((one) => one.name);
      if (names.length !== order.length || names.some((name, index) => name !== order[index])) {
        order = names;
        place();
      }
      renew(reasons, ...told(status));
    },
  };
}

function spans() {
  return [el("colgroup", {}), ...GROUPS.map((group) => el("colgroup", { span: group.columns.length, class: group.kind ?? null }))];
}

function headings() {
  const alone = ({ kind, label }) => el("th", { scope: "col", rowspan: 2, class: kind === "state" ? kind : `${kind} number` }, label);
  const above = GROUPS.map(({ title, kind, columns }) =>
    title === undefined ? columns.map(alone) : el("th", { scope: "colgroup", colspan: columns.length, class: `${kind} group` }, title),
  );
  const below = GROUPS.filter((group) => group.title !== undefined).flatMap((group) => group.columns);
  return el(
    "thead",
    {},
    el("tr", {}, el("th", { scope: "col", rowspan: 2, class: "name" }, "stream"), ...above),
    el("tr", {}, ...below.map(({ kind, label }) => el("th", { scope: "col", class: kind === "past" ? "past number" : "number" }, label))),
  );
}

function row(name) {
  const look = { state: "state", past: "past number" };
  const cells = COLUMNS.map(({ kind, label, about }) => el("td", { class: look[kind] ?? "number", "data-about": about ?? label }));
  const link = el("a", { href: address(name), key: `stream:${name}` }, name);
  return {
    node: el("tr", { "data-stream": name }, el("th", { scope: "row" }, link), ...cells),
    update(stream, now, past) {
      COLUMNS.forEach(({ tell }, index) => renew(cells[index], tell(stream, now, past)));
    },
  };
}

function words(stream) {
  return [badge(stream.health.word), ...(alsoFails(stream) ? [" ", badge("failing", "blocked")] : [])];
}

function rounded(value) {
  return value === null ? UNKNOWN : count(value < 10 ? Math.round(value * 10) / 10 : Math.round(value));
}

function written(stream, now, layer) {
  return briefly(writtenAgoS(stream, now, layer));
}

function sent(stream, now) {
  const stores = [...new Set(ailing(stream).map((one) => `${one.name} ${one.word}`))];
  return stores.length === 0 ? written(stream, now, "export") : el("span", { class: "late" }, `▲ ${stores.join(", ")}`);
}

/** The longest wait; "≥" if another layer's backlog is unknown. */
function waiting({ waiting: longest, backlogs }) {
  if (longest === null) {
    return "?";
  }
  const isPart = backlogs.some((one) => one.records === null);
  const number = el("data", { value: longest.records, title: count(longest.records) }, compact(longest.records));
  return [isPart ? "≥ " : null, number, longest.records === 0 ? null : el("span", { class: "muted" }, ` ${longest.seconds === null ? "?" : briefly(longest.seconds)}`)];
}

function letters({ name, openLetters: open }) {
  const link = query("#/letters", { stream: name });
  const about = `${count(open)} open dead ${open === 1 ? "letter" : "letters"} of ${name}`;
  return open === null ? "?" : el("a", { href: link, key: link, "aria-label": about }, exact(open));
}

/** A line for each problem; streams with the same problem share a line. */
function told(status) {
  const lines = new Map();
  for (const stream of status.streams) {
    for (const cause of causes(stream, status)) {
      const key = JSON.stringify([cause.word, cause.said]);
      lines.set(key, { ...cause, names: new Set([...(lines.get(key)?.names ?? []), stream.name]) });
    }
  }
  return [...lines.values()].map(({ word, kind, said, what = said, since, names }) =>
    el(
      "li",
      {},
      badge(word, kind ?? word),
      el("strong", {}, [...names].join(", ")),
      el("span", { class: "reason" }, what),
      names.size === 1 ? sinceWhen(since, said) : null,
    ),
  );
}

/** A line that also says what to do. */
function advised(word, said, state) {
  return { word, said, what: advice(said, state), since: state.since };
}

function causes(stream, status) {
  const { health, gate } = stream;
  const isClosed = gate !== null && !gate.isOpen && health.word !== "blocked";
  return [
    ...(health.word === "well" ? [] : [advised(health.word, briefReason(stream, status), health)]),
    ...(isClosed ? [{ word: "gate closed", kind: "blocked", said: gate.reasons.join("; "), since: gate.changedAt }] : []),
    ...failing(stream).map((one) => ({ word: "failing", kind: "blocked", said: `${one.name}: ${one.error}` })),
    ...ailing(stream)
      .filter((one) => (one.lacksRows || one.word === "away") && !health.reason.includes(one.reason) && one.reason !== status.brokerReason)
      .map((one) => advised(one.word, `${one.name}: ${one.reason}`, one)),
    ...(isUnrun(stream) ? [{ word: "not run", kind: "behind", said: "no running process" }] : []),
  ];
}
