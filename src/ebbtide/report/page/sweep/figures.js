/* The sweep in single figures. */

import { FIGURES, showFigures } from "../shared/figures.js";
import { addSection } from "../shared/sections.js";

addSection({
  id: "figures",
  title: "Figures",
  place: 5,
  needs: ["facts"],
  origins: () => [],
  body: FIGURES,
  draw: showFigures,
});
