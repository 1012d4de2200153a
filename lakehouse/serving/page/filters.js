// The filters of dead letters: in the view's URL, in requests, and in the form.

import { query } from "./api.js";
import { el, field, select } from "./dom.js";
import { startOfDay, zone } from "./zone.js";

const SPANS = [["", "any time"], ["900", "15 minutes"], ["3600", "hour"], ["21600", "6 hours"], ["86400", "24 hours"], ["604800", "7 days"]];
const STATUSES = [["open", "open"], ["replayed", "replayed"], ["discarded", "discarded"], ["resent", "resent"], ["duplicate", "duplicate"], ["superseded", "superseded"], ["deletion", "deletion"], ["", "any"]];
const HOUR_MS = 3_600_000;

export function chosen({ stream = "", topic = "", rule = "", text = "", status = "open", within = "", since = "", until = "" }) {
  return { stream, topic, rule, text, status, within, since, until };
}

/** The request parameters; `within`, in seconds, becomes the time `since`. */
export function asked({ within, ...others }) {
  return within === "" ? others : { ...others, since: new Date(Date.now() - Number(within) * 1000).toISOString() };
}

/** The URL of a view; "any status" must be explicit. */
export function address({ status, ...others }) {
  const path = query("#/letters", others);
  return `${path}${path.includes("?") ? "&" : "?"}status=${status}`;
}

/** The form; `topics` and `rules` are suggested. */
export function filterForm(wanted, streams, topics, rules) {
  const text = (name, more) => el("input", { name, value: wanted[name], key: `i:${name}`, spellcheck: "false", autocomplete: "off", ...more });
  const time = (name) => text(name, { placeholder: "2026-03-01T00:00:00Z" });
  const known = el("datalist", { id: "known-topics" }, ...[...topics].sort().map((one) => el("option", { value: one })));
  const form = el(
    "form",
    { class: "filters" },
    field("Stream", select("stream", [["", "all"], ...streams.map((one) => one.name)], wanted.stream)),
    field("Topic", [text("topic", { list: known.id, placeholder: "all", maxlength: 249 }), known]),
    field("Rule", select("rule", [["", "all"], ...rules], wanted.rule)),
    field("Message contains", text("text", { placeholder: "any text", maxlength: 200 })),
    field("Status", select("status", STATUSES, wanted.status)),
    field("First seen within", select("within", SPANS, wanted.within)),
    field("or since", time("since")),
    field("until", time("until")),
  );
  const go = (changed) => {
    const values = Object.fromEntries(new FormData(form));
    if (changed === "within") {
      values.since = values.until = "";
    } else if (values.since !== "") {
      values.within = "";
    }
    location.hash = address(values);
  };
  form.addEventListener("change", (event) => go(event.target.name));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    go();
  });
  return form;
}

/** Links that set the time filter to the last hour, today or yesterday, as of the click. */
export function timeLinks(wanted) {
  const day = (days) => `${startOfDay(days).toISOString().slice(0, 19)}Z`;
  const spans = {
    "last hour": () => ({ since: `${new Date(Date.now() - HOUR_MS).toISOString().slice(0, 19)}Z`, until: "" }),
    today: () => ({ since: day(0), until: day(1) }),
    yesterday: () => ({ since: day(-1), until: day(0) }),
  };
  const links = Object.entries(spans).map(([name, span]) => {
    const to = () => address({ ...wanted, within: "", ...span() });
    const renew = (event) => event.currentTarget.setAttribute("href", to());
    return el("a", { href: to(), key: `t:${name}`, class: "choice", on: { click: renew } }, name);
  });
  return el("p", {}, el("span", { class: "choice muted" }, `First seen (${zone()})`), ...links);
}
