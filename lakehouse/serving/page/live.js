// Live data while the page is visible: the status once a second, and new table versions as they appear.

import { ask } from "./api.js";

const EVERY_MS = 1000;
const AGAIN_MS = 5000;
const KEPT_MS = 15000;

/** The newest status, or null before the first one; `isMissing` if this server does not offer it. */
export const live = { status: null, isMissing: false, trouble: null };

const history = [];
const listeners = { status: new Set(), table: new Set() };
let events = null;
let timer = null;
let run = 0;

/** Listen for `status` (when it arrives or fails) or `table` (with its name); returns a function that stops listening. */
export function on(kind, listener) {
  listeners[kind].add(listener);
  return () => listeners[kind].delete(listener);
}

/** Start or restart, for example after a token was entered. */
export function start() {
  stop();
  if (document.hidden) {
    return;
  }
  run += 1;
  live.isMissing = false;
  look(run);
  listen();
}

export function stop() {
  run += 1;
  clearTimeout(timer);
  events?.close();
  events = null;
}

document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));

/** The recent growth per second of a counter in the stream's status, or null if unknown. */
export function perSecond(streamName, read) {
  const points = history
    .map(({ at, streams }) => [at, read(streams.get(streamName))])
    .filter(([, value]) => value !== null && value !== undefined);
  if (points.length < 2) {
    return null;
  }
  const [first, last] = [points[0], points.at(-1)];
  const passed = (last[0] - first[0]) / 1000;
  return passed > 0 && last[1] >= first[1] ? (last[1] - first[1]) / passed : null;
}

async function look(mine) {
  const began = performance.now();
  try {
    const status = await ask("/api/v1/status");
    if (mine !== run) {
      return;
    }
    live.status = status;
    live.trouble = null;
    remember(status);
  } catch (problem) {
    if (mine !== run) {
      return;
    }
    live.isMissing = problem.status === 404;
    live.trouble = live.isMissing ? null : problem.message;
  }
  tell("status", live);
  if (!live.isMissing) {
    const wait = live.trouble === null ? EVERY_MS : AGAIN_MS;
    timer = setTimeout(() => look(mine), Math.max(0, wait - (performance.now() - began)));
  }
}

function remember(status) {
  const at = new Date(status.at).getTime();
  history.push({ at, streams: new Map(status.streams.map((stream) => [stream.name, stream])) });
  while (history.length > 2 && (at - history[0].at > KEPT_MS || at < history[0].at)) {
    history.shift();
  }
}

function listen() {
  events = new EventSource("/api/v1/events");
  const mine = events;
  mine.addEventListener("changed", (event) => tell("table", JSON.parse(event.data).table));
  mine.addEventListener("standing", (event) =>
    JSON.parse(event.data).tables.forEach((one) => tell("table", one.table)),
  );
  mine.addEventListener("error", () => {
    if (mine.readyState === EventSource.CLOSED && mine === events) {
      setTimeout(() => mine === events && listen(), AGAIN_MS);
    }
  });
}

function tell(kind, what) {
  listeners[kind].forEach((listener) => listener(what));
}
