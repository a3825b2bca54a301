/* The page of a sweep: machines of a grid by cost and step time. */

const SERIES = ["parameter", "gradient", "optimizer_state", "activation", "write", "other"];
const PRICES = { memory_usd: "price of memory, $", step_usd: "total cost of 1000 steps, $" };
const SCALE = { memory_usd: 1, step_usd: 1000 };

function dollars(value) {
  return value === null ? "\u2013" : `$${Number(value.toPrecision(4))}`;
}

function machineName(point) {
  return `${bytes(point.fast_bytes)} fast (${point.ratio}), links \u00d7 ${point.bandwidth}`;
}

/* Rows of (name of the series, its points), one series for each value of `key`. */
function grouped(points, key) {
  const values = [...new Set(points.map((point) => point[key]))].sort((one, other) => one - other);
  return values.map((value) => [value, points.filter((point) => point[key] === value)]);
}

/* All there is, with a margin, so that marks at the edges are seen whole. */
function spanOf(values, part = 0.06) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const margin = part * (high - low || Math.abs(high) || 1);
  return [low - margin, high + margin];
}

function hover(point) {
  const lines = [machineName(point), time(point.step_ns)];
  if (point.memory_usd !== null) lines.push(`memory ${dollars(point.memory_usd)}`);
  if (point.step_usd !== null) lines.push(`1000 steps ${dollars(1000 * point.step_usd)}`);
  return plain(lines.join(", "));
}

function frontierChart(data) {
  const form = document.querySelector("#frontier form");
  const known = (price) => data.points.filter((point) => point.step_ns !== null && point[price] !== null);
  for (const input of form.elements) input.disabled = !known(input.value).length;
  const first = Object.keys(PRICES).find((price) => known(price).length);
  if (!first) return;
  form.elements.price.value = first;
  open("frontier", ["simulated"]);
  const build = () => {
    const price = form.elements.price.value;
    const points = known(price);
    const [unit, size] = timeUnit(Math.max(...points.map((point) => point.step_ns)));
    const height = (point) => SCALE[price] * point[price];
    const traces = grouped(points, "bandwidth").map(([bandwidth, rows], place) => ({
      name: `links \u00d7 ${bandwidth}`,
      type: "scatter", mode: "markers", hoverinfo: "text",
      x: rows.map((point) => point.step_ns / size),
      y: rows.map(height),
      text: rows.map(hover),
      marker: { size: 9, color: colour(SERIES[place % SERIES.length]) },
    }));
    const stairs = data.stairs[price].map((place) => data.points[place]);
    traces.push({
      name: "frontier", type: "scatter", mode: "lines", hoverinfo: "skip",
      x: stairs.map((point) => point.step_ns / size),
      y: stairs.map(height),
      line: { shape: "hv", color: colour("accent"), width: 2 },
    });
    const lines = [["all in fast memory", data.resident_ns], ["asked for", data.target_ns]].filter(([, ns]) => ns !== null);
    const full = { x: spanOf([...points.map((point) => point.step_ns), ...lines.map(([, ns]) => ns)].map((ns) => ns / size)) };
    const shapes = lines.map(([, ns]) => ({
      type: "line", x0: ns / size, x1: ns / size, y0: 0, y1: 1, yref: "paper",
      line: { color: colour("faint"), width: 1, dash: "dot" },
    }));
    const annotations = lines.map(([text, ns], place) => ({
      x: ns / size, y: 1 - 0.08 * place, yref: "paper", text, showarrow: false, xanchor: "left", font: { color: colour("faint") },
    }));
    const layout = {
      xaxis: { title: { text: `step, ${unit}` } },
      yaxis: { title: { text: PRICES[price] }, range: spanOf(points.map(height)) },
      hovermode: "closest", shapes, annotations,
    };
    return { traces, layout, full };
  };
  const chart = new Chart("frontier", build);
  form.addEventListener("change", () => {
    chart.view = {};
    chart.draw();
  });
}

