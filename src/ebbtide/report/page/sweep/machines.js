/* The table of all machines of the grid. */

import { dollars } from "../shared/grid.js";
import { addSection } from "../shared/sections.js";
import { Table } from "../shared/tables.js";
import { bytes, time } from "../shared/words.js";

addSection({
  id: "machines",
  title: "Machines",
  place: 50,
  needs: ["points"],
  origins: () => ["simulated"],
  body: `
    <div id="machine-table"></div>`,
  draw: machineTable,
});

function machineTable(data) {
  const at = (place) => data.points[place];
  const number = (title, key, text) => ({
    title,
    number: true,
    value: (place) => at(place)[key] ?? -Infinity,
    text: (place) => (at(place)[key] === null ? "" : text(at(place)[key])),
  });
  const on = { memory_usd: "memory", step_usd: "total" };
  const marks = (place) =>
    Object.keys(on)
      .filter((price) => at(place).frontier[price])
      .map((price) => on[price])
      .join(", ");
  new Table(
    document.getElementById("machine-table"),
    [
      number("Fast", "fast_bytes", bytes),
      { title: "Fast : slow", number: true, value: (place) => at(place).fast_bytes, text: (place) => at(place).ratio },
      number("Links", "bandwidth", (value) => `\u00d7 ${value}`),
      {
        ...number("Step", "step_ns", time),
        text: (place) => (at(place).step_ns === null ? "infeasible" : time(at(place).step_ns)),
      },
      number("Memory", "memory_usd", dollars),
      number("1000 steps", "step_usd", (value) => dollars(1000 * value)),
      { title: "Frontier", value: marks, text: marks },
      ...(data.gb_saves.length ? [number("Saved by a GB", "ns_per_gb", time)] : []),
      ...(data.rate_saves.length ? [number("Saved by a GB/s", "ns_per_gb_per_s", time)] : []),
    ],
    data.points.keys(),
    { caption: "Machines of the grid" },
  );
}
