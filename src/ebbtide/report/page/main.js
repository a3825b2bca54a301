/* Puts the page together: each section that has data is shown. */

let showStorage = () => {};

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

main();
