/* Single figures, each with its name: how a section shows them. */

import { element } from "./words.js";

export const FIGURES = `<dl id="facts"></dl>`;

export function showFigures({ facts }, section) {
  const list = section.querySelector("#facts");
  for (const [name, value] of facts) {
    const pair = element("div");
    const unbroken = value.replace(/(?<=\d) (?=(?:[KMGT]?i?B|[mun]?s)\b)/g, "\u00a0"); // a number and its unit
    pair.append(element("dt", name), element("dd", unbroken));
    list.append(pair);
  }
}
