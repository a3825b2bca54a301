// The tensors in C++ objects that Python can name but not look into: the reducer of a DistributedDataParallel, and the modules of
// torch.jit. Other owners (a library's, AOTInductor's) stay unknown.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <functional>
#include <vector>

namespace ebbtide {

// The owners that these objects have, as a new list; null where none of them is of a kind that has one. `attributes` is a dictionary
// from a kind to the attribute that names its owner. Asking for that runs Python: callers MUST look for objects again, unless it is null.
PyObject* named_owners(const std::vector<PyObject*>& objects, PyObject* attributes);

// Calls `held` for every reference to a tensor that the objects in this list hold, once each.
void each_held_in_cpp(PyObject* owners, const std::function<void(const at::Tensor&)>& held);

}  // namespace ebbtide
