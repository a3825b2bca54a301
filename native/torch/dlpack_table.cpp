#include "dlpack_table.hpp"

#include <ATen/dlpack.h>

#include <utility>
#include <vector>

namespace ebbtide {

namespace py = pybind11;

namespace {

constexpr const char* kName = "dlpack_exchange_api";

const DLPackExchangeAPI* theirs_is = nullptr;
DLPackExchangeAPI ours{};

std::vector<py::function>& all_before() {
  static auto* functions = new std::vector<py::function>();  // outlives Python
  return *functions;
}

template <typename Export>
int after_all_before(void* tensor, bool keeps, const Export& exported) {
  try {
    py::object object = py::reinterpret_borrow<py::object>(static_cast<PyObject*>(tensor));
    for (auto function = all_before().rbegin(); function != all_before().rend(); ++function) (*function)(object, keeps);
  } catch (py::error_already_set& error) {
    error.restore();
    return -1;
  }
  return exported();
}

int export_memory(void* tensor, DLManagedTensorVersioned** out) {
  return after_all_before(tensor, true, [&] { return theirs_is->managed_tensor_from_py_object_no_sync(tensor, out); });
}

int export_for_a_call(void* tensor, DLTensor* out) {
  return after_all_before(tensor, false, [&] { return theirs_is->dltensor_from_py_object_no_sync(tensor, out); });
}

}  // namespace

py::capsule dlpack_table(const py::capsule& theirs, py::function before) {
  auto* table = static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(theirs.ptr(), kName));
  if (table == nullptr) throw py::error_already_set();
  all_before().push_back(std::move(before));
  if (table != &ours) {
    theirs_is = table;
    ours = *table;
    ours.header.prev_api = nullptr;  // an older table would be a way past this one
    ours.managed_tensor_from_py_object_no_sync = export_memory;
    if (table->dltensor_from_py_object_no_sync != nullptr) ours.dltensor_from_py_object_no_sync = export_for_a_call;
  }
  return py::capsule(&ours, kName);
}

}  // namespace ebbtide
