/* The Gantt chart of storages, its filter, and what is said of one storage. */

const MOST_MARKS = 40000; // more marks than this in one view are a blur, and slow
const LABELLED_ROWS = 30;

/* Which storages are chosen, in what order; who listens is told of changes. */
class Selection {
  constructor({ trace, intervals }) {
    this.trace = trace;
    this.listeners = [];
    this.form = document.getElementById("filter");
    const { nbytes, module, kind, birth } = trace.storages;
    this.idle = new Float64Array(nbytes.length);
    intervals.storage.forEach((storage, row) => { this.idle[storage] += intervals.byte_seconds[row]; });
    this.by = {
      birth: (one, other) => birth[one] - birth[other] || one - other,
      size: (one, other) => nbytes[other] - nbytes[one] || one - other,
      idle: (one, other) => this.idle[other] - this.idle[one] || one - other,
      module: (one, other) => module[one] - module[other] || kind[one] - kind[other] || one - other,
    };
    const kinds = document.getElementById("kinds");
    trace.kinds.forEach((name, number) => {
      const label = element("label");
      const box = element("input", "", { type: "checkbox", name: "kind", value: number });
      box.checked = true;
      label.append(box, element("span", "", { class: "swatch", style: `background: var(--${name})` }), kindName(name));
      kinds.append(label);
    });
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", () => this.apply());
    this.apply();
  }

  apply() {
    const { storages, strings, kinds } = this.trace;
    const fields = new FormData(this.form);
    const wanted = fields.get("module").trim().toLowerCase();
    const least = (Number(fields.get("size")) || 0) * 2 ** 20;
    const ofModule = strings.map((name) => name.toLowerCase().includes(wanted));
    const ofKind = kinds.map((_, number) => fields.getAll("kind").includes(String(number)));
    this.chosen = Uint8Array.from(storages.nbytes, (nbytes, storage) =>
      nbytes >= least && ofModule[storages.module[storage]] && ofKind[storages.kind[storage]]);
    this.order = [...this.chosen.keys()].filter((storage) => this.chosen[storage]).sort(this.by[fields.get("order")]);
    const total = this.order.reduce((sum, storage) => sum + storages.nbytes[storage], 0);
    this.form.elements.count.value =
      `${count(this.order.length)} of ${count(storages.nbytes.length)} storages, ${bytes(total)} in all`;
    for (const listener of this.listeners) listener();
  }

  /* Makes sure that a storage is among the chosen. */
  include(storage) {
    if (this.chosen[storage]) return;
    const order = this.form.elements.order.value;
    this.form.reset();
    this.form.elements.order.value = order;
    this.apply();
  }
}

/* The times in which a storage is there, as pairs in ns; one that lives past the step's end is there at its start. */
function livesOf({ storages, start_ns, step_ns }, storage) {
  const n_ticks = start_ns.length - 1;
  const [birth, death] = [storages.birth[storage], storages.death[storage]];
  if (storages.persistent[storage] || death - birth >= n_ticks) return [[0, step_ns]];
  if (death <= n_ticks) return [[start_ns[birth], start_ns[death]]];
  return [[0, start_ns[death - n_ticks]], [start_ns[birth], step_ns]];
}

class Storages {
  constructor(data, selection) {
    Object.assign(this, { data, trace: data.trace, selection, picked: null });
    [this.timeName, this.timeSize] = timeUnit(this.trace.step_ns);
    const { storage } = this.trace.accesses;
    const numbers = Array.from({ length: this.trace.storages.nbytes.length + 1 }, (_, number) => number);
    this.rowsOf = numbers.map((number) => firstPlace(storage, number)); // where each storage's accesses begin
    this.chart = new Chart("storages", (chart) => this.build(chart), { follows: true, axes: ["x", "y"] });
    this.chart.keys = { j: () => this.next(1), k: () => this.next(-1) };
    selection.listeners.push(() => {
      this.chart.view.y = null;
      this.chart.draw();
    });
    this.chart.area.addEventListener("mousemove", (event) => this.pointed(event));
    this.describe(null);
  }

  build(chart) {
    const { order } = this.selection;
    const full = { x: [0, Math.max(this.trace.step_ns, 1) / this.timeSize], y: [Math.max(order.length, 1) - 0.5, -0.5] };
    const x = chart.view.x || full.x;
    const y = chart.view.y || full.y;
    const rows = [Math.max(Math.ceil(Math.min(...y) - 0.5), 0), Math.min(Math.floor(Math.max(...y) + 0.5), order.length - 1)];
    const rowHeight = chart.size.height / Math.abs(y[0] - y[1]);
    const labelled = rows[1] - rows[0] < LABELLED_ROWS && !chart.narrow;
    const visible = order.slice(rows[0], rows[1] + 1);
    return {
      traces: [...this.bars(visible, rows[0], x, rowHeight), ...this.marks(visible, rows[0], x, rowHeight)],
      full,
      layout: {
        hovermode: false,
        xaxis: { title: { text: `time in the step, ${this.timeName}` } },
        yaxis: {
          showgrid: false, zeroline: false, ticklabelposition: "inside",
          tickvals: labelled ? visible.map((_, place) => rows[0] + place) : [],
          ticktext: labelled ? visible.map((storage) => plain(this.label(storage))) : [],
          title: { text: labelled || chart.narrow ? "" : `storages, ${this.selection.form.elements.order.selectedOptions[0].text}` },
        },
        shapes: this.highlight(full.x),
      },
    };
  }

