// The token form. It sends the token to the server once, which answers with a cookie that no script can read.
// The page does not store the token.

import { ask, askIfThere } from "./api.js";
import { el, swap } from "./dom.js";

let dialog = null;

/** Ask for a token if the server requires one; `again` is called once it is accepted. */
export function install(forget, again) {
  addEventListener("token", () => open(forget, again));
  forget.addEventListener("click", async () => {
    forget.hidden = true;
    try {
      await ask("/api/v1/session", { method: "DELETE" });
    } finally {
      again();
    }
  });
  tell(forget);
}

/** Show the button that forgets the token, if the server requires a token. */
async function tell(forget) {
  try {
    const found = await askIfThere("/api/v1/session");
    forget.hidden = found?.needsToken !== true;
    forget.title = found === null ? "" : `Token ${found.actor}, with the scopes ${found.scopes.join(", ")}`;
  } catch {
    forget.hidden = true;
  }
}

function open(forget, again) {
  if (dialog !== null) {
    return;
  }
  const input = el("input", { type: "password", name: "token", autocomplete: "off", required: true, spellcheck: "false" });
  const said = el("p", { class: "trouble", role: "alert" });
  const form = el(
    "form",
    { method: "dialog" },
    el("h2", { id: "token-title" }, "Token required"),
    el("p", {}, "On the server's machine, ", el("code", {}, "lakehouse tokens add NAME --scope read"), " creates a token."),
    el("label", { class: "field" }, el("span", {}, "Token"), input),
    said,
    el("div", { class: "buttons" }, el("button", { type: "submit", class: "main" }, "Use token")),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const headers = { Authorization: `Bearer ${input.value.trim()}` };
    input.value = "";
    try {
      await ask("/api/v1/session", { method: "POST", headers });
    } catch (problem) {
      const why = { 401: "This token is not valid.", 404: "This server accepts tokens only in a header." };
      swap(said, why[problem.status] ?? problem.message);
      input.focus();
      return;
    }
    dialog.close();
    tell(forget);
    again();
  });
  dialog = el("dialog", { "aria-labelledby": "token-title", class: "small" }, form);
  dialog.addEventListener("close", () => {
    dialog.remove();
    dialog = null;
  });
  document.getElementById("dialogs").append(dialog);
  dialog.showModal();
}