function ratioChart(data) {
  const found = data.ratios;
  if (!found) return;
  open("ratios", ["simulated"]);
  const best = found.step.length - 1;
  document.getElementById("ratios-text").textContent =
    `Links \u00d7 ${found.bandwidth}; shares of what ${found.of} takes and costs. The price of memory falls with the ratio; ` +
    "the total cost of a step also counts the rest of the computer, which a slower step occupies for longer.";
  const names = found.places.map((place) => data.points[place].ratio);
  new Chart("ratios", () => {
    const series = [["step time", "step", "compute"], ["price of memory", "memory_usd", "parameter"],
      ["total cost of a step", "step_usd", "activation"]];
    const shown = series.filter(([, key]) => found[key][best] !== null);
    const traces = shown.map(([name, key, shade]) => ({
      name, type: "bar", x: names, y: found[key], marker: { color: colour(shade) },
      text: found[key].map((share) => (share === null ? "" : `${threeDigits(share)}\u00d7`)),
      hovertext: found.places.map((place) => hover(data.points[place])), hoverinfo: "text+name",
    }));
    const layout = {
      xaxis: { title: { text: "fast : slow" }, type: "category", fixedrange: true },
      yaxis: { title: { text: `of ${found.of}` }, rangemode: "tozero" },
      barmode: "group",
    };
    return { traces, layout, full: {} };
  }, { axes: [] });
}

/* Step time saved by more of something: `across` is what the axis shows, `key` the saving, one series for each `by`. */
function savingChart(data, section, key, across, by) {
  const points = data.points.filter((point) => point[key] !== null);
  if (!points.length) return;
  open(section, ["simulated"]);
  new Chart(section, () => {
    const most = Math.max(...points.map((point) => across.value(point)));
    const [unit, size] = across.unit(most);
    const traces = grouped(points, by.key).map(([value, rows], place) => ({
      name: by.name(value), type: "scatter", mode: "lines+markers", hoverinfo: "text",
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

function machineTable(data) {
  open("machines", ["simulated"]);
  const at = (place) => data.points[place];
  const number = (title, key, text) => ({
    title, number: true, value: (place) => at(place)[key] ?? -Infinity,
    text: (place) => (at(place)[key] === null ? "" : text(at(place)[key])),
  });
  const on = { memory_usd: "memory", step_usd: "total" };
  const marks = (place) => Object.keys(on).filter((price) => at(place).frontier[price]).map((price) => on[price]).join(", ");
  new Table(document.getElementById("machine-table"), [
    number("Fast", "fast_bytes", bytes),
    { title: "Fast : slow", number: true, value: (place) => at(place).fast_bytes, text: (place) => at(place).ratio },
    number("Links", "bandwidth", (value) => `\u00d7 ${value}`),
    { ...number("Step", "step_ns", time), text: (place) => (at(place).step_ns === null ? "infeasible" : time(at(place).step_ns)) },
    number("Memory", "memory_usd", dollars),
    number("1000 steps", "step_usd", (value) => dollars(1000 * value)),
    { title: "Frontier", value: marks, text: marks },
    number("Saved by a GB", "ns_per_gb", time),
    number("Saved by a GB/s", "ns_per_gb_per_s", time),
  ], data.points.keys(), { caption: "Machines of the grid" });
}

function show(data) {
  header(data);
  followWindow();
  frontierChart(data);
  ratioChart(data);
  const fast = { title: "fast memory", more: "a GB", value: (point) => point.fast_bytes, unit: byteUnit };
  savingChart(data, "gb", "ns_per_gb", fast, { key: "bandwidth", name: (value) => `links \u00d7 ${value}` });
  const links = { title: "factor of the links", more: "a GB/s", value: (point) => point.bandwidth, unit: () => ["", 1] };
  savingChart(data, "rate", "ns_per_gb_per_s", links, { key: "fast_bytes", name: (value) => `${bytes(value)} fast` });
  machineTable(data);
}

main();
