/* Access-time intervals against the sizes of their storages, and the line below which a storage moves in time. */

import { Chart, colour } from "../shared/charts.js";
import { addSection } from "../shared/sections.js";
import { selectionOf } from "../shared/selection.js";
import { bytes, count, kindName, time } from "../shared/words.js";

addSection({
  id: "swap",
  title: "Interval against size",
  place: 40,
  needs: ["trace", "intervals"],
  origins: ({ trace }) => [trace.origin],
  body: `
    <p id="swap-text"></p>
    <div class="chart" data-label="Size of storages against their access-time intervals"></div>`,
  draw: swapChart,
});

const SHORTEST_NS = 1000; // what waits for less cannot be shown on a logarithmic axis, nor moved
const MOST_VECTORS = 5000; // more points than this are drawn as pixels, by WebGL

function swapChart(data, section) {
  const selection = selectionOf(data);
  const { trace, intervals, route } = data;
  const { storage, idle_ns } = intervals;
  const sizes = trace.storages.nbytes;
  const paragraph = document.getElementById("swap-text");
  const short = idle_ns.reduce((sum, ns) => sum + (ns < SHORTEST_NS), 0);
  paragraph.textContent =
    (route
      ? `Below the line, a storage moves to ${route.tier} and back within its interval, alone on the links: ` +
        `${bytes(route.out_bytes_per_s)}/s out, ${bytes(route.back_bytes_per_s)}/s back (${route.machine}; ${route.origin}). ` +
        "Outliers do so and are among the hundredth with the most bytes \u00d7 interval. "
      : "No machine is known, so there is no swap line: --machine names one, or the file that `ebbtide probe` writes. ") +
    (short
      ? `Of ${count(idle_ns.length)} intervals ${count(short)} are shorter than 1 \u00b5s, in which nothing moves: they have ` +
        "no mark."
      : "");
  const shown = Array.from(storage.keys()).filter((row) => idle_ns[row] >= SHORTEST_NS);
  const bounds = (values) => {
    const logs = values.map(Math.log10);
    const [low, high] = logs.reduce(
      ([least, most], log) => [Math.min(least, log), Math.max(most, log)],
      [Infinity, -Infinity],
    );
    return low > high ? [0, 1] : [low - 0.3, high + 0.3];
  };
  const full = {
    x: bounds(shown.map((row) => idle_ns[row] / 1e6)),
    y: bounds(shown.map((row) => sizes[storage[row]] / 2 ** 20)),
  };
  const build = (chart) => {
    const chosen = shown.filter((row) => selection.chosen[storage[row]]);
    const traces = trace.kinds.map((kind, number) => {
      const here = chosen.filter((row) => trace.storages.kind[storage[row]] === number);
      return {
        type: shown.length > MOST_VECTORS ? "scattergl" : "scatter",
        mode: "markers",
        name: kindName(kind),
        customdata: here,
        x: here.map((row) => idle_ns[row] / 1e6),
        y: here.map((row) => sizes[storage[row]] / 2 ** 20),
        text: here.map((row) => `#${storage[row]}: ${bytes(sizes[storage[row]])} waits ${time(idle_ns[row])}`),
        hovertemplate: "%{text}<extra></extra>",
        marker: { size: 6, opacity: 0.7, color: colour(kind) },
      };
    });
    if (route) {
      const outliers = chosen.filter((row) => intervals.outlier[row]);
      traces.push({
        type: "scatter",
        mode: "markers",
        name: "outlier",
        hoverinfo: "skip",
        x: outliers.map((row) => idle_ns[row] / 1e6),
        y: outliers.map((row) => sizes[storage[row]] / 2 ** 20),
        marker: { symbol: "circle-open", size: 11, color: colour("ink") },
      });
      traces.push({
        type: "scatter",
        mode: "lines",
        name: "swap line",
        hoverinfo: "skip",
        x: Array.from(route.idle_ns, (ns) => ns / 1e6),
        y: Array.from(route.most_bytes, (most) => most / 2 ** 20),
        line: { color: colour("ink"), width: 2, dash: "dash" },
      });
    }
    return {
      traces,
      full,
      layout: {
        hovermode: "closest",
        xaxis: { type: "log", title: { text: "interval, ms" }, dtick: 1, exponentformat: "power" },
        yaxis: { type: "log", title: { text: chart.narrow ? "" : "size, MiB" }, dtick: 1, exponentformat: "power" },
      },
    };
  };
  const drawing = new Chart(section, build, { axes: ["x", "y"] });
  drawing.area.on("plotly_click", ({ points }) => {
    if (points[0].customdata !== undefined) selection.show(storage[points[0].customdata]);
  });
  selection.listeners.push((others) => {
    if (others) drawing.draw();
  });
}
