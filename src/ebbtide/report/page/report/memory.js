/* Live bytes over the step, stacked by kind, and what the peak is made of. */

import { Chart, colour } from "../shared/charts.js";
import { contentsAt } from "../shared/contents.js";
import { firstPlace } from "../shared/data.js";
import { addSection } from "../shared/sections.js";
import { selectionOf } from "../shared/selection.js";
import { lineColumn, Table } from "../shared/tables.js";
import { button, bytes, byteUnit, count, kindName, percent, plain, time, timeUnit } from "../shared/words.js";

addSection({
  id: "memory",
  title: "Memory over time",
  place: 10,
  needs: ["trace", "memory", "peak"],
  origins: ({ trace }) => [trace.origin],
  body: `
    <p>Live bytes at each operation, by what they are to the training step, and what the operation
      uses. What the line does not reach lies idle meanwhile. A click shows what is there at that moment; with the
      chart focused, <kbd>,</kbd> and <kbd>.</kbd> go to the moment before and after, <kbd>p</kbd> to the peak.</p>
    <div class="chart" data-label="Live bytes over the step, stacked by kind"></div>
    <details id="peak">
      <summary aria-live="polite"></summary>
      <div class="columns">
        <div><h3>By kind</h3><div id="peak-kinds"></div></div>
        <div><h3>By module</h3><div id="peak-modules"></div></div>
        <div class="lines"><h3>By line</h3><div id="peak-lines"></div></div>
      </div>
      <h3>Every storage that is there</h3>
      <div id="peak-storages"></div>
    </details>`,
  draw(data, section) {
    memoryChart(data, section, new Contents(data));
  },
});

/* The ticks to draw of those in view: at most two for each of `room` equal times, the one with the most live bytes, so
   that no peak is lost, and the last, whose level stays until the next that is drawn. The last tick before the view is
   there too. */
function ticksToDraw(start_ns, live, low, high, room) {
  const first = Math.max(firstPlace(start_ns, low, true) - 1, 0);
  const end = Math.min(firstPlace(start_ns, high, true), live.length);
  const slot = (tick) => Math.floor(((start_ns[tick] - low) / (high - low)) * room);
  const chosen = [];
  let most = first;
  for (let tick = first; tick < end; tick++) {
    if (live[tick] > live[most]) most = tick;
    if (tick + 1 < end && slot(tick + 1) === slot(tick)) continue;
    if (most < tick) chosen.push(most);
    chosen.push(tick);
    most = tick + 1;
  }
  return chosen;
}

const NEAR = 8; // pixels to the peak's mark within which a click means the peak
const POINTED = 20; // and to where an operation begins within which it is the one that is told of

