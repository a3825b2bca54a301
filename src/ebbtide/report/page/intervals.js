/* Access-time intervals: their distribution, their size against the swap line, and the table of candidates. */

function distributionChart({ histogram }) {
  const { edges_ns, nbytes, count: counts } = histogram;
  const labels = Array.from(counts, (_, bin) => (bin ? time(edges_ns[bin]) : "shorter"));
  const choice = document.querySelector("#distribution form");
  const build = (chart) => {
    const isCount = choice.elements.weight.value === "count";
    const [name, size] = isCount ? ["intervals", 1] : byteUnit(Math.max(...nbytes));
    const y = Array.from(isCount ? counts : nbytes, (value) => value / size);
    const every = chart.narrow ? 8 : 4; // bins to a label: four are a decade
    const decades = Array.from(counts.keys()).filter((bin) => bin % every === 1 && bin > 1);
    const text = labels.map((label, bin) =>
      `${bin ? `${label} to ${time(edges_ns[bin + 1])}` : `shorter than ${time(edges_ns[1])}`}: ` +
      `${count(counts[bin])} intervals, ${bytes(nbytes[bin])}`);
    return {
      traces: [{
        type: "bar", x: y.map((_, bin) => bin), y, hovertext: text, hoverinfo: "text",
        marker: { color: colour("parameter") },
      }],
      full: { x: [-0.5, counts.length - 0.5] },
      layout: {
        bargap: 0.08, showlegend: false,
        xaxis: {
          title: { text: "interval, at least" }, tickangle: 0, showgrid: false,
          tickvals: [0, ...decades.map((bin) => bin - 0.5)],
          ticktext: ["shorter", ...decades.map((bin) => time(edges_ns[bin]).replace(/\.0+(?= )/, ""))],
        },
        yaxis: {
          title: { text: chart.narrow ? "" : name }, rangemode: "tozero",
          ...(isCount ? { type: "log", dtick: 1, rangemode: "normal", range: [-0.3, Math.log10(Math.max(...counts, 1)) + 0.2] } : {}),
        },
      },
    };
  };
  const chart = new Chart("distribution", build);
  choice.addEventListener("change", () => chart.draw());
}

function distributionTable({ distributions }) {
  const { quantiles, rows } = distributions;
  const numbers = quantiles.map((quantile, place) => ({
    title: quantile === 0.5 ? "Median" : `${100 * quantile} %`, number: true,
    value: (row) => rows[row].quantiles_ns[place], text: (row) => time(rows[row].quantiles_ns[place]),
  }));
  new Table(document.getElementById("distributions"), [
    { title: "Of", value: (row) => row, text: (row) => rows[row].label },
    { title: "Intervals", number: true, value: (row) => rows[row].count, text: (row) => count(rows[row].count) },
    ...numbers,
    { title: "Longest", number: true, value: (row) => rows[row].longest_ns, text: (row) => time(rows[row].longest_ns) },
    {
      title: "Bytes \u00d7 idle", number: true, value: (row) => rows[row].byte_seconds,
      text: (row) => byteSeconds(rows[row].byte_seconds),
    },
    {
      title: "In the top 1 %", number: true, value: (row) => rows[row].top_share,
      text: (row) => `${Math.round(100 * rows[row].top_share)} %`,
    },
  ], rows.keys(), { caption: "Distribution of access-time intervals" });
}

const SHORTEST_NS = 1000; // what waits for less cannot be shown on a logarithmic axis, nor moved

const MOST_VECTORS = 5000; // more points than this are drawn as pixels, by WebGL

