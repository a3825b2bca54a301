/* What charts and tables are drawn on: the window, whose size and theme change, or paper while the page is printed. */

export const paper = { printing: false };

const resized = [];
const printed = [];

/* Calls `redraw` when the window's size or theme changes, and when printing begins and ends. */
export function onResize(redraw) {
  resized.push(redraw);
}

/* Calls `redraw` when printing begins and when it ends. */
export function onPrint(redraw) {
  printed.push(redraw);
}

function call(listeners) {
  for (const redraw of listeners) redraw();
}

export function followWindow() {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => call(resized));
  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => call(resized));
  });
  const print = (on) => () => {
    paper.printing = on;
    document.documentElement.classList.toggle("printing", on);
    call(resized);
    call(printed);
  };
  addEventListener("beforeprint", print(true));
  addEventListener("afterprint", print(false));
}
