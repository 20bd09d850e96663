// Runs before anything is painted, so that a page never flashes in the other theme.
(() => {
  let wanted = "auto";
  try {
    wanted = localStorage.getItem("fanfold-theme") || "auto";
  } catch {
    // Storage may be switched off; then the system's setting holds.
  }
  document.documentElement.dataset.theme = ["light", "dark"].includes(wanted) ? wanted : "auto";
})();
