// A stream's path from its topics to Kafka and Redis, drawn once and then updated.

import { el, fit, say, svg } from "./dom.js";
import { briefly, clock, compact, count, rate } from "./format.js";
import { perSecond } from "./live.js";
import { arriving, lacking, layerOf, tablesOf, total, writtenAgoS } from "./states.js";

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
  { id: "kafka", title: "Kafka" },
  { id: "redis", title: "Redis" },
];
const EDGES = [
  { id: "bronze", from: "topic", to: "bronze" },
  { id: "silver", from: "bronze", to: "silver" },
  { id: "refused", from: "silver", to: "letters" },
  { id: "gold", from: "silver", to: "gold" },
  { id: "export", from: "gold", to: "kafka" },
  { id: "redis", from: "gold", to: "redis" },
];
const WIDE = {
  width: 1120,
  height: 226,
  node: [160, 102],
  at: { topic: [0, 2], bronze: [240, 2], silver: [480, 2], letters: [480, 122], gold: [720, 2], kafka: [960, 2], redis: [960, 122] },
  label: { bronze: [200, 40], silver: [440, 40], gold: [680, 40], export: [920, 40] },
};
const TALL = {
  width: 340,
  height: 796,
  node: [164, 102],
  at: { topic: [0, 2], bronze: [0, 174], silver: [0, 346], letters: [176, 346], gold: [0, 518], kafka: [0, 690], redis: [176, 690] },
  label: { bronze: [94, 130], silver: [94, 302], gold: [94, 474], export: [94, 646] },
};
const narrow = matchMedia("(max-width: 1000px)");

/** Draw a pipeline; `open(layer)` is called for the selected node. Returns the drawing's node, `update` and `close`. */
export function pipeline(name, open) {
  const node = el("div", { class: "pipeline" });
  let drawing = null;
  let last = null;
  const draw = () => {
    drawing = drawn(name, narrow.matches ? TALL : WIDE, open);
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
    close: () => narrow.removeEventListener("change", draw),
  };
}

function drawn(name, plan, open) {
  const texts = {};
  const [width, height] = plan.node;
  const nodes = NODES.map(({ id, title }) => {
    const [x, y] = plan.at[id];
    texts[id] = Array.from({ length: LINES }, (_none, line) => svg("text", { x: PADDING, y: 42 + line * 17, class: "line" }));
    const choose = () => open(id);
    return svg(
      "g",
      {
        class: `node ${id}`,
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
  for (const { id, from, to } of EDGES) {
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
    const path = svg("path", { d: way(plan, from, to), "marker-end": `url(#tip-${name})` });
    edges[id] = { records, waits, mark, group: svg("g", { class: "edge" }, path, records, waits, mark) };
  }
  const tip = svg(
    "marker",
    { id: `tip-${name}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" },
    svg("path", { d: "M0 0L8 4L0 8z", class: "tip" }),
  );
  const node = svg(
    "svg",
    { viewBox: `0 0 ${plan.width} ${plan.height}`, role: "group", "aria-label": `Pipeline of ${name}`, class: plan === WIDE ? "wide" : "tall" },
    svg("defs", {}, tip),
    ...Object.values(edges).map((one) => one.group),
    ...nodes,
  );
  return { node, texts, edges, room: width - 2 * PADDING };
}

function way(plan, from, to) {
  const [width, height] = plan.node;
  const [fromX, fromY] = plan.at[from];
  const [toX, toY] = plan.at[to];
  const right = fromX + width;
  const middle = fromY + height / 2;
  if (fromY === toY) {
    return `M${right} ${middle}H${toX - 1}`;
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

function fill({ texts, edges, room }, stream, now) {
  for (const [id, lines] of Object.entries(told(stream, now))) {
    const kept = lines.filter((one) => one !== null);
    texts[id].forEach((text, index) => fit(text, kept[index] ?? "", room));
  }
  const longest = stream.waiting?.seconds > 0 ? stream.waiting.layer : null;
  // A wait within the limit is not a bottleneck.
  const isLate = LATE.has(stream.health.word);
  for (const id of LAYERS) {
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

function told(stream, now) {
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
    kafka: exported(stream, now),
    redis: [stream.gate === null ? null : stream.gate.isOpen ? "gate open" : "gate closed", ...exported(stream, now)],
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

function exported(stream, now) {
  const stores = lacking(stream);
  const passed = writtenAgoS(stream, now, "export");
  const sent = passed === null ? "nothing sent yet" : `sent ${briefly(passed)} ago`;
  return [stores.length > 0 ? `${stores.join(", ")}: rows are missing` : sent];
}

function partitions(stream) {
  const number = stream.partitions.length;
  return number === 1 ? "1 partition" : `${number} partitions`;
}

function version(stream, name) {
  const found = tablesOf(stream, name).map((one) => `v${count(one.version)}`);
  return found.length === 0 ? "not created yet" : found.join(" · ");
}
