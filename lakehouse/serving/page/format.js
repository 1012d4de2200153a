// Formats numbers, durations and times for display. Unknown values are shown as a dash.

import { local, zone } from "./zone.js";

export const UNKNOWN = "–";

/** A number with thousands separators; one that a double cannot represent is a string, and keeps all its digits. */
export function count(value) {
  if (value === null || value === undefined) {
    return UNKNOWN;
  }
  if (typeof value === "string" && !/^-?\d+(\.\d+)?$/.test(value)) {
    return value;
  }
  if (typeof value === "string") {
    const [whole, rest] = value.split(".");
    const apart = whole.replace(/\B(?=(\d{3})+$)/g, ",");
    return rest === undefined ? apart : `${apart}.${rest}`;
  }
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.0001 || size >= 1e15)) {
    return String(value);
  }
  return value.toLocaleString("en", { maximumFractionDigits: size >= 1000 ? 2 : 4 });
}

export function rate(value, unit) {
  return value === null || value === undefined ? null : `${count(Math.round(value * 10) / 10)} ${unit}/s`;
}

export function seconds(value) {
  if (value === null || value === undefined) {
    return UNKNOWN;
  }
  const size = Math.max(0, value);
  if (size < 10) {
    return `${Math.round(size * 10) / 10} s`;
  }
  const parts = [
    [Math.floor(size / 86400), "d"],
    [Math.floor(size / 3600) % 24, "h"],
    [Math.floor(size / 60) % 60, "min"],
    [Math.floor(size) % 60, "s"],
  ];
  const first = parts.findIndex(([number]) => number > 0);
  const told = parts.slice(first, first + 2).filter(([number]) => number > 0);
  return told.map(([number, unit]) => `${number} ${unit}`).join(" ");
}

/** A duration in its largest unit only, for narrow places. */
export function briefly(value) {
  return seconds(value).replace(/^(\d+ (?:d|h|min)) .*$/, "$1");
}

/** A number in at most six characters, such as "123K" from a hundred thousand on. */
export function compact(value) {
  const isLong = typeof value === "number" && Math.abs(value) >= 100_000;
  return isLong ? value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 }) : count(value);
}

export function bytes(value) {
  if (value === null || value === undefined) {
    return UNKNOWN;
  }
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = value < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(value) / 10));
  return `${count(Math.round((value / 1024 ** power) * 10) / 10)} ${units[power]}`;
}

/** A time, ISO 8601 or epoch milliseconds, as "2026-03-01 00:00:00" in the page's zone. */
export function clock(moment) {
  const date = new Date(moment ?? Number.NaN);
  return Number.isNaN(date.getTime()) ? String(moment ?? UNKNOWN) : local(date);
}

/** The same with the zone's name. */
export function dated(moment) {
  return `${clock(moment)} ${zone()}`;
}

/** How long ago a time was, as of `now`. */
export function ago(value, now) {
  const passed = (new Date(now) - new Date(value ?? Number.NaN)) / 1000;
  return Number.isNaN(passed) ? UNKNOWN : `${seconds(passed)} ago`;
}

/** A string cut in the middle, so that both ends stay visible. */
export function cut(text, most) {
  if (text.length <= most) {
    return text;
  }
  const half = Math.floor((most - 1) / 2);
  return `${text.slice(0, most - 1 - half)}…${text.slice(-half)}`;
}

/** "window_start" and "windowStart" as "window start". */
export function words(name) {
  return name.replace(/_/g, " ").replace(/([a-z\d])([A-Z])/g, "$1 $2").toLowerCase();
}

export function camel(name) {
  return name.replace(/_([a-z\d])/g, (_all, letter) => letter.toUpperCase());
}

const UNITS = {
  ns: "ns", us: "µs", ms: "ms", s: "s", sec: "s", seconds: "s", minutes: "min", hours: "h",
  bytes: "bytes", kb: "KB", mb: "MB", gb: "GB", kib: "KiB", mib: "MiB", gib: "GiB", percent: "%", pct: "%", celsius: "°C", eur: "EUR", usd: "USD",
};

/** The unit that ends a metric's name, such as "ms" of request_latency_ms, or "" if it names none. */
export function unitOf(name) {
  const parts = words(name).split(/[\s./:-]+/);
  return (parts.length > 1 && Object.hasOwn(UNITS, parts.at(-1)) && UNITS[parts.at(-1)]) || "";
}
