/* What is chosen stands in the page's address, so that it can be sent, and Back leads to what was chosen before. */

let chosen = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");

/* The value of a name, or null. */
export const chosenAs = (name) => chosen.get(name);

/* Takes values by name; what has none is left out. `here`: Back does not lead to what was chosen before. */
export function choose(values, { here = false } = {}) {
  for (const [name, value] of Object.entries(values)) {
    if (value) chosen.set(name, value);
    else chosen.delete(name);
  }
  history[here ? "replaceState" : "pushState"](null, "", `#${chosen}`);
}

/* Calls for each other address, but for those of sections, which choose nothing. */
export function followAddress(show) {
  addEventListener("hashchange", () => {
    if (location.hash && !location.hash.includes("=")) return;
    chosen = new URLSearchParams(location.hash.slice(1));
    show();
  });
}
