// DLPack's table of C functions (torch.Tensor.__dlpack_c_exchange_api__), by which libraries take tensors without Python.
#pragma once

#include <pybind11/pybind11.h>

namespace ebbtide {

// Returns a capsule with a table like that in `theirs`, whose exports call `before` first, with the tensor and with whether the
// memory is theirs from then on (else until they return). There is one such table: further calls add what is called before, the
// newest first. What `before` raises is raised to who exports.
pybind11::capsule dlpack_table(const pybind11::capsule& theirs, pybind11::function before);

}  // namespace ebbtide
