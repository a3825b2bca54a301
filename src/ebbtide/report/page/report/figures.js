/* The step, its plan and its run in single figures, below what people come for. */

import { FIGURES, showFigures } from "../shared/figures.js";
import { addSection } from "../shared/sections.js";

addSection({
  id: "figures",
  title: "Figures",
  place: 8,
  needs: ["facts"],
  origins: () => [],
  body: FIGURES,
  draw: showFigures,
});
