// A stream's path from its topics to its stores, drawn once and then updated.

import { el, fit, say, svg } from "./dom.js";
import { briefly, clock, compact, count, rate } from "./format.js";
import { perSecond } from "./live.js";
import { ailing, arriving, layerOf, tablesOf, total, writtenAgoS } from "./states.js";

const LAYERS = ["bronze", "silver", "gold", "export"];
const LATE = new Set(["behind", "stalled", "stopped"]);
const LINES = 4;
const PADDING = 12;
const NODES = [
  { id: "topic", title: "Topic" },
  { id: "bronze", title: "Bronze" },
  { id: "silver", title: "Silver" },
  { id: "letters", title: "Dead letters" },
  { id: "gold", title: "Gold" },
];
const STORES = [
  { name: "kafka", label: "Kafka" },
  { name: "redis", label: "Redis" },
];
const EDGES = [
  { id: "bronze", from: "topic", to: "bronze" },
  { id: "silver", from: "bronze", to: "silver" },
  { id: "refused", from: "silver", to: "letters" },
  { id: "gold", from: "silver", to: "gold" },
];
const WIDE = {
  width: 1120,
  node: [160, 102],
  at: { topic: [0, 2], bronze: [240, 2], silver: [480, 2], letters: [480, 122], gold: [720, 2] },
  storeAt: (index) => [960, 2 + 120 * index],
  label: { bronze: [200, 40], silver: [440, 40], gold: [680, 40], export: [920, 40] },
};
const TALL = {
  width: 340,
  node: [164, 102],
  at: { topic: [0, 2], bronze: [0, 174], silver: [0, 346], letters: [176, 346], gold: [0, 518] },
  storeAt: (index) => [176 * (index % 2), 690 + 120 * Math.floor(index / 2)],
  label: { bronze: [94, 130], silver: [94, 302], gold: [94, 474], export: [94, 646] },
};
const narrow = matchMedia("(max-width: 1000px)");

/**
 * Draw a pipeline. `open(layer, title)` is called for the selected node. Returns the drawing's node, `update`,
 * `exportTo`, which is called with the stores, and `close`.
 */
export function pipeline(name, open) {
  const node = el("div", { class: "pipeline" });
  let drawing = null;
  let last = null;
  let stores = STORES;
  const draw = () => {
    drawing = drawn(name, narrow.matches ? TALL : WIDE, stores, open);
    node.replaceChildren(drawing.node);
    if (last !== null) {
      fill(drawing, ...last);
    }
  };
  narrow.addEventListener("change", draw);
  draw();
  return {
    node,
    update(stream, now) {
      last = [stream, now];
      fill(drawing, stream, now);
    },
    exportTo(found) {
      if (JSON.stringify(found) !== JSON.stringify(stores)) {
        stores = found;
        draw();
      }
    },
    close: () => narrow.removeEventListener("change", draw),
  };
}

