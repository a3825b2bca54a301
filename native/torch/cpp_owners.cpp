#include "cpp_owners.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <pybind11/pybind11.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/csrc/jit/api/module.h>
#pragma GCC diagnostic pop

#include <unordered_set>

namespace py = pybind11;

namespace ebbtide {

namespace {

using Tell = std::function<void(const at::Tensor&)>;

// Its members are open to heirs.
struct OpenReducer : c10d::Reducer {
  static void each(c10d::Reducer& reducer, const Tell& held) {
    auto all = [&held](const std::vector<at::Tensor>& tensors) {
      for (const at::Tensor& tensor : tensors) held(tensor);
    };
    all(reducer.*(&OpenReducer::params_));
    all(reducer.*(&OpenReducer::rebuilt_params_));
    held(reducer.*(&OpenReducer::local_used_map_));
    held(reducer.*(&OpenReducer::local_used_map_dev_));
    const std::vector<Bucket>& buckets = reducer.*(&OpenReducer::buckets_);
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      const Bucket& bucket = buckets[i];
      // Once buckets were built anew, this comes from what the reducer keeps, or is kept from now on.
      auto variables_of = &OpenReducer::get_variables_for_bucket;
      if (reducer.*(&OpenReducer::has_rebuilt_bucket_)) all((reducer.*variables_of)(i, bucket));
      held(bucket.gradients);
      all(bucket.bucket_views_in);
      all(bucket.bucket_views_out);
      all(bucket.variables);
      if (bucket.future_work != nullptr && bucket.future_work->completed() && !bucket.future_work->hasError()) {
        const c10::IValue result = bucket.future_work->value();
        if (result.isTensorList()) all(result.toTensorVector());
      }
    }
  }
};

}  // namespace

PyObject* named_owners(const std::vector<PyObject*>& objects, PyObject* attributes) {
  std::vector<std::pair<PyTypeObject*, py::handle>> kinds;
  for (auto [kind, name] : py::reinterpret_borrow<py::dict>(attributes))
    kinds.emplace_back(reinterpret_cast<PyTypeObject*>(kind.ptr()), name);
  std::vector<std::pair<py::object, py::handle>> having;  // all with a reference before the first is asked
  for (PyObject* object : objects) {
    for (auto [kind, name] : kinds) {
      if (PyType_IsSubtype(Py_TYPE(object), kind)) having.emplace_back(py::reinterpret_borrow<py::object>(object), name);
    }
  }
  if (having.empty()) return nullptr;
  py::list owners;
  for (auto& [object, name] : having) {
    if (py::object owner = py::getattr(object, name, py::none()); !owner.is_none()) owners.append(owner);
  }
  return owners.release().ptr();
}

void each_held_in_cpp(PyObject* owners, const Tell& held) {
  std::unordered_set<const void*> seen;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(owners); ++i) {
    py::handle owner(PyList_GET_ITEM(owners, i));
    if (py::isinstance<c10d::Reducer>(owner)) {
      auto& reducer = owner.cast<c10d::Reducer&>();
      if (seen.insert(&reducer).second) OpenReducer::each(reducer, held);
    } else if (py::isinstance<torch::jit::Module>(owner)) {
      auto object = owner.cast<torch::jit::Module&>()._ivalue();
      if (!seen.insert(object.get()).second) continue;
      for (const c10::IValue& slot : object->slots()) {
        if (slot.isTensor()) held(slot.toTensor());
      }
    }
  }
}

}  // namespace ebbtide
