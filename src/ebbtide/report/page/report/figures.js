/* The step, its plan and its run in single figures, below what people come for. */

import { addFigures } from "../shared/figures.js";

addFigures(8);
