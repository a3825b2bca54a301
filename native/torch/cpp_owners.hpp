// The tensors in C++ objects that Python can name but not look into: the reducer of a DistributedDataParallel, and the modules of
// torch.jit. Other owners (a library's, AOTInductor's) stay unknown.
#pragma once

#include <ATen/core/Tensor.h>
#include <Python.h>

#include <functional>

namespace ebbtide {

// Calls `held` for every reference to a tensor that the objects in this list hold, once each.
void each_held_in_cpp(PyObject* owners, const std::function<void(const at::Tensor&)>& held);

}  // namespace ebbtide
