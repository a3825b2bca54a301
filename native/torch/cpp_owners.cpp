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
