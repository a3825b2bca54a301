/* Storages as bars and their accesses as marks, painted on a canvas under a chart's axes. As traces of the library they
   take seconds to redraw where there is no GPU; so they take hundredths. */

import { colour } from "./charts.js";
import { firstPlace } from "./data.js";
import { element } from "./words.js";

/* The times in which a storage is there, as pairs in ns; one that lives past the step's end is there at its start. */
function livesOf({ storages, start_ns, step_ns }, storage) {
  const n_ticks = start_ns.length - 1;
  const [birth, death] = [storages.birth[storage], storages.death[storage]];
  if (storages.persistent[storage] || death - birth >= n_ticks) return [[0, step_ns]];
  if (death <= n_ticks) return [[start_ns[birth], start_ns[death]]];
  return [
    [0, start_ns[death - n_ticks]],
    [start_ns[birth], step_ns],
  ];
}

/* A canvas that lies under the plot of a chart. */
export function canvasUnder(chart) {
  const canvas = element("canvas", "", { "aria-hidden": "true" });
  const layers = element("div", "", { class: "layers" });
  chart.area.replaceWith(layers);
  layers.append(canvas, chart.area);
  return canvas;
}

export class Painter {
  constructor(trace, timeSize) {
    Object.assign(this, { trace, timeSize });
    const numbers = Array.from({ length: trace.storages.nbytes.length + 1 }, (_, number) => number);
    this.rowsOf = numbers.map((number) => firstPlace(trace.accesses.storage, number)); // where each one's accesses begin
  }

  /* `order[r]` is the storage of row r. Nothing outside the chart's view is painted. */
  paint(canvas, chart, order) {
    const { width, height } = chart.size;
    const { l, t } = chart.margin();
    const sharp = devicePixelRatio || 1;
    Object.assign(canvas, { width: Math.round(width * sharp), height: Math.round(height * sharp) });
    Object.assign(canvas.style, { left: `${l}px`, top: `${t}px`, width: `${width}px`, height: `${height}px` });
    const context = canvas.getContext("2d");
    context.scale(sharp, sharp);
    const [low, high] = chart.view.x.map((value) => value * this.timeSize);
    const [bottom, top] = chart.view.y;
    const rowHeight = height / (bottom - top);
    const view = {
      width,
      height,
      rowHeight,
      order,
      low,
      high,
      first: Math.max(Math.ceil(top - 0.5), 0),
      last: Math.min(Math.floor(bottom + 0.5), order.length - 1),
      x: (ns) => ((ns - low) / (high - low)) * width,
      y: (row) => (row - top) * rowHeight,
    };
    canvas.dataset.bars = this.bars(context, view);
    canvas.dataset.marks = this.marks(context, view);
  }

  bars(context, { rowHeight, order, low, high, first, last, x, y }) {
    const { kinds, storages } = this.trace;
    const colours = kinds.map(colour);
    const thick = Math.max(0.8 * rowHeight, 1);
    let bars = 0;
    context.globalAlpha = 0.6;
    for (let row = first; row <= last; row++) {
      const storage = order[row];
      for (const [from, to] of livesOf(this.trace, storage)) {
        if (to < low || from > high) continue;
        const left = x(Math.max(from, low));
        context.fillStyle = colours[storages.kind[storage]];
        context.fillRect(left, y(row) - thick / 2, Math.max(x(Math.min(to, high)) - left, 0.5), thick);
        bars += 1;
      }
    }
    return bars;
  }

  /* Accesses that share a pixel are painted once. Returns how many are in view. */
  marks(context, { width, height, rowHeight, order, low, high, first, last, x, y }) {
    const { accesses, start_ns } = this.trace;
    const n_ticks = start_ns.length - 1;
    const [across, down] = [Math.ceil(width) + 1, Math.ceil(height) + 1];
    const tall = Math.max(0.8 * rowHeight, 1);
    const shades = ["ink", "write"].map(colour);
    let marks = 0;
    context.globalAlpha = rowHeight < 2 ? 0.5 : 1;
    for (const writes of [0, 1]) {
      const taken = new Uint8Array(across * down);
      context.fillStyle = shades[writes];
      for (let row = first; row <= last; row++) {
        const middle = y(row);
        const line = Math.min(Math.max(Math.floor(middle), 0), down - 1) * across;
        for (let use = this.rowsOf[order[row]]; use < this.rowsOf[order[row] + 1]; use++) {
          const at = start_ns[accesses.tick[use] % n_ticks];
          if (Number(accesses.mode[use] > 1) !== writes || at < low || at > high) continue;
          marks += 1;
          const left = x(at);
          const pixel = line + Math.floor(left);
          if (taken[pixel]) continue;
          taken[pixel] = 1;
          context.fillRect(left, middle - tall / 2, 1.5, tall);
        }
      }
    }
    return marks;
  }
}
