// Runs before anything is painted, so that a dark page does not flash in light colours.
"use strict";
(() => {
  let kept = null;
  try {
    kept = localStorage.getItem("diffsketch-theme");
  } catch {
    // Storage may be forbidden; the page then follows the system.
  }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme =
    kept === "light" || kept === "dark" ? kept : dark ? "dark" : "light";
})();
