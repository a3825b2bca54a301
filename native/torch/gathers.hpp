// Gathers of rows from a table that comes by faults.
#pragma once

namespace ebbtide {

void install_gathers();  // once; they stay

}  // namespace ebbtide