function drawn(name, plan, stores, open) {
  const texts = {};
  const [width, height] = plan.node;
  const at = { ...plan.at, ...Object.fromEntries(stores.map((one, index) => [`to ${one.name}`, plan.storeAt(index)])) };
  const all = [...NODES, ...stores.map((one) => ({ id: `to ${one.name}`, title: one.label }))];
  const bottom = Math.max(...Object.values(at).map(([, y]) => y)) + height + 2;
  const nodes = all.map(({ id, title }) => {
    const [x, y] = at[id];
    texts[id] = Array.from({ length: LINES }, (_none, line) => svg("text", { x: PADDING, y: 42 + line * 17, class: "line" }));
    const choose = () => open(id, title);
    return svg(
      "g",
      {
        class: `node ${id.replace(" ", "-")}`,
        transform: `translate(${x + 1} ${y})`,
        tabindex: "0",
        role: "button",
        on: {
          click: choose,
          keydown: (event) => {
            if (event.key === "Enter" || event.key === " ") {
              event.preventDefault();
              choose();
            }
          },
        },
      },
      svg("rect", { width: width - 2, height, rx: 8 }),
      svg("text", { x: PADDING, y: 22, class: "title" }, title),
      ...texts[id],
    );
  });
  const edges = {};
  const exports = stores.map((one, index) => ({ id: index === 0 ? "export" : one.name, from: "gold", to: `to ${one.name}` }));
  for (const { id, from, to } of [...EDGES, ...exports]) {
    const label = plan.label[id];
    const records = svg("text", { class: "records" });
    const waits = svg("text", { class: "waits" });
    const mark = svg("text", { class: "mark" });
    if (label !== undefined) {
      const isWide = plan === WIDE;
      [records, mark, waits].forEach((one, row) => {
        one.setAttribute("x", label[0]);
        one.setAttribute("y", isWide ? label[1] + [-6, -22, 32][row] : label[1] + [0, 30, 15][row]);
        one.setAttribute("text-anchor", isWide ? "middle" : "start");
      });
    }
    const path = svg("path", { d: way(plan, at[from], at[to]), "marker-end": `url(#tip-${name})` });
    edges[id] = { records, waits, mark, group: svg("g", { class: "edge" }, path, records, waits, mark) };
  }
  const tip = svg(
    "marker",
    { id: `tip-${name}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" },
    svg("path", { d: "M0 0L8 4L0 8z", class: "tip" }),
  );
  const node = svg(
    "svg",
    { viewBox: `0 0 ${plan.width} ${bottom}`, role: "group", "aria-label": `Pipeline of ${name}`, class: plan === WIDE ? "wide" : "tall" },
    svg("defs", {}, tip),
    ...Object.values(edges).map((one) => one.group),
    ...nodes,
  );
  return { node, texts, edges, stores, room: width - 2 * PADDING };
}

function way(plan, [fromX, fromY], [toX, toY]) {
  const [width, height] = plan.node;
  const right = fromX + width;
  const middle = fromY + height / 2;
  if (fromY === toY) {
    return `M${right} ${middle}H${toX - 1}`;
  }
  if (plan === TALL && toY > fromY + 2 * height) {
    return `M${right} ${middle}H${right + 6}V${toY + height / 2}H${toX === fromX ? right + 1 : toX - 1}`; // past the first stores
  }
  if (fromX === toX) {
    return `M${fromX + width / 2} ${fromY + height}V${toY - 1}`;
  }
  if (plan === WIDE) {
    return `M${right} ${middle}H${right + 6}V${toY + height / 2}H${toX - 1}`;
  }
  const x = toX + width / 2;
  return `M${right} ${middle}H${x}V${toY - 1}`;
}

function fill({ texts, edges, stores, room }, stream, now) {
  for (const [id, lines] of Object.entries(told(stream, stores, now))) {
    const kept = lines.filter((one) => one !== null);
    texts[id].forEach((text, index) => fit(text, kept[index] ?? "", room));
  }
  const worst = new Map(ailing(stream).reverse().map((one) => [`to ${one.name}`, one.word]));
  for (const { name } of stores) {
    texts[`to ${name}`][0].parentNode.setAttribute("class", `node to-${name} ${worst.get(`to ${name}`) ?? ""}`);
  }
  const longest = stream.waiting?.seconds > 0 ? stream.waiting.layer : null;
  // A wait within the limit is not a bottleneck.
  const isLate = LATE.has(stream.health.word);
  for (const id of LAYERS.filter((one) => edges[one] !== undefined)) {
    const { records, waits, mark, group } = edges[id];
    const backlog = stream.backlogs.find((one) => one.layer === id);
    const isKnown = backlog !== undefined && backlog.records !== null;
    say(records, isKnown ? `${compact(backlog.records)} wait` : "?");
    say(waits, isKnown ? briefly(backlog.seconds) : "");
    say(mark, id !== longest ? "" : isLate ? "bottleneck" : "max wait");
    group.classList.toggle("waiting", isKnown && backlog.records > 0);
    group.classList.toggle("slowest", id === longest);
    group.classList.toggle("late", id === longest && isLate);
  }
}

function told(stream, stores, now) {
  const gate = stream.gate === null ? null : stream.gate.isOpen ? "gate open" : "gate closed";
  const topics = [...new Set(stream.partitions.map((one) => one.topic))];
  const newest = stream.eventTimes.map((one) => one.watermark).sort()[0];
  return {
    topic: [...topics.slice(0, 2), partitions(stream), rate(arriving(stream), "rec.")],
    bronze: layer(stream, "bronze", now),
    silver: [
      rowRate(stream, "silver"),
      stream.freshnessS === null ? null : `newest ${briefly(stream.freshnessS)} old`,
      newest === undefined ? null : `mark ${clock(newest).slice(5, 19)}`,
      version(stream, "silver"),
    ],
    letters: [stream.openLetters === null ? "being counted" : `${count(stream.openLetters)} open`],
    gold: layer(stream, "gold", now),
    ...Object.fromEntries(stores.map(({ name }) => [`to ${name}`, [...exported(stream, name, now), gate]])),
  };
}

function layer(stream, name, now) {
  const passed = writtenAgoS(stream, now, name);
  return [rowRate(stream, name), passed === null ? null : `written ${briefly(passed)} ago`, version(stream, name)];
}

/** Rows per second as reported by the layer's process, or else derived from the growth of the row count. */
function rowRate(stream, name) {
  const running = (stream.runs ?? []).flatMap((run) => run.queries).filter((one) => layerOf(one.name) === name);
  if (running.length > 0) {
    return rate(total(running.map((one) => one.rowsPerS ?? 0)), "rows");
  }
  const rows = (state) => (state === undefined ? null : total(tablesOf(state, name).map((one) => one.rows)));
  return rate(perSecond(stream.name, rows), "rows");
}

function exported(stream, store, now) {
  const passed = writtenAgoS(stream, now, "export");
  const sent = passed === null ? "nothing sent yet" : `sent ${briefly(passed)} ago`;
  const worst = ailing(stream).find((one) => one.name === store);
  return worst === undefined ? [sent] : [`▲ ${worst.word}`, worst.since && `since ${clock(worst.since).slice(5, 16)}`, sent];
}

function partitions(stream) {
  const number = stream.partitions.length;
  return number === 1 ? "1 partition" : `${number} partitions`;
}

function version(stream, name) {
  const found = tablesOf(stream, name).map((one) => `v${count(one.version)}`);
  return found.length === 0 ? "not created yet" : found.join(" · ");
}