function swapChart(data, selection) {
  const { trace, intervals, route } = data;
  const { storage, idle_ns } = intervals;
  const sizes = trace.storages.nbytes;
  const paragraph = document.getElementById("swap-text");
  const short = idle_ns.reduce((sum, ns) => sum + (ns < SHORTEST_NS), 0);
  paragraph.textContent = (route
    ? `Below the line, a storage moves to ${route.tier} and back within its interval, alone on the links: ` +
      `${bytes(route.out_bytes_per_s)}/s out, ${bytes(route.back_bytes_per_s)}/s back (${route.machine}; ${route.origin}). ` +
      "Outliers do so and are among the hundredth with the most bytes \u00d7 interval. "
    : "No machine is known, so there is no swap line: --machine names a file of one, which `ebbtide probe` writes. ") +
    (short ? `Not drawn: ${count(short)} intervals shorter than 1 \u00b5s.` : "");
  const shown = Array.from(storage.keys()).filter((row) => idle_ns[row] >= SHORTEST_NS);
  const bounds = (values) => {
    const logs = values.map(Math.log10);
    const [low, high] = logs.reduce(([least, most], log) => [Math.min(least, log), Math.max(most, log)], [Infinity, -Infinity]);
    return low > high ? [0, 1] : [low - 0.3, high + 0.3];
  };
  const full = { x: bounds(shown.map((row) => idle_ns[row] / 1e6)), y: bounds(shown.map((row) => sizes[storage[row]] / 2 ** 20)) };
  const build = (chart) => {
    const chosen = shown.filter((row) => selection.chosen[storage[row]]);
    const traces = trace.kinds.map((kind, number) => {
      const here = chosen.filter((row) => trace.storages.kind[storage[row]] === number);
      return {
        type: shown.length > MOST_VECTORS ? "scattergl" : "scatter", mode: "markers", name: kindName(kind), customdata: here,
        x: here.map((row) => idle_ns[row] / 1e6), y: here.map((row) => sizes[storage[row]] / 2 ** 20),
        text: here.map((row) => `#${storage[row]}: ${bytes(sizes[storage[row]])} waits ${time(idle_ns[row])}`),
        hovertemplate: "%{text}<extra></extra>",
        marker: { size: 6, opacity: 0.7, color: colour(kind) },
      };
    });
    if (route) {
      const outliers = chosen.filter((row) => intervals.outlier[row]);
      traces.push({
        type: "scatter", mode: "markers", name: "outlier", hoverinfo: "skip",
        x: outliers.map((row) => idle_ns[row] / 1e6), y: outliers.map((row) => sizes[storage[row]] / 2 ** 20),
        marker: { symbol: "circle-open", size: 11, color: colour("ink") },
      });
      traces.push({
        type: "scatter", mode: "lines", name: "swap line", hoverinfo: "skip",
        x: Array.from(route.idle_ns, (ns) => ns / 1e6), y: Array.from(route.most_bytes, (most) => most / 2 ** 20),
        line: { color: colour("ink"), width: 2, dash: "dash" },
      });
    }
    return {
      traces, full,
      layout: {
        hovermode: "closest",
        xaxis: { type: "log", title: { text: "interval, ms" }, dtick: 1 },
        yaxis: { type: "log", title: { text: chart.narrow ? "" : "size, MiB" }, dtick: 1 },
      },
    };
  };
  const chart = new Chart("swap", build, { axes: ["x", "y"] });
  chart.area.on("plotly_click", ({ points }) => {
    if (points[0].customdata !== undefined) showStorage(storage[points[0].customdata]);
  });
  selection.listeners.push((others) => others && chart.draw());
}

function candidateTable(data, selection) {
  const { trace, intervals, route } = data;
  const { storage, after, until, idle_ns, byte_seconds } = intervals;
  const { nbytes, kind, module } = trace.storages;
  const n_ticks = trace.start_ns.length - 1;
  const operator = (tick) => trace.strings[trace.ticks.operator[tick % n_ticks]];
  const fits = (row) => intervals.alone[row] + intervals.queued[row];
  const verdicts = ["too short", "only if alone", "yes"];
  const text = document.getElementById("candidates-text");
  const columns = [
    { title: "Storage", number: true, value: (row) => storage[row], text: (row) => `#${storage[row]}` },
    { title: "Bytes", number: true, value: (row) => nbytes[storage[row]], text: (row) => bytes(nbytes[storage[row]]) },
    { title: "Idle", number: true, value: (row) => idle_ns[row], text: (row) => time(idle_ns[row]) },
    {
      title: "Bytes \u00d7 idle", number: true, value: (row) => byte_seconds[row],
      text: (row) => byteSeconds(byte_seconds[row]),
    },
    ...(route ? [{ title: "Moves in time", value: fits, text: (row) => verdicts[fits(row)] }] : []),
    { title: "Kind", value: (row) => kind[storage[row]], text: (row) => kindName(trace.kinds[kind[storage[row]]]) },
    {
      title: "Module", value: (row) => trace.strings[module[storage[row]]],
      text: (row) => trace.strings[module[storage[row]]],
    },
    { title: "After", value: (row) => operator(after[row]), text: (row) => operator(after[row]) },
    { title: "Until", value: (row) => operator(until[row]), text: (row) => operator(until[row]) },
  ];
  const rows = () => Array.from(storage.keys()).filter((row) => selection.chosen[storage[row]]);
  const table = new Table(document.getElementById("candidate-table"), columns, rows(), {
    sorted: [3, true], caption: "Candidates for moving",
    action: (row) => button("show", `Show storage ${storage[row]} in the chart`, () => showStorage(storage[row])),
  });
  const say = () => {
    const total = table.rows.reduce((sum, row) => sum + (route ? Number(intervals.queued[row]) : 0), 0);
    text.textContent = `${count(table.rows.length)} intervals of the storages chosen above, by bytes \u00d7 idle time. ` +
      (route ? `${count(total)} move in time even when all share the links, the best first.` : "");
  };
  say();
  selection.listeners.push((others) => {
    if (!others) return;
    table.show(rows());
    say();
  });
}
