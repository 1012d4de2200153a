// One Kafka record in every layer, looked up by its coordinates, by its id, or by the id of its dead letter.

import { ask, declared, query } from "./api.js";
import { badge, el, field, loading, moment, swap, table } from "./dom.js";
import { count, words } from "./format.js";
import { zone } from "./zone.js";

const SHORT_PLACE = /^(\d+)\/(\d+)$/;
const PLACE = /^([^/]+)\/(\d+)\/(\d+)$/;
const LETTER = /^[0-9a-f]{64}$/;

/** The address of a stream's view that shows a record. */
export function address(stream, { topic, partition, offset }) {
  return query(`#/streams/${encodeURIComponent(stream)}`, { record: `${topic}/${partition}/${offset}` });
}

/** A form and its result: their node, and `update`, which is called with the record that the view's URL names. */
export function finder(stream) {
  const input = el("input", { name: "record", key: "i:record", placeholder: "TOPIC/PARTITION/OFFSET, PARTITION/OFFSET or id", autocomplete: "off", spellcheck: "false", maxlength: 1000 });
  const place = el("div", { "aria-live": "polite" });
  const form = el("form", { class: "filters", role: "search" }, field("Kafka coordinates, or the id of the record or its dead letter", input), el("button", { type: "submit" }, "Find"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const record = input.value.trim();
    if (record === wanted) {
      update(record); // the URL stays the same
    } else {
      location.hash = query(`#/streams/${encodeURIComponent(stream)}`, { record });
    }
  });
  let wanted = "";
  const update = async (record = "") => {
    input.value = wanted = record;
    if (record === "") {
      swap(place);
      return;
    }
    swap(place, loading("the record"));
    let shown;
    try {
      shown = (await found(stream, record)).flatMap(drawn);
    } catch (problem) {
      shown = [el("p", { class: problem.status === 404 ? "notice" : "trouble", role: "alert" }, problem.message)];
    }
    wanted === record && swap(place, ...shown);
  };
  return { node: el("section", { class: "find" }, el("h2", {}, "Find a record"), form, place), update };
}

/** The records that a text names. A record's id can look like coordinates or a dead letter's id, so it is tried last. */
async function found(stream, record) {
  const place = PLACE.exec(record);
  const byId = async () => (await ask(query("/api/v1/records", { id: record }))).records;
  const at = (parts) => ask(`/api/v1/records/${parts.map(encodeURIComponent).join("/")}`);
  try {
    if (place !== null) {
      return [await at(place.slice(1))];
    }
    const short = SHORT_PLACE.exec(record);
    if (short !== null) {
      const { topics } = (await declared()).find((one) => one.name === stream) ?? { topics: [] };
      const places = await Promise.all(topics.map((topic) => at([topic, ...short.slice(1)])));
      return places.some(hasLanded) ? places : [...places, ...(await byId().catch(() => []))];
    }
    return LETTER.test(record) ? (await ask(query("/api/v1/records", { letter: record }))).records : await byId();
  } catch (problem) {
    if (problem.status !== 404) {
      throw problem;
    }
    return byId().catch(() => {
      throw problem;
    });
  }
}

function hasLanded({ streams }) {
  return streams.some(({ bronze, letters }) => bronze.isThere || letters.length > 0);
}

function drawn({ topic, partition, offset, streams }) {
  return streams.flatMap(({ stream, bronze, silver, letters, gold }) => {
    const place = `${topic}/${partition}/${offset}`;
    const rows = [
      [bronze.table, there(bronze.isThere), bronze.isThere ? ["landed ", moment(bronze.ingestedAt)] : bronze.reason],
      [silver.table, there(silver.isThere), silver.isThere ? ["event time ", moment(silver.eventTime)] : silver.reason],
      ...letters.map((one) => ["silver.dead_letters", badge(one.status), [el("a", { href: `#/letters/${one.id}` }, one.reasons.map((each) => each.rule).join(", ")), ", first seen ", moment(one.firstSeen)]]),
      ...gold.flatMap((one) => [
        [one.table, there(one.isThere), [keyOf(one.key), one.reason].filter(Boolean).join("; ")],
        ["", "sent", sent(one.sent)],
      ]),
    ];
    const shown = rows.map(([name, state, detail]) => [name, state, el("span", { class: "message" }, detail)]);
    return [el("h3", {}, `${place} in ${stream}`), table(`${place} in ${stream}`, ["table", "record", "detail"], shown)];
  });
}

function there(isThere) {
  return isThere === null ? "unknown" : isThere ? badge("there", "well") : badge("not there", "idle");
}

function keyOf(key) {
  return Object.entries(key ?? {}).map(([name, value]) => `${words(name)} ${value}`).join(", ");
}

/** How far the export has sent the table, when, and to which stores. */
function sent({ topic, stores, version, sentVersion, sentAt, rowsWaiting, reason }) {
  if (sentVersion === null) {
    return reason;
  }
  const to = [topic, ...stores].filter(Boolean).join(", ");
  const waiting = rowsWaiting ? `, ${count(rowsWaiting)} rows wait` : "";
  const at = sentAt === null ? null : [" at ", moment(sentAt), ` ${zone()}`];
  return [`up to version ${count(sentVersion)} of ${count(version)}${to === "" ? "" : ` to ${to}`}`, at, waiting, reason === null ? null : `; ${reason}`];
}
