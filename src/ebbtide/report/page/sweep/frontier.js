/* Costs of machines against their step times, and the frontier. */

import { Chart, colour } from "../shared/charts.js";
import { grouped, hover, SERIES, spanOf } from "../shared/grid.js";
import { addSection } from "../shared/sections.js";
import { timeUnit } from "../shared/words.js";

addSection({
  id: "frontier",
  title: "Cost against step time",
  place: 10,
  needs: ["priced"],
  origins: () => ["simulated"],
  body: `
    <p>Each mark is a machine of the grid. The line joins those than which no other is both faster and cheaper; for a
      step time, it is the height of the cheapest machine that reaches it. Prices are those of the machine's file.</p>
    <form class="choice" aria-label="Which cost">
      <label><input type="radio" name="price" value="memory_usd" checked> price of memory</label>
      <label><input type="radio" name="price" value="step_usd"> total cost of a step</label>
    </form>
    <div class="chart" data-label="Cost of machines against their step time, with the frontier"></div>`,
  draw: frontierChart,
});

const PRICES = { memory_usd: "price of memory, $", step_usd: "total cost of 1000 steps, $" };
const SCALE = { memory_usd: 1, step_usd: 1000 };

function frontierChart(data, section) {
  const form = section.querySelector("form");
  const known = (price) => data.points.filter((point) => point.step_ns !== null && point[price] !== null);
  for (const input of form.elements) input.disabled = !data.priced.includes(input.value);
  form.elements.price.value = data.priced[0];
  const build = () => {
    const price = form.elements.price.value;
    const points = known(price);
    const [unit, size] = timeUnit(Math.max(...points.map((point) => point.step_ns)));
    const height = (point) => SCALE[price] * point[price];
    const traces = grouped(points, "bandwidth").map(([bandwidth, rows], place) => ({
      name: `links \u00d7 ${bandwidth}`,
      type: "scatter",
      mode: "markers",
      hoverinfo: "text",
      x: rows.map((point) => point.step_ns / size),
      y: rows.map(height),
      text: rows.map(hover),
      marker: { size: 9, color: colour(SERIES[place % SERIES.length]) },
    }));
    const stairs = data.stairs[price].map((place) => data.points[place]);
    traces.push({
      name: "frontier",
      type: "scatter",
      mode: "lines",
      hoverinfo: "skip",
      x: stairs.map((point) => point.step_ns / size),
      y: stairs.map(height),
      line: { shape: "hv", color: colour("accent"), width: 2 },
    });
    const lines = [
      ["all in fast memory", data.resident_ns],
      ["asked for", data.target_ns],
    ].filter(([, ns]) => ns !== null);
    const full = {
      x: spanOf([...points.map((point) => point.step_ns), ...lines.map(([, ns]) => ns)].map((ns) => ns / size)),
    };
    const shapes = lines.map(([, ns]) => ({
      type: "line",
      x0: ns / size,
      x1: ns / size,
      y0: 0,
      y1: 1,
      yref: "paper",
      line: { color: colour("faint"), width: 1, dash: "dot" },
    }));
    const isRight = (ns) => ns / size > (full.x[0] + full.x[1]) / 2; // its name stands where there is room
    const annotations = lines.map(([text, ns], place) => ({
      x: ns / size,
      y: 1 - 0.08 * place,
      yref: "paper",
      text,
      showarrow: false,
      xanchor: isRight(ns) ? "right" : "left",
      xshift: isRight(ns) ? -5 : 5,
      font: { color: colour("faint") },
    }));
    const layout = {
      xaxis: { title: { text: `step, ${unit}` } },
      yaxis: { title: { text: PRICES[price] }, range: spanOf(points.map(height)) },
      hovermode: "closest",
      shapes,
      annotations,
    };
    return { traces, layout, full };
  };
  const chart = new Chart(section, build);
  form.addEventListener("change", () => {
    chart.view = {};
    chart.draw();
  });
}
