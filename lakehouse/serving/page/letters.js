// Dead letters: counts, a filtered list, and actions on the matching letters.

import { ask, askIfThere, declared, query } from "./api.js";
import { confirmed } from "./acting.js";
import { calm, el, loading, swap, table } from "./dom.js";
import { address, asked, chosen, filterForm, timeLinks } from "./filters.js";
import { clock, count } from "./format.js";
import { listing } from "./listing.js";
import { on } from "./live.js";
import { shapesOf } from "./shapes.js";

const TABLE = "silver.dead_letters";
const PAUSE_MS = 1000;

export function open(root, parameters) {
  const form = el("div", {});
  const counts = el("div", {});
  const list = el("div", {}, loading("the letters"));
  const shapes = shapesOf();
  root.append(el("h1", {}, "Dead letters"), form, el("div", { class: "sides" }, el("section", {}, counts), el("section", {}, list)));
  let wanted = chosen(parameters);
  let cursors = [null];
  let isBusy = false;
  let isDue = false;
  const topics = new Set();
  const sees = seesValues();
  const again = async () => {
    isDue = true;
    if (isBusy) {
      return;
    }
    isBusy = true;
    try {
      while (isDue) {
        isDue = false;
        await draw(wanted);
      }
    } finally {
      isBusy = false;
    }
  };
  const isTyping = () => {
    const field = document.activeElement;
    return form.contains(field) && field.tagName === "INPUT" && field.value !== wanted[field.name];
  };
  const draw = async (now) => {
    const head = (streams, rules) => isTyping() || swap(form, filterForm(now, streams, topics, rules), timeLinks(now));
    try {
      const filters = asked(now);
      const [found, counted, streams] = await Promise.all([
        ask(query("/api/v1/dead-letters", { ...filters, limit: 50, cursor: cursors.at(-1), values: await sees })),
        ask(query("/api/v1/dead-letters/counts", { ...filters, rule: null, status: null })),
        declared(),
      ]);
      found.letters.forEach((one) => topics.add(one.topic));
      const rules = [...new Set([...counted.counts.map((one) => one.rule), now.rule])].filter(Boolean).sort();
      await calm();
      if (isDue) {
        return; // the filters have changed since
      }
      head(streams, rules);
      swap(counts, shapes.node, el("h2", {}, "By rule"), countTable(counted.counts, now));
      shapes.update(now, filters);
      swap(list, el("h2", {}, "Letters"), actions(now, filters, counted.counts, again), ...listing(found.letters, now), pages(found));
    } catch (problem) {
      const streams = await declared().catch(() => []);
      if (isDue) {
        return;
      }
      head(streams, [now.rule].filter(Boolean));
      swap(counts);
      swap(list, el("p", { class: "trouble", role: "alert" }, problem.message));
    }
  };
  const pages = (found) => {
    const move = (change) => () => {
      change();
      again();
    };
    return el(
      "div",
      { class: "buttons" },
      cursors.length > 1 ? el("button", { type: "button", key: "newer", on: { click: move(() => cursors.pop()) } }, "Newer") : null,
      found.next === null ? null : el("button", { type: "button", key: "older", on: { click: move(() => cursors.push(found.next)) } }, "Older"),
    );
  };
  let timer = null;
  const off = on("table", (name) => {
    if (name === TABLE && timer === null && !form.contains(document.activeElement)) {
      timer = setTimeout(() => {
        timer = null;
        again();
      }, PAUSE_MS);
    }
  });
  swap(form, filterForm(wanted, [wanted.stream].filter(Boolean).map((name) => ({ name })), topics, [wanted.rule].filter(Boolean)), timeLinks(wanted));
  again();
  return {
    update(changed) {
      wanted = chosen(changed);
      cursors = [null];
      again();
    },
    close() {
      off();
      clearTimeout(timer);
    },
  };
}

/** Whether the caller may see the values of records. */
async function seesValues() {
  const session = await askIfThere("/api/v1/session").catch(() => null);
  return session?.scopes.includes("payload") ?? false;
}

