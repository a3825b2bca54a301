/* The Gantt chart of storages, and what is said of one of them. */

import { choose, chosenAs, followAddress } from "../shared/address.js";
import { Chart, colour } from "../shared/charts.js";
import { canvasUnder, Painter } from "../shared/painting.js";
import { addSection } from "../shared/sections.js";
import { selectionOf } from "../shared/selection.js";
import { StorageWords } from "../shared/storage_words.js";
import { bytes, element, plain, shortened, timeUnit } from "../shared/words.js";

addSection({
  id: "storages",
  title: "Storages",
  place: 20,
  needs: ["trace"],
  origins: ({ trace }) => [trace.origin],
  body: `
    <p>Each row is one storage, from malloc to free; marks are its accesses
      (<span class="mark read"></span>read, <span class="mark write"></span>written). Without marks it lies idle.
      Point at a row, or press <kbd>j</kbd> / <kbd>k</kbd> anywhere on the page, to read about it below the chart.</p>
    <form id="filter" aria-label="Filter storages">
      <label>Module <span class="lines">or line </span>contains
        <input type="search" name="text" placeholder="any" autocomplete="off" spellcheck="false"></label>
      <label>At least <input type="number" name="size" min="0" step="any" value="0"> MiB</label>
      <label>Order <select name="order">
        <option value="birth">by birth</option>
        <option value="size">by size</option>
        <option value="idle">by bytes &times; idle time</option>
        <option value="module">by module</option>
        <option class="lines" value="line">by line</option>
      </select></label>
      <fieldset id="kinds"><legend>Kinds</legend></fieldset>
      <output name="count"></output>
    </form>
    <div class="chart tall" data-label="Storages from malloc to free, with their accesses"></div>
    <div id="storage" aria-live="polite"></div>`,
  draw(data, section) {
    if (!data.trace.lines_known) for (const part of section.querySelectorAll(".lines")) part.remove();
    const selection = selectionOf(data);
    const storages = new Storages(data, selection, section);
    selection.show = (storage) => storages.show(storage);
    storages.showNamed();
    followAddress(() => storages.showNamed());
  },
});

const LABELLED_ROWS = 30;
const LABEL_WIDTH = 290;

class Storages {
  constructor(data, selection, section) {
    Object.assign(this, { trace: data.trace, selection, section, picked: null });
    this.words = new StorageWords(data, selection);
    [this.timeName, this.timeSize] = timeUnit(this.trace.step_ns);
    this.painter = new Painter(this.trace, this.timeSize);
    this.rowsOf = this.painter.rowsOf;
    this.chart = new Chart(section, (chart) => this.build(chart), { follows: true, axes: ["x", "y"] });
    this.canvas = canvasUnder(this.chart);
    this.chart.after = () => this.painter.paint(this.canvas, this.chart, this.selection.order);
    this.chart.after();
    addEventListener("keydown", (event) => this.key(event));
    selection.listeners.push(() => {
      this.chart.view.y = null;
      this.chart.draw();
    });
    this.chart.area.addEventListener("mousemove", (event) => this.pointed(event));
    this.chart.area.addEventListener("click", () => this.name());
    this.describe(null);
  }

  build(chart) {
    const { order } = this.selection;
    const full = {
      x: [0, Math.max(this.trace.step_ns, 1) / this.timeSize],
      y: [Math.max(order.length, 1) - 0.5, -0.5],
    };
    const y = chart.view.y || full.y;
    const rows = [
      Math.max(Math.ceil(Math.min(...y) - 0.5), 0),
      Math.min(Math.floor(Math.max(...y) + 0.5), order.length - 1),
    ];
    const labelled = rows[1] - rows[0] < LABELLED_ROWS && !chart.narrow;
    chart.left = labelled ? LABEL_WIDTH : 0;
    const visible = order.slice(rows[0], rows[1] + 1);
    return {
      traces: [{ type: "scatter", x: [], y: [] }], // all there is to see is painted
      full,
      layout: {
        hovermode: false,
        showlegend: false,
        xaxis: { title: { text: `time in the step, ${this.timeName}` } },
        yaxis: {
          showgrid: false,
          zeroline: false,
          tickvals: labelled ? visible.map((_, place) => rows[0] + place) : [],
          ticktext: labelled ? visible.map((storage) => plain(this.label(storage))) : [],
          title: {
            text:
              labelled || chart.narrow ? "" : `storages, ${this.selection.form.elements.order.selectedOptions[0].text}`,
          },
        },
        shapes: this.highlight(full.x),
      },
    };
  }

  label(storage) {
    const { nbytes, module, line } = this.trace.storages;
    const name = this.trace.strings[module[storage]] || this.trace.strings[line[storage]];
    return `#${storage} ${bytes(nbytes[storage])} ${shortened(name, 28)}`;
  }

  key(event) {
    const by = { j: 1, k: -1 }[event.key];
    const types = event.target.closest?.("input, select, textarea");
    if (by === undefined || types || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.next(by);
    document.getElementById("storage").scrollIntoView({ block: "nearest" });
  }

  name() {
    if (this.picked !== null) choose({ storage: String(this.picked) }, { here: true });
  }

  showNamed() {
    const storage = Number(chosenAs("storage") ?? -1);
    if (storage in this.trace.storages.nbytes && storage !== this.picked) this.show(storage);
  }

  highlight([from, to]) {
    const row = this.picked === null ? -1 : this.selection.order.indexOf(this.picked);
    if (row < 0) return [];
    const line = { color: colour("accent"), width: 1.5 };
    return [{ type: "rect", x0: from, x1: to, y0: row - 0.5, y1: row + 0.5, line, fillcolor: "rgba(0,0,0,0)" }];
  }

  pointed(event) {
    const box = this.chart.area.getBoundingClientRect();
    const { l, t } = this.chart.margin();
    const [from, to] = this.chart.view.y;
    const part = 1 - (event.clientY - box.top - t) / this.chart.size.height;
    const row = Math.round(from + part * (to - from));
    if (part < 0 || part > 1 || event.clientX - box.left < l || this.selection.order[row] === undefined) return;
    if (this.selection.order[row] !== this.picked) this.describe(this.selection.order[row]);
  }

  next(by) {
    const { order } = this.selection;
    if (!order.length) return;
    const row = Math.min(Math.max((this.picked === null ? -by : order.indexOf(this.picked)) + by, 0), order.length - 1);
    this.pick(order[row]);
    this.name();
  }

  /* Says what there is to say of a storage and moves it into view. */
  pick(storage) {
    this.describe(storage);
    const row = this.selection.order.indexOf(storage);
    const [from, to] = this.chart.view.y;
    if (row < Math.min(from, to) || row > Math.max(from, to)) {
      const half = Math.abs(from - to) / 2;
      this.chart.look({ y: [row + half, row - half] });
    } else this.chart.draw();
  }

  /* Zooms to one storage. */
  show(storage) {
    this.selection.include(storage);
    const row = this.selection.order.indexOf(storage);
    this.chart.view = { x: [...this.chart.full.x], y: [row + 8.5, row - 8.5] };
    this.chart.look(this.chart.view);
    this.describe(storage);
    this.name();
    this.section.scrollIntoView({ behavior: "smooth" });
    this.chart.area.focus({ preventScroll: true });
  }

  describe(storage) {
    this.picked = storage;
    const lines = storage === null ? [element("p", "No storage is chosen.")] : this.words.of(storage);
    document.getElementById("storage").replaceChildren(...lines);
  }
}
