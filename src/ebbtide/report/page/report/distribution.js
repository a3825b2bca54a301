/* How long storages wait between two accesses: the distribution of access-time intervals. */

import { Chart, colour } from "../shared/charts.js";
import { addSection } from "../shared/sections.js";
import { Table } from "../shared/tables.js";
import { byteSeconds, bytes, byteUnit, count, element, kindName, time } from "../shared/words.js";

addSection({
  id: "distribution",
  title: "Access-time intervals",
  place: 30,
  needs: ["trace"],
  origins: ({ trace }) => [trace.origin],
  body: `
    <p>How long storages wait between two accesses (ATI). Most wait for next to nothing; few long waits of
      large storages hold what is worth moving.<span id="shortest"></span></p>
    <form class="choice" aria-label="What the bars count">
      <label><input type="radio" name="weight" value="count" checked> intervals</label>
      <label><input type="radio" name="weight" value="nbytes"> bytes that wait</label>
    </form>
    <div class="chart" data-label="Distribution of access-time intervals"></div>
    <div id="distributions"></div>`,
  draw(data, section) {
    if (data.intervals) {
      distributionChart(data, section);
      distributionTable(data);
    } else withoutIntervals(section);
  },
});

function withoutIntervals(section) {
  const note = "No storage of this trace is accessed twice, or its accesses were not recorded: not available.";
  section.querySelector(".choice").replaceWith(element("p", note));
  section.querySelector(".chart").remove();
}

function distributionChart({ histogram }, section) {
  const total = histogram.count.reduce((sum, value) => sum + value, 0);
  document.getElementById("shortest").textContent =
    ` Of ${count(total)} intervals ${count(histogram.count[0])} are shorter than ${time(histogram.edges_ns[1])}, such ` +
    "as those between an operation and the next: nothing can move in them, and they have no bar.";
  const [edges_ns, nbytes, counts] = [histogram.edges_ns, histogram.nbytes, histogram.count].map((all) => all.slice(1));
  const labels = Array.from(counts, (_, bin) => time(edges_ns[bin]));
  const choice = section.querySelector("form");
  const build = (chart) => {
    const isCount = choice.elements.weight.value === "count";
    const [name, size] = isCount ? ["intervals", 1] : byteUnit(Math.max(...nbytes));
    const y = Array.from(isCount ? counts : nbytes, (value) => value / size);
    const every = chart.narrow ? 8 : 4; // bins to a label: four are a decade
    const decades = Array.from(counts.keys()).filter((bin) => bin % every === 0);
    const text = labels.map(
      (label, bin) =>
        `${label} to ${time(edges_ns[bin + 1])}: ` + `${count(counts[bin])} intervals, ${bytes(nbytes[bin])}`,
    );
    return {
      traces: [
        {
          type: "bar",
          x: y.map((_, bin) => bin),
          y,
          hovertext: text,
          hoverinfo: "text",
          marker: { color: colour("parameter") },
        },
      ],
      full: { x: [-0.5, counts.length - 0.5] },
      layout: {
        bargap: 0.08,
        showlegend: false,
        xaxis: {
          title: { text: "interval, at least" },
          tickangle: 0,
          showgrid: false,
          tickvals: decades.map((bin) => bin - 0.5),
          ticktext: decades.map((bin) => time(edges_ns[bin]).replace(/\.0+(?= )/, "")),
        },
        yaxis: {
          title: { text: chart.narrow ? "" : name },
          rangemode: "tozero",
          ...(isCount
            ? { type: "log", dtick: 1, rangemode: "normal", range: [-0.3, Math.log10(Math.max(...counts, 1)) + 0.2] }
            : {}),
        },
      },
    };
  };
  const drawing = new Chart(section, build);
  choice.addEventListener("change", () => drawing.draw());
}

function distributionTable({ distributions, trace }) {
  const { quantiles, rows } = distributions;
  const name = ({ label }) => (trace.kinds.includes(label) ? kindName(label) : label);
  const numbers = quantiles
    .map((quantile, place) => ({
      title: quantile === 0.5 ? "Median" : `${100 * quantile} %`,
      number: true,
      value: (row) => rows[row].quantiles_ns[place],
      text: (row) => time(rows[row].quantiles_ns[place]),
    }))
    .filter((_, place) => quantiles[place] >= 0.5); // below, nearly all are 0
  new Table(
    document.getElementById("distributions"),
    [
      { title: "Of", value: (row) => row, text: (row) => name(rows[row]) },
      { title: "Intervals", number: true, value: (row) => rows[row].count, text: (row) => count(rows[row].count) },
      ...numbers,
      {
        title: "Longest",
        number: true,
        value: (row) => rows[row].longest_ns,
        text: (row) => time(rows[row].longest_ns),
      },
      {
        title: "Bytes \u00d7 idle",
        number: true,
        value: (row) => rows[row].byte_seconds,
        text: (row) => byteSeconds(rows[row].byte_seconds),
      },
      {
        title: "In the top 1\u00a0%",
        number: true,
        value: (row) => rows[row].top_share,
        text: (row) => `${Math.round(100 * rows[row].top_share)} %`,
      },
    ],
    rows.keys(),
    { caption: "Distribution of access-time intervals" },
  );
}