function countTable(counts, wanted) {
  const rows = counts
    .filter((one) => wanted.status === "" || one.status === wanted.status)
    .map((one) => {
      const link = address({ ...wanted, stream: one.stream, rule: one.rule });
      const status = wanted.status === "" ? [one.status] : [];
      return [one.stream, el("a", { href: link, key: link }, one.rule), count(one.count), ...status];
    });
  const headings = ["stream", "rule", "letters", ...(wanted.status === "" ? ["status"] : [])];
  return table("Letters by rule", headings, rows, { numeric: ["letters"], empty: "None." });
}

/** The buttons that try, replay or discard all open dead letters that match the filters. */
function actions(wanted, filters, counts, again) {
  if (wanted.status !== "open") {
    return el("p", { class: "muted" }, "Only open letters can be replayed or discarded.");
  }
  if (wanted.text !== "") {
    return el("p", { class: "muted" }, "Replay and discard cannot select letters by text: clear the text to use them.");
  }
  const { stream, topic, rule, since, until } = filters;
  const given = Object.entries({ stream: stream && [stream], topic, rule, since, until }).filter(([, value]) => value);
  const body = given.length === 0 ? { all: true } : Object.fromEntries(given);
  const open = counts.filter((one) => one.status === "open" && (!rule || one.rule === rule));
  const of = [stream && `of ${stream}`, topic && `from the topic ${topic}`, rule && `with the rule ${rule}`, since && `first seen since ${since}`, until && `before ${until}`];
  const what = `Every open letter${of.filter(Boolean).map((one) => ` ${one}`).join("")}`;
  return actionButtons(body, what, open.length === 0, again, address(wanted));
}

const tried = new Map();

/** A sentence about the page's last dry run of these dead letters. */
function lastTry(which) {
  const found = tried.get(which);
  return found === undefined ? null : `The dry run at ${found.at} found that ${found.what} would pass.`;
}

/** The three buttons, and the last dry run's result. `body` selects the dead letters, and `what` describes them. */
export function actionButtons(body, what, isNone, again, which = JSON.stringify(body)) {
  const note = ({ result }) => {
    const { asked, wouldPass } = result ?? {};
    if (wouldPass !== undefined) {
      tried.set(which, { at: clock(new Date()).slice(11), what: `${count(wouldPass)} of ${count(asked)}` });
    }
  };
  const done = (ended, isDryRun) => {
    if (isDryRun) {
      note(ended);
    } else {
      tried.clear(); // the open letters have changed
    }
    again();
  };
  const run = async (dialog) => {
    const first = dialog.body.action === "replay" && dialog.body.dryRun !== true && !tried.has(which) ? { body: { ...dialog.body, dryRun: true }, done: note } : null;
    const ended = await confirmed({ ...dialog, first });
    ended === null || done(ended, dialog.body.dryRun === true);
  };
  const button = (verb, key, dialog, isDangerous = false) =>
    el(
      "button",
      {
        type: "button",
        key,
        disabled: isNone,
        class: isDangerous ? "danger" : null,
        on: { click: () => run({ ...dialog, verb, isDangerous }) },
      },
      verb,
    );
  return el(
    "div",
    { class: "buttons" },
    button("Dry run", "dry", { title: "Count the letters that would pass now?", text: `${what}, with the current rules. Nothing is changed.`, body: { action: "replay", ...body, dryRun: true } }),
    button("Replay", "replay", { title: "Replay these letters into silver?", text: [`${what}, with the current rules.`, "Letters that still fail stay open.", lastTry(which)].filter(Boolean), body: { action: "replay", ...body } }),
    button("Discard", "discard", { title: "Discard these letters?", text: [`${what}.`, "They stay in the table as discarded, and cannot be replayed."], body: { action: "discard", ...body } }, true),
    isNone ? null : el("span", { class: "muted tried" }, lastTry(which)),
  );
}
