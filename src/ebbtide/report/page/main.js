/* Puts the page together: each section that has data is shown. */

let showStorage = () => {};

const MEASURED = "measured";

function badge(origin) {
  return element("span", origin, { class: origin === MEASURED ? "badge" : "badge modelled" });
}

function header(data) {
  document.getElementById("source").textContent = data.source;
  const facts = document.getElementById("facts");
  for (const [name, value] of data.facts) {
    const pair = element("div");
    pair.append(element("dt", name), element("dd", value));
    facts.append(pair);
  }
}

function open(section, origins = []) {
  const part = document.getElementById(section);
  part.hidden = false;
  const heading = part.querySelector("h2");
  const link = element("a", heading.textContent, { href: `#${section}` });
  document.getElementById("contents").append(link);
  for (const origin of new Set(origins)) heading.append(badge(origin));
}

function show(data) {
  header(data);
  followWindow();
  if (data.trace) {
    const origin = [data.trace.origin];
    open("memory", origin);
    memoryChart(data);
    peakContents(data);
    open("storages", origin);
    const selection = new Selection(data);
    const storages = new Storages(data, selection);
    showStorage = (storage) => storages.show(storage);
    open("distribution", origin);
    if (data.intervals.storage.length) {
      distributionChart(data);
      distributionTable(data);
      open("swap", origin);
      swapChart(data, selection);
      open("candidates", origin);
      candidateTable(data, selection);
    } else {
      const note = "No storage of this trace is accessed twice, or its accesses were not recorded: not available.";
      document.querySelector("#distribution .choice").replaceWith(element("p", note));
      document.querySelector("#distribution .chart").remove();
    }
  }
  if (data.timelines.length) {
    open("timelines", data.timelines.map(({ origin }) => origin));
    comparisonTable(data);
    timelineChart(data);
    stallTable(data);
  }
}

async function main() {
  const trouble = document.getElementById("trouble");
  if (typeof DecompressionStream === "undefined") {
    trouble.textContent = "This page needs a browser of 2023 or newer: its data is compressed.";
    return;
  }
  trouble.textContent = "Unpacking \u2026";
  try {
    const library = element("script", new TextDecoder().decode(await inflate("library")));
    document.head.append(library);
    show(unpack(await inflate("data")));
    trouble.remove();
  } catch (error) {
    trouble.textContent = `This page is damaged, or its browser cannot show it: ${error.message}`;
    throw error;
  }
  document.documentElement.dataset.ready = "true";
}

main();
