/* What each ratio of fast to slow memory takes and costs. */

import { Chart, colour } from "../shared/charts.js";
import { hover } from "../shared/grid.js";
import { addSection } from "../shared/sections.js";
import { threeDigits } from "../shared/words.js";

addSection({
  id: "ratios",
  title: "Ratios of fast to slow memory",
  place: 20,
  needs: ["ratios"],
  origins: () => ["simulated"],
  body: `
    <p id="ratios-text"></p>
    <div class="chart" data-label="Step time and costs by the ratio of fast to slow memory"></div>`,
  draw: ratioChart,
});

function ratioChart(data, section) {
  const found = data.ratios;
  const best = found.step.length - 1;
  document.getElementById("ratios-text").textContent =
    `Links \u00d7 ${found.bandwidth}; shares of what ${found.of} takes and costs. The price of memory falls with the ratio; ` +
    "the total cost of a step also counts the rest of the computer, which a slower step occupies for longer.";
  const names = found.places.map((place) => data.points[place].ratio);
  new Chart(
    section,
    () => {
      const series = [
        ["step time", "step", "compute"],
        ["price of memory", "memory_usd", "parameter"],
        ["total cost of a step", "step_usd", "activation"],
      ];
      const shown = series.filter(([, key]) => found[key][best] !== null);
      const traces = shown.map(([name, key, shade]) => ({
        name,
        type: "bar",
        x: names,
        y: found[key],
        marker: { color: colour(shade) },
        text: found[key].map((share) => (share === null ? "" : `${threeDigits(share)}\u00d7`)),
        hovertext: found.places.map((place) => hover(data.points[place])),
        hoverinfo: "text+name",
      }));
      const layout = {
        xaxis: { title: { text: "fast : slow" }, type: "category", fixedrange: true },
        yaxis: { title: { text: `of ${found.of}` }, rangemode: "tozero" },
        barmode: "group",
      };
      return { traces, layout, full: {} };
    },
    { axes: [] },
  );
}
