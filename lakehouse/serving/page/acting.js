// Actions: a dialog that says what will be done, asks for confirmation, and shows progress and the result.

import { ask } from "./api.js";
import { el, swap } from "./dom.js";
import { count, words } from "./format.js";

const LOOK_MS = 400;
const LINES = 200;

/**
 * Ask for confirmation, then send `body` to /api/v1/actions. Resolves to the finished action, or to null
 * if no action has finished. With `first`, the action `first.body` must succeed before the button can be pressed;
 * its result is shown, and `first.done` is called with it.
 */
export function confirmed({ title, text, verb, body, isDangerous = false, first = null }) {
  return new Promise((resolve) => {
    let ended = null;
    let isOpen = true;
    let isStarted = false;
    const foretold = el("div", { class: "foretold", "aria-live": "polite" });
    const said = el("div", { class: "said", "aria-live": "polite" });
    const lines = el("pre", { class: "lines", tabindex: "0", "aria-label": "Output", hidden: true });
    const go = el("button", { type: "button", class: isDangerous ? "main danger" : "main", key: "go" }, verb);
    let running = null;
    const stop = el("button", { type: "button", key: "stop", class: "danger", hidden: true }, "Stop");
    const leave = el("button", { type: "button", key: "leave", on: { click: () => dialog.close() } }, "Cancel");
    const dialog = el(
      "dialog",
      { "aria-labelledby": "confirm-title", class: "small" },
      el("h2", { id: "confirm-title" }, title),
      ...[text].flat().map((one) => el("p", {}, one)),
      foretold,
      said,
      lines,
      el("div", { class: "buttons" }, leave, stop, go),
    );
    const foretell = async () => {
      let isCancelled = false;
      go.disabled = true;
      swap(foretold, el("p", { class: "muted" }, "Counting the letters that would pass now …"));
      try {
        const found = await followed(first.body, (action) => {
          if (!isOpen && !isCancelled) {
            isCancelled = true; // nobody waits for it any more
            cancel(action).catch(() => {});
          }
        });
        const isDone = found.status === "succeeded";
        swap(foretold, ...(isDone ? result(found.result) : [el("p", { class: "trouble" }, "The dry run failed, so nothing can be replayed.")]));
        isDone || tell(said, lines, found);
        go.disabled = !isDone;
        isDone && first.done(found);
        isOpen && isDone && go.focus();
      } catch (problem) {
        swap(foretold, el("p", { class: "trouble" }, problem.message));
      }
    };
    go.addEventListener("click", async () => {
      isStarted = true;
      go.disabled = true;
      leave.textContent = "Close";
      leave.focus();
      try {
        ended = await followed(body, (action) => {
          running = action;
          stop.hidden = false;
          isOpen && tell(said, lines, action);
        });
        stop.hidden = true;
        isOpen && tell(said, lines, ended);
      } catch (problem) {
        swap(said, el("p", { class: "trouble" }, problem.message));
        stop.hidden = true;
        go.disabled = isStarted = false;
      }
      isOpen || resolve(ended);
    });
    stop.addEventListener("click", async () => {
      stop.disabled = true;
      leave.focus();
      try {
        await cancel(running);
      } catch (problem) {
        swap(said, el("p", { class: "trouble" }, problem.message));
        stop.disabled = false;
      }
    });
    dialog.addEventListener("close", () => {
      isOpen = false;
      dialog.remove();
      if (!isStarted || ended !== null) {
        resolve(ended);
      }
    });
    document.getElementById("dialogs").append(dialog);
    dialog.showModal();
    go.focus();
    first === null || foretell();
  });
}

function cancel({ id }) {
  return ask(`/api/v1/actions/${encodeURIComponent(id)}`, { method: "DELETE" });
}

async function followed(body, tellOf) {
  let action = await ask("/api/v1/actions", { method: "POST", body });
  while (action.status === "running") {
    tellOf(action);
    await new Promise((done) => setTimeout(done, LOOK_MS));
    action = await ask(`/api/v1/actions/${encodeURIComponent(action.id)}`);
  }
  return action;
}

function tell(said, lines, action) {
  const printed = (action.lines ?? []).slice(-LINES);
  lines.hidden = printed.length === 0;
  const text = printed.join("\n");
  if (lines.textContent !== text) {
    lines.textContent = text;
    lines.scrollTop = lines.scrollHeight;
  }
  const word = {
    running: action.cancelledBy === null ? "Running …" : "Stopping …",
    succeeded: "Done.",
    failed: `Failed with exit code ${action.exitCode}.`,
    cancelled: `Stopped by ${action.cancelledBy}.`,
  };
  const isTrouble = action.status === "failed" || action.status === "cancelled";
  const node = el("p", { class: isTrouble ? "trouble" : null }, word[action.status] ?? action.status);
  swap(said, node, ...result(action.result));
}

/** Show an action's result: how many passed, why the others did not, and any other values. */
function result(found) {
  if (found === null || found === undefined || typeof found !== "object") {
    return [];
  }
  const { asked, passed, wouldPass, failed, wouldFail, failing, ...others } = found;
  const [well, verb] = wouldPass === undefined ? [passed, "passed"] : [wouldPass, "would pass now"];
  const all = asked ?? [passed, failed, others.thereAlready, others.gone].reduce((sum, one) => sum + (one ?? 0), 0);
  const why = Object.entries(failing ?? {}).map(([rule, number]) => el("li", {}, `${rule}: ${count(number)}`));
  const rest = Object.entries(others).filter(([, value]) => typeof value !== "object" && value !== 0);
  return [
    well === undefined ? null : el("p", { class: "headline" }, `${count(well)} of ${count(all)} ${verb}`),
    why.length === 0 ? null : el("p", {}, "Rules that the other letters break:"),
    why.length === 0 ? null : el("ul", {}, ...why),
    ...rest.map(([name, value]) => el("p", { class: "muted" }, `${words(name)}: ${value}`)),
  ];
}
