/* What all charts share: colours of the theme, zoom and pan by mouse, button and key, and redrawing. */

import { onResize, paper } from "./paper.js";
import { button, element } from "./words.js";

const PRINT_WIDTH = 700;

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/* Black or white, whichever is easier to read on a colour, "#rrggbb"; the contrast is 4.5:1 or more, as WCAG has it. */
export function readableOn(ground) {
  const [red, green, blue] = [1, 3, 5]
    .map((at) => Number.parseInt(ground.slice(at, at + 2), 16) / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
}

/* A chart draws what `build(chart)` returns: {traces, layout, full: {x: [low, high], y: ...}}, in axis units, whose
   `full` is all there is to see. `view` is what is seen. `follows` says that what is drawn depends on the view. Whoever
   uses a chart may set `keys` (actions by key), `after` (called when it is drawn) and `left` (pixels left of the plot). */
export class Chart {
  constructor(section, build, { follows = false, axes = ["x"] } = {}) {
    Object.assign(this, { build, follows, axes, view: {} });
    this.area = section.querySelector(".chart");
    this.area.tabIndex = 0;
    this.area.setAttribute("role", "group");
    this.area.setAttribute("aria-label", `${this.area.dataset.label}. Plus and minus zoom, arrows pan, 0 shows all.`);
    const tools = element("div", "", { class: "tools" });
    tools.append(
      button("\u2212", "Zoom out", () => this.zoom(2)),
      button("+", "Zoom in", () => this.zoom(0.5)),
      button("All", "Show all", () => this.reset()),
    );
    this.area.before(tools);
    this.area.addEventListener("keydown", (event) => this.key(event));
    onResize(() => this.redraw());
    this.draw();
    this.area.on("plotly_relayout", (change) => this.moved(change));
    this.area.on("plotly_doubleclick", () => this.reset());
  }

  draw() {
    const { traces, layout, full } = this.build(this);
    this.full = full;
    for (const axis of this.axes) this.view[axis] ??= [...full[axis]];
    const common = {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("ink"), family: "system-ui, sans-serif", size: 12 },
      margin: this.margin(),
      dragmode: "zoom",
      hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("line"), font: { color: colour("ink") } },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", itemsizing: "constant" },
      autosize: !paper.printing,
      ...(paper.printing ? { width: PRINT_WIDTH } : {}),
    };
    const merged = { ...common, ...layout };
    for (const axis of ["xaxis", "yaxis", "yaxis2"]) {
      if (!merged[axis]) continue;
      merged[axis] = {
        gridcolor: colour("grid"),
        linecolor: colour("line"),
        zerolinecolor: colour("grid"),
        ...merged[axis],
      };
      const name = axis[0];
      if (axis !== "yaxis2" && this.axes.includes(name)) merged[axis].range = [...this.view[name]];
      else if (name === "y") merged[axis].fixedrange = true;
    }
    Plotly.react(this.area, traces, merged, { displayModeBar: false, doubleClick: false });
    this.after?.();
  }

  /* A chart without room, as in a window that is being shut, stays as it is. */
  redraw() {
    if (this.area.clientWidth) this.draw();
  }

  get narrow() {
    return this.area.clientWidth < 600 || paper.printing;
  }

  get size() {
    const { l, r, t, b } = this.margin();
    return { width: this.width - l - r, height: this.area.clientHeight - t - b };
  }

  get width() {
    return paper.printing ? PRINT_WIDTH : this.area.clientWidth;
  }

  margin() {
    return { l: this.left || (this.narrow ? 46 : 64), r: 14, t: 46, b: 44 };
  }

  moved(change) {
    const keys = Object.keys(change);
    if (!keys.some((key) => key.startsWith("xaxis.range") || key.startsWith("yaxis.range"))) return;
    for (const axis of this.axes) this.view[axis] = [...this.area.layout[`${axis}axis`].range];
    this.later();
  }

  /* A view lies within all there is, and never so close that a number has no digits left. */
  look(views) {
    for (const [axis, [from, to]] of Object.entries(views)) {
      const [first, last] = this.full[axis];
      const [least, most] = [Math.min(first, last), Math.max(first, last)];
      const span = Math.min(Math.max(Math.abs(to - from), 1e-9 * (most - least)), most - least);
      const low = Math.min(Math.max(Math.min(from, to), least), most - span);
      this.view[axis] = first <= last ? [low, low + span] : [low + span, low];
    }
    const ranges = Object.entries(this.view).map(([axis, range]) => [`${axis}axis.range`, [...range]]);
    if (this.follows) this.later();
    else Plotly.relayout(this.area, Object.fromEntries(ranges));
  }

  later() {
    if (!this.follows || this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.draw();
    });
  }

  zoom(factor, axes = this.axes) {
    this.look(
      Object.fromEntries(
        axes.map((axis) => {
          const [from, to] = this.view[axis];
          const [middle, half] = [(from + to) / 2, ((to - from) / 2) * factor];
          return [axis, [middle - half, middle + half]];
        }),
      ),
    );
  }

  pan(axis, part) {
    if (!this.axes.includes(axis)) return;
    const [from, to] = this.view[axis];
    this.look({ [axis]: [from + part * (to - from), to + part * (to - from)] });
  }

  reset() {
    this.look(Object.fromEntries(this.axes.map((axis) => [axis, this.full[axis]])));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== this.area) return;
    const actions = {
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.reset(),
      ArrowLeft: () => this.pan("x", -0.25),
      ArrowRight: () => this.pan("x", 0.25),
      ...(this.axes.includes("y") ? { ArrowUp: () => this.pan("y", 0.25), ArrowDown: () => this.pan("y", -0.25) } : {}),
      ...this.keys,
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }
}
