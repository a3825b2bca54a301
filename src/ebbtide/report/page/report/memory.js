/* Live bytes over the step, stacked by kind, and what the peak is made of. */

import { Chart, colour } from "../shared/charts.js";
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
    <p>Live bytes at each operation, by what they are to the training step<span class="uses">, and what the operation
      uses. What the line does not reach lies idle meanwhile</span>.</p>
    <div class="chart" data-label="Live bytes over the step, stacked by kind"></div>
    <details id="peak">
      <summary></summary>
      <div class="columns">
        <div><h3>By kind</h3><div id="peak-kinds"></div></div>
        <div><h3>By module</h3><div id="peak-modules"></div></div>
        <div class="lines"><h3>By line</h3><div id="peak-lines"></div></div>
      </div>
      <h3>Every storage that is there</h3>
      <div id="peak-storages"></div>
    </details>`,
  draw(data, section) {
    if (!data.trace.accesses_known) withoutUses(section);
    memoryChart(data, section);
    peakContents(data);
  },
});

function withoutUses(section) {
  section.querySelector(".uses").remove();
  const note =
    "The trace holds allocations only: which operations use a storage, and so when it lies idle, is not known.";
  section.querySelector("p").append(` ${note}`);
}

/* The ticks to draw of those in view: at most one for each of `room` equal times, the one with the most live bytes, so
   that no peak is lost. The last tick before the view is there too. */
function ticksToDraw(start_ns, live, low, high, room) {
  const first = Math.max(firstPlace(start_ns, low, true) - 1, 0);
  const end = Math.min(firstPlace(start_ns, high, true), live.length);
  const chosen = [];
  let slot = -1;
  for (let tick = first; tick < end; tick++) {
    const here = Math.floor(((start_ns[tick] - low) / (high - low)) * room);
    if (here !== slot) chosen.push(tick);
    else if (live[tick] > live[chosen[chosen.length - 1]]) chosen[chosen.length - 1] = tick;
    slot = here;
  }
  return chosen;
}

function memoryChart({ trace, memory, peak }, section) {
  const step = Math.max(trace.step_ns, 1);
  const [timeName, timeSize] = timeUnit(step);
  const [byteName, byteSize] = byteUnit(peak.nbytes);
  const start = trace.start_ns;
  const build = (chart) => {
    const [low, high] = chart.view.x || [0, step / timeSize];
    const ticks = ticksToDraw(start, memory.live, low * timeSize, high * timeSize, chart.size.width);
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
    if (trace.accesses_known)
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
        xaxis: {
          title: { text: `time in the step, ${timeName}` },
          hoverformat: ".4~g",
          unifiedhovertitle: { text: `at %{x:.4~g} ${timeName}` },
        },
        yaxis: { title: { text: chart.narrow ? "" : byteName }, rangemode: "tozero" },
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
  drawing.area.on("plotly_click", ({ points }) => {
    if (points.some((point) => point.data.name === "peak")) showPeak();
  });
}

function showPeak() {
  const panel = document.getElementById("peak");
  panel.open = true;
  panel.querySelector("summary").focus();
}

function peakContents(data) {
  const { trace, peak } = data;
  const selection = selectionOf(data);
  const where = [peak.operator, peak.module && `in ${peak.module}`].filter(Boolean).join(" ");
  document.querySelector("#peak > summary").textContent =
    `Peak: ${bytes(peak.nbytes)} at ${time(peak.time_ns)}${where && `, ${where}`}. What is there?`;
  const shares = (id, rows, title, name) =>
    new Table(
      document.getElementById(id),
      [
        { title, value: (row) => rows[row][0], text: (row) => name(rows[row][0]) || "(none)" },
        { title: "Bytes", number: true, value: (row) => rows[row][1], text: (row) => bytes(rows[row][1]) },
        {
          title: "Share",
          number: true,
          value: (row) => rows[row][1],
          text: (row) => percent(rows[row][1], peak.nbytes),
        },
        { title: "Storages", number: true, value: (row) => rows[row][2], text: (row) => count(rows[row][2]) },
      ],
      rows.keys(),
      { sorted: [1, true], caption: `The peak by ${title.toLowerCase()}` },
    );
  shares("peak-kinds", peak.kinds, "Kind", kindName);
  shares("peak-modules", peak.modules, "Module", (name) => name);
  if (trace.lines_known) shares("peak-lines", peak.lines, "Line", (name) => name || "(made before the step)");
  else document.querySelector("#peak .lines").remove();
  const { storage, nbytes, age_ns, idle_ns } = peak.residents;
  const { kind, module } = trace.storages;
  const idle = (row) =>
    !trace.accesses_known
      ? "not recorded"
      : idle_ns[row] < 0
        ? "no further use"
        : idle_ns[row] === 0
          ? "in use"
          : time(idle_ns[row]);
  new Table(
    document.getElementById("peak-storages"),
    [
      { title: "Storage", number: true, value: (row) => storage[row], text: (row) => `#${storage[row]}` },
      { title: "Bytes", number: true, value: (row) => nbytes[row], text: (row) => bytes(nbytes[row]) },
      { title: "Kind", value: (row) => kind[storage[row]], text: (row) => kindName(trace.kinds[kind[storage[row]]]) },
      {
        title: "Module",
        value: (row) => trace.strings[module[storage[row]]],
        text: (row) => trace.strings[module[storage[row]]],
      },
      ...lineColumn(trace, (row) => storage[row]),
      {
        title: "Born by",
        value: (row) => peak.operators[row],
        text: (row) => peak.operators[row] || "an earlier step",
      },
      {
        title: "Age",
        number: true,
        value: (row) => age_ns[row],
        text: (row) => (age_ns[row] < 0 ? "" : time(age_ns[row])),
      },
      { title: "Idle around it", number: true, value: (row) => idle_ns[row], text: idle },
    ],
    storage.keys(),
    {
      sorted: [1, true],
      caption: "Storages at the peak",
      action: (row) => button("show", `Show storage ${storage[row]} in the chart`, () => selection.show(storage[row])),
    },
  );
}
