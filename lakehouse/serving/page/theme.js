// Before anything is drawn: the theme chosen on this device, else the system's.
(() => {
  const known = ["light", "dark"];
  const media = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try {
    chosen = localStorage.getItem("lakehouse.theme");
  } catch {
    // Storage may be blocked; then the system's theme applies.
  }

  function show() {
    const theme = known.includes(chosen) ? chosen : media.matches ? "dark" : "light";
    document.documentElement.dataset.theme = theme;
    dispatchEvent(new CustomEvent("theme", { detail: theme }));
  }

  window.switchTheme = () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("lakehouse.theme", chosen);
    } catch {
      // Then the choice lasts until the page is closed.
    }
    show();
  };
  media.addEventListener("change", show);
  show();
})();
