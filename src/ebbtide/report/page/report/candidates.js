/* The table of idle intervals, by what it is worth to move their storages meanwhile. */

import { addSection } from "../shared/sections.js";
import { selectionOf } from "../shared/selection.js";
import { lineColumn, Table } from "../shared/tables.js";
import { button, byteSeconds, bytes, count, kindName, time } from "../shared/words.js";

addSection({
  id: "candidates",
  title: "Candidates",
  place: 50,
  needs: ["trace", "intervals"],
  origins: ({ trace }) => [trace.origin],
  body: `
    <p id="candidates-text"></p>
    <div id="candidate-table"></div>`,
  draw: candidateTable,
});

function candidateTable(data) {
  const selection = selectionOf(data);
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
      title: "Bytes \u00d7 idle",
      number: true,
      value: (row) => byte_seconds[row],
      text: (row) => byteSeconds(byte_seconds[row]),
    },
    ...(route ? [{ title: "Moves in time", value: fits, text: (row) => verdicts[fits(row)] }] : []),
    { title: "Kind", value: (row) => kind[storage[row]], text: (row) => kindName(trace.kinds[kind[storage[row]]]) },
    {
      title: "Module",
      value: (row) => trace.strings[module[storage[row]]],
      text: (row) => trace.strings[module[storage[row]]],
    },
    ...lineColumn(trace, (row) => storage[row]),
    { title: "After", value: (row) => operator(after[row]), text: (row) => operator(after[row]) },
    { title: "Until", value: (row) => operator(until[row]), text: (row) => operator(until[row]) },
  ];
  const rows = () => Array.from(storage.keys()).filter((row) => selection.chosen[storage[row]]);
  const table = new Table(document.getElementById("candidate-table"), columns, rows(), {
    sorted: [3, true],
    caption: "Candidates for moving",
    action: (row) => button("show", `Show storage ${storage[row]} in the chart`, () => selection.show(storage[row])),
  });
  const say = () => {
    const total = table.rows.reduce((sum, row) => sum + (route ? Number(intervals.queued[row]) : 0), 0);
    text.textContent =
      `${count(table.rows.length)} intervals of the storages chosen above, by bytes \u00d7 idle time. ` +
      (route ? `${count(total)} move in time even when all share the links, the best first.` : "");
  };
  say();
  selection.listeners.push((others) => {
    if (!others) return;
    table.show(rows());
    say();
  });
}
