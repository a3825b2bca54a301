/* The sweep in single figures. */

import { addFigures } from "../shared/figures.js";

addFigures(5);
