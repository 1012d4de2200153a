// Chooses the view from the URL's fragment, so that every view can be linked to.

import { el, say, swap } from "./dom.js";
import { clock } from "./format.js";
import { live, on, start } from "./live.js";
import * as checks from "./checks.js";
import * as gold from "./gold.js";
import * as letter from "./letter.js";
import * as letters from "./letters.js";
import * as log from "./log.js";
import * as overview from "./overview.js";
import * as session from "./session.js";
import * as stream from "./stream.js";
import { switchZone, zone } from "./zone.js";

const ROUTES = [
  [/^\/?$/, "Overview", "#/", overview],
  [/^\/streams\/([^/]+)$/, "Stream", "#/", stream],
  [/^\/letters$/, "Dead letters", "#/letters", letters],
  [/^\/letters\/([^/]+)$/, "Dead letter", "#/letters", letter],
  [/^\/gold(?:\/([^/]+))?$/, "Gold", "#/gold", gold],
  [/^\/checks$/, "Checks", "#/checks", checks],
  [/^\/log$/, "Log", "#/log", log],
];

const main = document.getElementById("main");
const pulse = document.getElementById("pulse");
let shown = null;

/** Read "#/letters?stream=metrics" as its path and its parameters. */
function address() {
  const [path, search = ""] = location.hash.replace(/^#/, "").split("?");
  return { path, parameters: Object.fromEntries(new URLSearchParams(search)) };
}

function show({ moves = true } = {}) {
  const { path, parameters } = address();
  const route = ROUTES.find(([pattern]) => pattern.test(path));
  if (shown !== null && route !== undefined && shown.path === path && shown.view.update) {
    shown.view.update(parameters);
    return;
  }
  shown?.view.close?.();
  shown = null;
  if (route === undefined) {
    swap(main, el("h1", {}, "This view does not exist"), el("p", {}, el("a", { href: "#/" }, "Overview")));
    return;
  }
  const [pattern, title, link, module] = route;
  document.title = `${title} · lakehouse`;
  for (const one of document.querySelectorAll("nav a")) {
    one.toggleAttribute("aria-current", one.getAttribute("href") === link);
    if (one.hasAttribute("aria-current")) {
      one.setAttribute("aria-current", "page");
    }
  }
  const root = el("div", { class: "view" });
  swap(main, root);
  const parts = pattern.exec(path).slice(1).map((one) => one && decodeURIComponent(one));
  shown = { path, view: module.open(root, parameters, ...parts) ?? {} };
  if (moves) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

function again() {
  start();
  shown?.view.close?.();
  shown = null;
  show({ moves: false });
}

on("status", () => {
  pulse.classList.toggle("trouble", live.trouble !== null);
  const at = live.status === null ? "" : clock(live.status.at).slice(11);
  say(pulse, live.trouble ?? (live.isMissing ? "no live status" : `live ${at}`));
});

const zoned = document.getElementById("zone");
const name = () => say(zoned, zone());
zoned.addEventListener("click", () => {
  switchZone();
  name();
  again();
});
name();
session.install(document.getElementById("forget"), again);
addEventListener("hashchange", () => show());
show({ moves: false });
start();
