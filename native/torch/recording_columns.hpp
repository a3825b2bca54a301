// What the recorders note, as Python knows it: ebbtide.ir.recording.
#pragma once

#include <pybind11/pybind11.h>

#include "../core/recording.hpp"

namespace ebbtide {

// An ebbtide.ir.recording.Recording. Callers MUST hold the GIL.
pybind11::object as_columns(const Recording& r);

}  // namespace ebbtide
