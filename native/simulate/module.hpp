// The parts of ebbtide._planning.
#pragma once

#include <pybind11/pybind11.h>

namespace ebbtide::simulate {

void bind_engine(pybind11::module_& m);

}  // namespace ebbtide::simulate

namespace ebbtide::search {

void bind_search(pybind11::module_& m);

}  // namespace ebbtide::search
