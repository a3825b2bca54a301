/* The step, its plan and its run in single figures, below what people come for. */

import { addSection } from "../shared/sections.js";
import { element } from "../shared/words.js";

addSection({
  id: "figures",
  title: "Figures",
  place: 8,
  needs: ["facts"],
  origins: () => [],
  body: `<dl id="facts"></dl>`,
  draw({ facts }, section) {
    const list = section.querySelector("#facts");
    for (const [name, value] of facts) {
      const pair = element("div");
      const unbroken = value.replace(/(?<=\d) (?=(?:[KMGT]?i?B|[mun]?s)\b)/g, "\u00a0"); // a number and its unit
      pair.append(element("dt", name), element("dd", unbroken));
      list.append(pair);
    }
  },
});
