// Turns the recorders' notes into Python's ebbtide.ir.recording.
#pragma once

#include <pybind11/pybind11.h>

#include "../core/recording.hpp"

namespace ebbtide {

// Makes an ebbtide.ir.recording.Recording. Callers MUST hold the GIL.
pybind11::object as_columns(const Recording& r);

}  // namespace ebbtide
