/* The words of the page, and what they mean. */

import { addSection } from "../shared/sections.js";
import { element } from "../shared/words.js";

addSection({
  id: "words",
  title: "Words",
  place: 90,
  needs: ["words"],
  origins: () => [],
  body: `<dl></dl>`,
  draw({ words }, section) {
    for (const [word, meaning] of words)
      section.querySelector("dl").append(element("dt", word), element("dd", meaning));
  },
});
