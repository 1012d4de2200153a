// Before anything is drawn, apply the theme chosen on this device, or else the system's.
(() => {
  const known = ["light", "dark"];
  const media = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try {
    chosen = localStorage.getItem("lakehouse.theme");
  } catch {
    // Storage may be blocked. The system's theme then applies.
  }

  function show() {
    const theme = known.includes(chosen) ? chosen : media.matches ? "dark" : "light";
    document.documentElement.dataset.theme = theme;
    dispatchEvent(new CustomEvent("theme", { detail: theme }));
  }

  const change = () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("lakehouse.theme", chosen);
    } catch {
      // The choice then lasts until the page is closed.
    }
    show();
  };
  media.addEventListener("change", show);
  addEventListener("DOMContentLoaded", () => document.getElementById("theme").addEventListener("click", change));
  show();
})();
