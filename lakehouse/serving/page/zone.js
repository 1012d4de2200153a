// The time zone in which the page shows times: UTC, or this device's. Requests, links and tooltips stay in UTC.

const UTC = "UTC";
const KEY = "lakehouse.zone";
const own = Intl.DateTimeFormat().resolvedOptions().timeZone || UTC;
let isOwn = false;
try {
  isOwn = localStorage.getItem(KEY) === "own";
} catch {
  // Storage may be blocked. Times are then in UTC at first.
}
const formatter = new Intl.DateTimeFormat("sv-SE", { timeZone: own, dateStyle: "short", timeStyle: "medium" });

/** The zone's name, such as "UTC" or "Europe/Berlin". */
export function zone() {
  return isOwn ? own : UTC;
}

export function switchZone() {
  isOwn = !isOwn;
  try {
    localStorage.setItem(KEY, isOwn ? "own" : "utc");
  } catch {
    // The choice then lasts until the page is closed.
  }
}

/** A date as "2026-03-01 00:00:00" in the zone. */
export function local(date) {
  return isOwn ? formatter.format(date) : date.toISOString().slice(0, 19).replace("T", " ");
}

/** The start of a day in the zone: today, or `days` after it. */
export function startOfDay(days) {
  const now = new Date();
  return isOwn
    ? new Date(now.getFullYear(), now.getMonth(), now.getDate() + days)
    : new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth(), now.getUTCDate() + days));
}
