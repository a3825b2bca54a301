/* What people come for, in one look: what is in the peak, what can leave and what it costs, which line of the program
   made it, what could be changed. */

import { choose, chosenAs, followAddress } from "../shared/address.js";
import { colour, readableOn } from "../shared/charts.js";
import { onPrint, onResize, paper } from "../shared/paper.js";
import { addSection } from "../shared/sections.js";
import { bytes, element, kindName, percent, plain, sentence, time } from "../shared/words.js";

const PRINT_WIDTH = 700;
const WIDE = 1000;
const MOST_LINES = 6;
const [LETTERS, LEAST_LETTERS, PATH_BAR] = [12, 11, 24]; // pixels

addSection({
  id: "answers",
  title: "In short",
  place: 5,
  needs: ["answers", "peak"],
  origins: ({ trace, answers }) => (answers.budgets.length ? [trace.origin, "simulated"] : [trace.origin]),
  body: `
    <h3>How large is the peak, and what is in it?</h3>
    <p id="peak-said"></p>
    <form class="choice" id="tree-by" aria-label="What the boxes are">
      <label><input type="radio" name="by" value="tree" checked> by module</label>
      <label><input type="radio" name="by" value="line_tree"> by line of the program</label>
    </form>
    <div class="chart" id="tree" role="img" aria-label="What the peak is made of: modules or lines of the program, and the kinds of storages in each"></div>
    <div class="columns">
      <div id="leave"><h3>What can leave, and what does it cost?</h3></div>
      <div id="made"><h3>Which line of my program made it?</h3></div>
      <div id="change"><h3>What could be changed?</h3></div>
    </div>`,
  draw(data, section) {
    peakSaid(data);
    treemap(data.answers, section.querySelector("#tree"), section.querySelector("#tree-by"));
    budgetTable(data, section.querySelector("#leave"));
    lineTable(data, section.querySelector("#made"));
    changes(data.answers, section.querySelector("#change"));
  },
});

function peakSaid({ peak, trace }) {
  const shares = peak.kinds
    .filter(([, nbytes]) => nbytes >= 0.005 * peak.nbytes)
    .flatMap(([kind, nbytes], place) => [place ? ", " : "", shareOf(kind, nbytes / peak.nbytes)]);
  const where = peak.module ? `${peak.operator} in ${peak.module}` : peak.operator;
  const share = Math.round((100 * peak.time_ns) / Math.max(trace.step_ns, 1));
  document
    .getElementById("peak-said")
    .append(
      `${bytes(peak.nbytes)} of tensors, at ${share}\u00a0% of the step (${where}): `,
      ...shares,
      ". A click on a box shows what lies in it.",
    );
}

/* With the colour that its boxes have. */
function shareOf(kind, share) {
  const said = element("span", "", { class: "share" });
  const swatch = element("span", "", { class: "swatch", style: `background: var(--${kind})` });
  said.append(swatch, `${kindName(kind)} ${Math.round(100 * share)}\u00a0%`);
  return said;
}

const NO_LINES =
  "The program's lines were not recorded: ebbtide trace --lines does that, and EBBTIDE_LINES=1 in a run that saves its trace.";

function treemap(answers, area, choice) {
  if (!answers.line_tree) choice.remove();
  const { by } = choice.elements;
  const usual = answers.line_tree && !answers.has_modules ? "line_tree" : "tree";
  const whole = answers.tree.find(({ parent }) => parent === null).nbytes;
  const share = ({ nbytes }) => `${bytes(nbytes)}, ${percent(nbytes, whole)}`;
  const short = ({ label, kind }) => (kind ? plain(label).replace(" ", "<br>") : plain(label));
  const draw = () => {
    if (!area.clientWidth && !paper.printing) return;
    by.value = (answers.line_tree && chosenAs("by")) || usual;
    const tree = answers[by.value] ?? answers[usual];
    const fills = tree.map(({ kind }) => colour(kind || "raised"));
    const trace = {
      type: "treemap",
      branchvalues: "total",
      ids: tree.map(({ id }) => id),
      parents: tree.map(({ parent }) => parent ?? ""),
      labels: tree.map(short),
      values: tree.map(({ nbytes }) => nbytes),
      text: tree.map(({ nbytes }) => `${bytes(nbytes)}<br>${percent(nbytes, whole)}`),
      hovertext: tree.map((node) => `${plain(node.label)}: ${share(node)}`),
      textinfo: area.clientWidth < WIDE ? "label" : "label+text",
      textfont: { color: fills.map(readableOn) },
      outsidetextfont: { color: colour("ink") }, // the whole's; else plotly takes its size for a colour
      hoverinfo: "text",
      marker: { colors: fills, line: { width: 1, color: colour("ground") } },
      level: tree.find(({ id }) => id === chosenAs("box"))?.id,
      pathbar: { visible: true },
      tiling: { pad: 2 },
    };
    const layout = {
      margin: { l: 0, r: 0, t: PATH_BAR, b: 4 },
      paper_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("ink"), family: "system-ui, sans-serif", size: LETTERS },
      hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("line"), font: { color: colour("ink") } },
      uniformtext: { minsize: LEAST_LETTERS, mode: "hide" }, // a label that does not fit so is left out
      autosize: !paper.printing,
      ...(paper.printing ? { width: PRINT_WIDTH } : {}),
    };
    Plotly.react(area, [trace], layout, { displayModeBar: false });
  };
  draw();
  area.on("plotly_treemapclick", ({ nextLevel }) => choose({ box: nextLevel }));
  choice.addEventListener("change", () => {
    choose({ by: by.value, box: null });
    draw();
  });
  followAddress(draw);
  onResize(draw);
  onPrint(draw);
}