  label(storage) {
    const { nbytes, module } = this.trace.storages;
    return `#${storage} ${bytes(nbytes[storage])} ${shortened(this.trace.strings[module[storage]], 28)}`;
  }

  highlight([from, to]) {
    const row = this.picked === null ? -1 : this.selection.order.indexOf(this.picked);
    if (row < 0) return [];
    const line = { color: colour("accent"), width: 1.5 };
    return [{ type: "rect", x0: from, x1: to, y0: row - 0.5, y1: row + 0.5, line, fillcolor: "rgba(0,0,0,0)" }];
  }

  bars(visible, firstRow, [low, high], rowHeight) {
    const { kinds, storages } = this.trace;
    const lines = kinds.map(() => ({ x: [], y: [] }));
    visible.forEach((storage, place) => {
      for (const [from, to] of livesOf(this.trace, storage)) {
        const [left, right] = [Math.max(from / this.timeSize, low), Math.min(to / this.timeSize, high)];
        if (left > right) continue;
        const line = lines[storages.kind[storage]];
        line.x.push(left, right, null);
        line.y.push(firstRow + place, firstRow + place, null);
      }
    });
    const width = Math.min(Math.max(0.75 * rowHeight, 1), 16);
    return kinds.map((kind, number) => ({
      type: "scattergl", mode: "lines", name: kindName(kind), showlegend: false, hoverinfo: "skip", ...lines[number],
      line: { width, color: colour(kind) }, opacity: 0.55,
    }));
  }

  marks(visible, firstRow, [low, high], rowHeight) {
    const { accesses, start_ns } = this.trace;
    const n_ticks = start_ns.length - 1;
    const found = [];
    visible.forEach((storage, place) => {
      for (let row = this.rowsOf[storage]; row < this.rowsOf[storage + 1]; row++) {
        const x = start_ns[accesses.tick[row] % n_ticks] / this.timeSize;
        if (x >= low && x <= high) found.push([x, firstRow + place, accesses.mode[row]]);
      }
    });
    const every = Math.ceil(found.length / MOST_MARKS);
    const drawn = every > 1 ? found.filter((_, place) => place % every === 0) : found;
    const size = Math.min(Math.max(0.6 * rowHeight, 1.5), 7);
    return [["reads", [1], "ink"], ["writes", [2, 3], "stall_demand"]].map(([name, modes, shade]) => {
      const here = drawn.filter(([, , mode]) => modes.includes(mode));
      return {
        type: "scattergl", mode: "markers", hoverinfo: "skip",
        name: every > 1 ? `${name} (one of ${every}: zoom in for all)` : name,
        x: here.map(([x]) => x), y: here.map(([, y]) => y),
        marker: { symbol: "square", size, color: colour(shade), line: { width: 0 } },
      };
    });
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
    document.getElementById("storages").scrollIntoView({ behavior: "smooth" });
    this.chart.area.focus({ preventScroll: true });
  }

  describe(storage) {
    this.picked = storage;
    const panel = document.getElementById("storage");
    if (storage === null) {
      panel.replaceChildren(element("p", "No storage is chosen."));
      return;
    }
    const { storages, accesses, strings, kinds, ticks, start_ns } = this.trace;
    const n_ticks = start_ns.length - 1;
    const [from, to] = [this.rowsOf[storage], this.rowsOf[storage + 1]];
    const operators = (low, high) => Array.from(accesses.tick.slice(low, high), (tick) => strings[ticks.operator[tick % n_ticks]]);
    const module = strings[storages.module[storage]];
    const head = element("strong", `#${storage}: ${bytes(storages.nbytes[storage])}, ${kindName(kinds[storages.kind[storage]])}`);
    const life = storages.persistent[storage]
      ? "lives before, through and after the step"
      : `lives from ${time(start_ns[storages.birth[storage]])} (${strings[ticks.operator[storages.birth[storage]]] || "?"}) for ` +
        time(this.lifetime(storage));
    const uses = storages.scratch[storage]
      ? "scratch, in use throughout"
      : `${count(to - from)} accesses` + (to > from ? `, first by ${operators(from, from + 1)}, last by ${operators(to - 1, to)}` : "");
    const idle = this.selection.idle[storage];
    const waits = idle ? `; idle between uses for ${threeDigits(idle / 2 ** 30)} GiB\u00b7s in all` : "";
    panel.replaceChildren(head, element("div", module || "(no module)"), element("div", `${life}; ${uses}${waits}.`));
  }

  lifetime(storage) {
    const { storages, start_ns, step_ns } = this.trace;
    const n_ticks = start_ns.length - 1;
    const death = storages.death[storage];
    return Math.floor(death / n_ticks) * step_ns + start_ns[death % n_ticks] - start_ns[storages.birth[storage]];
  }
}
