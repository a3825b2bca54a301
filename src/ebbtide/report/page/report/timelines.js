/* What was planned and what was measured, in lanes over one time axis, with resident bytes against the budget. */

import { Chart, colour } from "../shared/charts.js";
import { addSection } from "../shared/sections.js";
import { selectionOf } from "../shared/selection.js";
import { Table } from "../shared/tables.js";
import { button, bytes, byteUnit, element, kindName, plain, shortened, time, timeUnit } from "../shared/words.js";

addSection({
  id: "timelines",
  title: "Planned against measured",
  place: 60,
  needs: ["timelines"],
  origins: ({ timelines }) => timelines.map(({ origin }) => origin),
  body: `
    <div id="comparison"></div>
    <div class="chart" data-label="Lanes of compute, stalls and copies, and resident bytes"></div>
    <h3>What each stall waited for</h3>
    <div id="stalls"></div>`,
  draw(data, section) {
    comparisonTable(data);
    timelineChart(data, section);
    stallTable(data);
  },
});

const LANE_GAP = 0.35;
const MOST_NUMBERS = 6;

/* Spans of one lane and kind that are in view, those closer than a pixel as one: [[from, to], ...]. */
function mergedSpans({ start, stop }, low, high, pixel) {
  const merged = [];
  for (let row = 0; row < start.length && start[row] <= high; row++) {
    if (stop[row] < low) continue;
    const last = merged[merged.length - 1];
    if (last && start[row] - last[1] < pixel) last[1] = Math.max(last[1], stop[row]);
    else merged.push([start[row], stop[row]]);
  }
  return merged;
}

function timelineChart({ timelines, budgets }, section) {
  const longest = Math.max(...timelines.map(({ end_ns }) => end_ns), 1);
  const [timeName, timeSize] = timeUnit(longest);
  const most = Math.max(
    ...budgets.map(([, nbytes]) => nbytes),
    ...timelines.map(({ levels }) => (levels.length ? levels[0].most_bytes : 0)),
  );
  const [byteName, byteSize] = byteUnit(most);
  const lanes = timelines.flatMap((timeline) => timeline.lanes.map((lane) => ({ ...lane, timeline })));
  const kinds = [...new Set(lanes.flatMap(({ groups }) => groups.map(({ kind }) => kind)))];
  const inks = ["parameter", "ink", "optimizer_state"]; // and no dashes, which are the budgets'
  const build = (chart) => {
    chart.left = chart.narrow ? 122 : 190;
    const [low, high] = (chart.view.x || [0, longest / timeSize]).map((value) => value * timeSize);
    const pixel = (high - low) / chart.size.width;
    const traces = kinds.map((kind) => {
      const bars = lanes.flatMap(({ groups }, lane) =>
        groups
          .filter((group) => group.kind === kind)
          .flatMap((group) =>
            mergedSpans(group, low, high, pixel).map(([from, to]) => [lane, from, Math.max(to - from, pixel / 2)]),
          ),
      );
      return {
        type: "bar",
        orientation: "h",
        name: kindName(kind),
        marker: { color: colour(kind), line: { width: 0 } },
        base: bars.map(([, from]) => from / timeSize),
        x: bars.map(([, , length]) => length / timeSize),
        y: bars.map(([lane]) => lane),
        width: 1 - LANE_GAP,
        hovertemplate: `${kindName(kind)} from %{base:.5~g} ${timeName} for %{text}<extra></extra>`,
        text: bars.map(([, , length]) => time(length)),
        textposition: "none",
      };
    });
    for (const [number, timeline] of timelines.entries())
      for (const [rank, level] of timeline.levels.entries())
        traces.push({
          visible: rank === 0 || "legendonly", // the budget is the fastest tier's
          type: "scatter",
          mode: "lines",
          yaxis: "y2",
          showlegend: !chart.narrow,
          name: plain(`${level.tier}, ${timeline.name}`),
          x: Array.from(level.time, (ns) => ns / timeSize),
          y: Array.from(level.nbytes, (held) => held / byteSize),
          line: {
            shape: "hv",
            width: Math.max(2.5 - number, 1), // one below another shows beside it
            color: colour(inks[number % inks.length]),
          },
        });
    const hasLevels = traces.length > kinds.length;
    const bounds = hasLevels ? budgets.map(([, nbytes]) => nbytes / byteSize) : [];
    const strokes = bounds.length > 1 ? ["\u2013\u2009\u2013 ", "\u00b7\u00b7\u00b7 "] : [""]; // as the lines are drawn
    const named = budgets.map(([name, nbytes], place) => `${strokes[place]}${name} ${bytes(nbytes)}`);
    const [levelsTop, lanesFoot] = chart.narrow ? [0.38, 0.47] : [0.4, 0.46];
    return {
      traces,
      full: { x: [0, longest / timeSize] },
      layout: {
        barmode: "overlay",
        hovermode: "closest",
        xaxis: { title: { text: `time in the step, ${timeName}` }, anchor: hasLevels ? "y2" : "y" },
        yaxis: {
          tickvals: lanes.map((_, lane) => lane),
          range: [lanes.length - 0.4, -0.6],
          showgrid: false,
          zeroline: false,
          tickfont: { size: chart.narrow ? 10 : 12 },
          ticktext: lanes.map(({ name, timeline }) =>
            plain(chart.narrow ? `${timeline.origin} ${shortened(name, 14)}` : `${timeline.name}: ${name}`),
          ),
          domain: hasLevels ? [lanesFoot, 1] : [0, 1],
        },
        ...(hasLevels
          ? {
              yaxis2: {
                domain: [0, levelsTop],
                title: { text: `resident, ${byteName}` },
                rangemode: "tozero",
                fixedrange: true,
              },
            }
          : {}),
        shapes: bounds.map((y, place) => ({
          type: "line",
          xref: "paper",
          x0: 0,
          x1: 1,
          yref: "y2",
          y0: y,
          y1: y,
          line: { color: colour("warn"), width: 1.5, dash: place ? "dot" : "dash" },
        })),
        annotations: bounds.slice(0, 1).map(() => ({
          xref: "paper",
          x: 1,
          yref: "paper",
          y: levelsTop, // above all that is drawn
          text: named.join(chart.narrow ? "<br>" : ", "),
          showarrow: false,
          align: "right",
          xanchor: "right",
          yanchor: "bottom",
          font: { color: colour("warn") },
        })),
      },
    };
  };
  section.querySelector(".chart").style.height = `${260 + 34 * lanes.length}px`;
  new Chart(section, build, { follows: true });
}