function memoryChart({ trace, memory, peak }, section, contents) {
  const step = Math.max(trace.step_ns, 1);
  const [timeName, timeSize] = timeUnit(step);
  const [byteName, byteSize] = byteUnit(peak.nbytes);
  const start = trace.start_ns;
  const build = (chart) => {
    const [low, high] = chart.view.x || [0, step / timeSize];
    const ticks = ticksToDraw(start, memory.live, low * timeSize, high * timeSize, chart.size.width);
    chart.ticks = ticks;
    const closed = [...ticks, ticks[ticks.length - 1]];
    const x = ticks.map((tick) => start[tick] / timeSize);
    x.push(start[closed[closed.length - 1] + 1] / timeSize);
    const kinds = trace.kinds.filter((kind) => memory.by_kind[kind].some((held) => held));
    const traces = kinds.map((kind) => ({
      type: "scatter",
      mode: "lines",
      stackgroup: "live",
      name: kindName(kind),
      x,
      y: closed.map((tick) => memory.by_kind[kind][tick] / byteSize),
      line: { shape: "hv", width: 0.5, color: colour(kind) },
      fillcolor: colour(kind),
      hovertemplate: `%{y:.3g} ${byteName}<extra>${kindName(kind)}</extra>`,
    }));
    traces.push({
      type: "scatter",
      mode: "lines",
      name: "in use",
      x,
      y: closed.map((tick) => memory.used[tick] / byteSize),
      line: { shape: "hv", width: 1, color: colour("ink") },
      hovertemplate: `%{y:.3g} ${byteName}<extra>in use</extra>`,
    });
    traces.push({
      type: "scatter",
      mode: "lines",
      name: "in all",
      showlegend: false,
      x,
      y: closed.map((tick) => memory.live[tick] / byteSize),
      text: closed.map((tick) => plain(trace.strings[trace.ticks.operator[tick]] || "an operation")),
      line: { shape: "hv", width: 0 },
      hovertemplate: `%{y:.4~g} ${byteName} at %{text}<extra>in all</extra>`,
    });
    traces.push({
      type: "scatter",
      mode: "markers",
      name: "peak",
      showlegend: false,
      cliponaxis: false,
      x: [peak.time_ns / timeSize],
      y: [peak.nbytes / byteSize],
      marker: { symbol: "triangle-down", size: 13, color: colour("ink") },
      hovertemplate: `peak: ${bytes(peak.nbytes)}, click for its contents<extra></extra>`,
    });
    return {
      traces,
      full: { x: [0, step / timeSize] },
      layout: {
        hovermode: "x unified",
        hoverdistance: POINTED,
        xaxis: {
          title: { text: `time in the step, ${timeName}` },
          hoverformat: ".4~g",
          unifiedhovertitle: { text: `at %{x:.4~g} ${timeName}` },
        },
        yaxis: { title: { text: chart.narrow ? "" : byteName }, rangemode: "tozero" },
        shapes: contents.isOfPeak ? [] : [markOf(start, contents.shown.tick, timeSize)],
        annotations: [
          {
            x: peak.time_ns / timeSize,
            y: peak.nbytes / byteSize,
            text: bytes(peak.nbytes),
            showarrow: false,
            yshift: 16,
            xanchor: peak.time_ns > step / 2 ? "right" : "left",
          },
        ],
      },
    };
  };
  const drawing = new Chart(section, build, { follows: true });
  const show = (tick) => {
    contents.show(tick);
    drawing.draw();
  };
  const next = (by) => () => {
    const place = firstPlace(drawing.ticks, contents.shown.tick, by > 0) + Math.min(by, 0);
    if (by > 0 ? place < drawing.ticks.length : place >= 0) show(drawing.ticks[place]);
  };
  drawing.keys = { ",": next(-1), ".": next(1), p: () => show(peak.tick) };
  onClick(drawing.area, (part) => {
    const [low, high] = drawing.view.x.map((value) => value * timeSize);
    const at = low + part * (high - low);
    const pixels = (tick) => (Math.abs(start[tick] - at) / (high - low)) * drawing.size.width;
    const near = [peak.tick, ...drawing.ticks].sort((one, other) => pixels(one) - pixels(other))[0];
    const begun = drawing.ticks.findLast((tick) => start[tick] <= at) ?? near;
    show(pixels(peak.tick) <= NEAR ? peak.tick : pixels(near) <= POINTED ? near : begun);
    contents.panel.querySelector("summary").focus();
  });
}

/* The operation whose contents are shown: as wide as it is long. */
function markOf(start, tick, timeSize) {
  const [x0, x1] = [start[tick] / timeSize, start[tick + 1] / timeSize];
  const line = { color: colour("accent"), width: 1.5 };
  return { type: "rect", x0, x1, yref: "paper", y0: 0, y1: 1, line, fillcolor: "rgba(0,0,0,0)" };
}

/* Calls `clicked` with the part of the plot's width at which it is clicked. A drag is no click, of which the library
   tells none. What it tells of a finger has no place, so that is where the finger went down. */
