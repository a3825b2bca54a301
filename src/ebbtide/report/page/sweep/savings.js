/* Step time saved by more fast memory, and by faster links: a section each. */

import { Chart, colour } from "../shared/charts.js";
import { grouped, machineName, SERIES, spanOf } from "../shared/grid.js";
import { addSection } from "../shared/sections.js";
import { bytes, byteUnit, plain, time } from "../shared/words.js";

const MEMORY = { title: "fast memory", more: "a GB", value: (point) => point.fast_bytes, unit: byteUnit };
const LINKS = { title: "factor of the links", more: "a GB/s", value: (point) => point.bandwidth, unit: () => ["", 1] };

addSection({
  id: "gb",
  title: "What one more GB of fast memory saves",
  place: 30,
  needs: ["gb_saves"],
  origins: () => ["simulated"],
  body: `
    <p>Step time saved for each GB, up to the next larger memory of the grid (finite differences).</p>
    <div class="chart" data-label="Step time saved by one more GB of fast memory"></div>`,
  draw(data, section) {
    const points = data.gb_saves.map((place) => data.points[place]);
    const by = { key: "bandwidth", name: (value) => `links \u00d7 ${value}` };
    savingChart(points, section, "ns_per_gb", MEMORY, by);
  },
});

addSection({
  id: "rate",
  title: "What one more GB/s saves",
  place: 40,
  needs: ["rate_saves"],
  origins: () => ["simulated"],
  body: `
    <p>Step time saved for each GB/s more on all links together, up to the next faster links of the grid (finite
      differences).</p>
    <div class="chart" data-label="Step time saved by one more GB/s on the links"></div>`,
  draw(data, section) {
    const points = data.rate_saves.map((place) => data.points[place]);
    savingChart(points, section, "ns_per_gb_per_s", LINKS, {
      key: "fast_bytes",
      name: (value) => `${bytes(value)} fast`,
    });
  },
});

/* Step time saved by more of something: `across` is what the axis shows, `key` the saving, one series for each `by`. */
function savingChart(points, section, key, across, by) {
  new Chart(section, () => {
    const most = Math.max(...points.map((point) => across.value(point)));
    const [unit, size] = across.unit(most);
    const traces = grouped(points, by.key).map(([value, rows], place) => ({
      name: by.name(value),
      type: "scatter",
      mode: "lines+markers",
      hoverinfo: "text",
      x: rows.map((point) => across.value(point) / size),
      y: rows.map((point) => point[key] / 1e6),
      text: rows.map((point) => plain(`${machineName(point)}: ${time(point[key])} less`)),
      line: { color: colour(SERIES[place % SERIES.length]) },
    }));
    const layout = {
      xaxis: { title: { text: `${across.title}${unit ? `, ${unit}` : ""}` } },
      yaxis: { title: { text: `ms saved by ${across.more}` } },
      hovermode: "closest",
    };
    return { traces, layout, full: { x: spanOf(points.map((point) => across.value(point) / size)) } };
  });
}