function stallTable(data) {
  const { timelines, trace } = data;
  if (!timelines.some(({ stalls }) => stalls.start.length)) {
    document.getElementById("stalls").append(element("p", "No operation stood still."));
    return;
  }
  const named = (storage) => {
    if (storage < 0) return "a copy";
    if (!trace) return `#${storage}`;
    const { module, line } = trace.storages;
    const of = trace.strings[module[storage]] || trace.strings[line[storage]];
    return `#${storage}, ${kindOf(storage)}${of ? ` of ${of}` : ""}`;
  };
  const kindOf = (storage) => (trace && storage >= 0 ? kindName(trace.kinds[trace.storages.kind[storage]]) : "");
  const rows = timelines.flatMap(({ name, stalls }) =>
    Array.from(stalls.start.keys(), (row) => ({ name, stalls, row })),
  );
  const at = (pick) => (place) => pick(rows[place].stalls, rows[place].row);
  const sizeOf = ([storage, , nbytes]) => nbytes || trace?.storages.nbytes[storage] || 0; // a stall may not say how much
  const together = (copies) => {
    const [[storage, lane]] = copies;
    const nbytes = copies.reduce((sum, copy) => sum + sizeOf(copy), 0);
    const numbers = copies.slice(0, MOST_NUMBERS).map(([number]) => (number < 0 ? "a copy" : `#${number}`));
    const more = copies.length > MOST_NUMBERS ? ` and ${copies.length - MOST_NUMBERS} more` : "";
    const kind = kindOf(storage);
    const name = copies.length === 1 ? named(storage) : numbers.join(", ") + more + (kind && `, ${kind}`);
    return `${name} (${nbytes ? `${bytes(nbytes)} ` : ""}on ${lane})`;
  };
  const awaited = at((stalls, row) => {
    const groups = new Map(); // copies of one kind on one lane
    for (const copy of stalls.awaited[row]) {
      const key = `${kindOf(copy[0])} ${copy[1]}`;
      groups.set(key, [...(groups.get(key) || []), copy]);
    }
    return [...groups.values()].map(together).join("; ") || "nothing that is recorded";
  });
  const columns = [
    {
      title: "At",
      number: true,
      value: at(({ start }, row) => start[row]),
      text: at(({ start }, row) => time(start[row])),
    },
    {
      title: "For",
      number: true,
      value: at(({ start, stop }, row) => stop[row] - start[row]),
      text: at(({ start, stop }, row) => time(stop[row] - start[row])),
    },
    {
      title: "Cause",
      value: at(({ kind }, row) => kind[row]),
      text: at(({ kind }, row) => kind[row].replace("stall_", "")),
    },
    { title: "Waited for", value: awaited, text: awaited },
    { title: "Operation", value: at(({ where }, row) => where[row]), text: at(({ where }, row) => where[row]) },
    { title: "In", value: (place) => rows[place].name, text: (place) => rows[place].name },
  ];
  const first = (place) => rows[place].stalls.awaited[rows[place].row].find(([storage]) => storage >= 0);
  new Table(document.getElementById("stalls"), columns, rows.keys(), {
    sorted: [1, true],
    caption: "Stalls",
    action: (place) =>
      trace && first(place)
        ? button("show", `Show storage ${first(place)[0]} in the chart`, () => selectionOf(data).show(first(place)[0]))
        : element("span"),
  });
}

function comparisonTable({ timelines }) {
  const figure = (title, read, pick) => ({
    title,
    number: true,
    value: (row) => pick(timelines[row]),
    text: (row) => read(pick(timelines[row])),
  });
  const links = [...new Set(timelines.flatMap(({ moved }) => Object.keys(moved)))];
  new Table(
    document.getElementById("comparison"),
    [
      { title: "Timeline", value: (row) => row, text: (row) => timelines[row].name },
      figure("Step", time, ({ step_ns }) => step_ns),
      figure("Stalled for room", time, ({ stall_ns }) => stall_ns.stall_room),
      figure("for a late prefetch", time, ({ stall_ns }) => stall_ns.stall_late),
      figure("for a demand fetch", time, ({ stall_ns }) => stall_ns.stall_demand),
      ...links.map((link) => figure(`Moved ${link}`, bytes, ({ moved }) => moved[link] || 0)),
      figure("Most resident", bytes, ({ levels }) => (levels.length ? levels[0].most_bytes : 0)),
    ],
    timelines.keys(),
    { caption: "The timelines side by side" },
  );
}
