// Facts that several views derive from the status: unknown values, rates, and the last write of each layer.

import { el, prose } from "./dom.js";
import { dated } from "./format.js";
import { live, perSecond } from "./live.js";

/** Notices about missing data: no status, an old status, or an unreadable lake or broker. */
export function troubles() {
  const notice = (text) => el("p", { class: "notice" }, ...prose(text));
  if (live.isMissing) {
    return [notice("This server has no /api/v1/status, so health and backlog are unknown.")];
  }
  if (live.status === null) {
    return [live.trouble === null ? el("p", { class: "muted" }, "Loading the streams …") : notice(live.trouble)];
  }
  const reasons = [live.trouble && `${live.trouble}; the data below is from ${dated(live.status.at)}`, live.status.lakeReason, live.status.brokerReason];
  return reasons.filter(Boolean).map(notice);
}

/** The reason for a stream's health, without any sentence that `troubles` already shows. */
export function briefReason({ health }, status) {
  const known = [status.lakeReason, status.brokerReason].find((one) => one && health.reason.endsWith(one));
  if (known === undefined) {
    return health.reason;
  }
  const what = health.reason.slice(0, -known.length).replace(/:\s*$/, "");
  return what === "" ? "see above" : `${what} cannot be read: see above`;
}

/** Whether no process runs a stream, and the reason for its health does not already say so. */
export function isUnrun({ runs, health }) {
  return runs.length === 0 && !health.isUnrun;
}

/** The steps of a stream that currently fail, as their processes report them, without the one that its health names. */
export function failing({ runs, health }) {
  return runs.flatMap((run) => run.queries).filter((one) => one.error && health.reason !== `${one.name} fails: ${one.error}`);
}

/** Whether a step fails, although the word of its stream's health is another one. */
export function alsoFails(state) {
  return state.health.word !== "failing" && failing(state).length > 0;
}

/** When a stream's health began, unless its reason says so, or that is unknown. */
export function sinceWhen(since, reason) {
  return since && !reason.includes(dated(since)) ? el("span", { class: "muted" }, `since ${dated(since)}`) : null;
}

const STORE_WORDS = ["well", "unknown", "behind", "full", "refused", "away"];

/** The state of each store that a stream's exports fill, worst first, with the export's name as `of`. */
export function storesOf({ queries }) {
  const all = queries.flatMap((query) => query.stores.map((one) => ({ ...one, of: query.name })));
  return all.sort((one, other) => STORE_WORDS.indexOf(other.word) - STORE_WORDS.indexOf(one.word));
}

/** The stores that are away or full, refuse rows or lack them, worst first. */
export function ailing(stream) {
  return storesOf(stream).filter((one) => one.word !== "well" && one.word !== "unknown");
}

/** A reason and what to do, as nodes. */
export function advice(reason, { todo }) {
  return prose(`${reason}. ${todo}.`);
}

/** Records per second that arrive in a stream's topics, over the last 15 seconds, or null if unknown. */
export function arriving(stream) {
  return perSecond(stream.name, (state) => total(state?.partitions.map((one) => one.end)));
}

/** Records per second that bronze reads from the topics, over the last 15 seconds, or null if unknown. */
export function landing(stream) {
  return perSecond(stream.name, (state) => total(state?.partitions.map((one) => one.position)));
}

/** Seconds since a layer (by default, any layer) last wrote or sent rows; null if it never has, or if that is unknown. */
export function writtenAgoS({ queries }, now, layer = null) {
  const times = queries.filter((one) => one.doneAt !== null && (layer === null || one.layer === layer)).map((one) => new Date(one.doneAt));
  return times.length === 0 ? null : (new Date(now) - Math.max(...times)) / 1000;
}

/** A layer's tables, without the dead letters, which belong to no single stream. */
export function tablesOf(stream, layer) {
  return stream.tables.filter((one) => one.name.startsWith(`${layer}.`) && !one.name.endsWith(".dead_letters"));
}

export function layerOf(query) {
  return query.split(".")[0];
}

export function total(values) {
  return values === undefined || values.some((one) => one === null) || values.length === 0
    ? null
    : values.reduce((all, one) => all + one, 0);
}