function onClick(area, clicked) {
  let [x, y] = [0, 0];
  area.addEventListener("pointerdown", ({ clientX, clientY }) => {
    [x, y] = [clientX, clientY];
  });
  area.addEventListener("click", () => {
    const { left, right, top, bottom } = area.querySelector(".nsewdrag").getBoundingClientRect();
    if (left <= x && x <= right && top <= y && y <= bottom) clicked((x - left) / (right - left));
  });
}

/* The panel below the chart: what is there at one moment, first at the peak. */
class Contents {
  constructor(data) {
    this.data = data;
    this.panel = document.getElementById("peak");
    const shares = (id, title, part, name) =>
      this.table(
        id,
        [
          {
            title,
            value: (row) => this.shown[part][row][0],
            text: (row) => name(this.shown[part][row][0]) || "(none)",
          },
          this.figure("Bytes", (row) => this.shown[part][row][1], bytes),
          this.figure(
            "Share",
            (row) => this.shown[part][row][1],
            (held) => percent(held, this.shown.nbytes),
          ),
          this.figure("Storages", (row) => this.shown[part][row][2], count),
        ],
        `What is there by ${title.toLowerCase()}`,
      );
    this.shown = data.peak;
    const line = (name) => name || "(made before the step)";
    this.tables = {
      kinds: shares("peak-kinds", "Kind", "kinds", kindName),
      modules: shares("peak-modules", "Module", "modules", (name) => name),
      ...(data.trace.lines_known ? { lines: shares("peak-lines", "Line", "lines", line) } : {}),
      operators: this.storages(),
    };
    if (!data.trace.lines_known) document.querySelector("#peak .lines").remove();
    this.fill();
  }

  get isOfPeak() {
    return this.shown.tick === this.data.peak.tick;
  }

  show(tick) {
    this.shown = tick === this.data.peak.tick ? this.data.peak : contentsAt(this.data, tick);
    this.fill();
    this.panel.open = true;
  }

  fill() {
    const { operator, module, nbytes, time_ns } = this.shown;
    const where = [operator, module && `in ${module}`].filter(Boolean).join(" ");
    this.panel.querySelector("summary").textContent =
      `${this.isOfPeak ? "Peak: " : ""}${bytes(nbytes)} at ${time(time_ns)}${where && `, ${where}`}. What is there?`;
    for (const [part, table] of Object.entries(this.tables)) table.show(this.shown[part].keys());
  }

  table(id, columns, caption, action = null) {
    return new Table(document.getElementById(id), columns, [], { sorted: [1, true], caption, action });
  }

  figure(title, value, text) {
    return { title, number: true, value, text: (row) => text(value(row)) };
  }

  storages() {
    const { trace } = this.data;
    const selection = selectionOf(this.data);
    const { kind, module } = trace.storages;
    const storage = (row) => this.shown.residents.storage[row];
    const held = (name) => (row) => this.shown.residents[name][row];
    const moduleOf = (row) => trace.strings[module[storage(row)]];
    const idle = (ns) => (ns < 0 ? "no further use" : ns === 0 ? "in use" : time(ns));
    return this.table(
      "peak-storages",
      [
        this.figure("Storage", storage, (number) => `#${number}`),
        this.figure("Bytes", held("nbytes"), bytes),
        { title: "Kind", value: (row) => kind[storage(row)], text: (row) => kindName(trace.kinds[kind[storage(row)]]) },
        { title: "Module", value: moduleOf, text: moduleOf },
        ...lineColumn(trace, storage),
        {
          title: "Born by",
          value: (row) => this.shown.operators[row],
          text: (row) => this.shown.operators[row] || "an earlier step",
        },
        this.figure("Age", held("age_ns"), (ns) => (ns < 0 ? "" : time(ns))),
        this.figure("Idle around it", held("idle_ns"), idle),
      ],
      "Storages that are there",
      (row) => button("show", `Show storage ${storage(row)} in the chart`, () => selection.show(storage(row))),
    );
  }
}
