/* Single figures, each with its name. */

import { addSection } from "./sections.js";
import { element } from "./words.js";

export function addFigures(place) {
  addSection({
    id: "figures",
    title: "Figures",
    place,
    needs: ["facts"],
    origins: () => [],
    body: `<dl id="facts"></dl>`,
    draw: figures,
  });
}

function figures({ facts }, section) {
  const list = section.querySelector("#facts");
  for (const [name, value] of facts) {
    const pair = element("div");
    const unbroken = value.replace(/(?<=\d) (?=(?:[KMGT]?i?B|[mun]?s)\b)/g, "\u00a0"); // a number and its unit
    pair.append(element("dt", name), element("dd", unbroken));
    list.append(pair);
  }
}