function lineTable({ answers, peak }, parent) {
  if (!answers.line_tree) {
    parent.append(sentence("p", NO_LINES));
    return;
  }
  const table = tableOf("Lines that made the peak", ["line", "at the peak", "share"]);
  for (const [line, nbytes] of peak.lines.slice(0, MOST_LINES)) {
    addRow(table, [line || "(made before the step)", bytes(nbytes), percent(nbytes, peak.nbytes)], "td");
  }
  const rest = peak.lines.slice(MOST_LINES).reduce((sum, [, nbytes]) => sum + nbytes, 0);
  if (rest) addRow(table, ["all others", bytes(rest), percent(rest, peak.nbytes)], "td");
  parent.append(scrolled(table));
}

function tableOf(name, titles) {
  const table = element("table", "", { "aria-label": name });
  addRow(table, titles, "th");
  return table;
}

function addRow(table, cells, tag) {
  const line = element("tr");
  for (const [place, text] of cells.entries()) line.append(element(tag, text, place ? { class: "number" } : {}));
  table.append(line);
}

function scrolled(table) {
  const scroll = element("div", "", { class: "scroll" });
  scroll.append(table);
  return scroll;
}

function budgetTable({ answers, trace, peak }, parent) {
  if (answers.budgets.length) {
    parent.append(element("p", `Simulated on: ${answers.machine}${answers.times}.`));
  } else {
    parent.append(sentence("p", "No machine is known to try budgets on: name one with --machine."));
    if (!answers.own) return;
  }
  const titles = ["--fast", "tensors have", "a step takes", "times", "moved a step"];
  const table = tableOf("Budgets and what they cost", titles);
  if (answers.own) budgetRow(table, answers.own, trace);
  addRow(table, ["100%", bytes(peak.nbytes), time(trace.step_ns), "1.00", "0 B"], "td");
  for (const budget of answers.budgets) budgetRow(table, budget, trace);
  parent.append(scrolled(table));
}

function budgetRow(table, { name, nbytes, step_ns, moved_bytes, why_not, least_bytes, untried, leaves }, trace) {
  if (step_ns === null) {
    const none = least_bytes === null ? "no plan" : `no plan: needs ${bytes(least_bytes)}`;
    addRow(table, [name, bytes(nbytes), untried ? "not tried: took too long" : none], "td");
    table.lastChild.lastChild.setAttribute("colspan", 3);
  } else {
    const moved = moved_bytes === null ? "unknown" : bytes(moved_bytes);
    addRow(table, [name, bytes(nbytes), time(step_ns), (step_ns / trace.step_ns).toFixed(2), moved], "td");
  }
  if (why_not) table.lastChild.setAttribute("title", why_not);
  if (!leaves.length) return;
  const line = element("tr", "", { class: "leaves" });
  const most = leaves.map(([what, held]) => `${what} (${bytes(held)})`).join(", ");
  line.append(element("td", `leaves: ${most}`, { colspan: 5 }));
  table.append(line);
}

function changes({ advice }, parent) {
  const list = element("ul");
  for (const text of advice) list.append(sentence("li", text));
  parent.append(advice.length ? list : element("p", "Nothing that these figures show."));
}
