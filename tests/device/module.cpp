// What Python reaches of the device besides PyTorch's own interface.

#include "collectives.hpp"
#include "lagging.hpp"

#include <ATen/ops/from_blob.h>
#include <torch/csrc/utils/pybind.h>

#include <cstring>

namespace py = pybind11;

namespace {

// Keeps a stream from going on until it is opened, so that tests need no time to pass.
class Gate {
 public:
  explicit Gate(const c10::Stream& stream) : mark_(std::make_shared<lagging::Mark>()) { lagging::follow(stream, mark_); }
  void open() { mark_->pass(); }

 private:
  std::shared_ptr<lagging::Mark> mark_;
};

// What follows calls no operator, as other people's extensions do.
uint8_t first_byte(const at::Tensor& tensor) {
  const void* memory = tensor.const_data_ptr();
  lagging::synchronize(lagging::current_stream());
  return *static_cast<const uint8_t*>(memory);
}

void fill(const at::Tensor& tensor, uint8_t value) {
  lagging::launch(lagging::current_stream(),
                  [memory = tensor.mutable_data_ptr(), bytes = tensor.nbytes(), value] { std::memset(memory, value, bytes); });
}

void fill_storage(uintptr_t storage, uint8_t value) {  // of which Python may have the only reference
  auto* there = reinterpret_cast<c10::StorageImpl*>(storage);
  lagging::launch(lagging::current_stream(),
                  [memory = there->mutable_data(), bytes = there->nbytes(), value] { std::memset(memory, value, bytes); });
}

// A tensor over the memory of another one, which somebody else would have.
at::Tensor over(const at::Tensor& other) {
  return at::for_blob(other.mutable_data_ptr(), other.sizes())
      .deleter([other](void*) {})
      .options(other.options())
      .target_device(lagging::device())
      .make_tensor();
}

// As it is once PyTorch has told two threads at the same time.
template <typename Storage>
void forget_call(Storage& storage) {
  if constexpr (requires { storage.clear_materializer(); }) storage.clear_materializer();
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::class_<Gate>(m, "Gate").def(py::init<c10::Stream>()).def("open", &Gate::open);
  m.def("default_generator", &lagging::default_generator);
  m.def("fill", &fill);
  m.def("fill_storage", &fill_storage);
  m.def("forget_call", [](const at::Tensor& tensor) { forget_call(*tensor.storage().unsafeGetStorageImpl()); });
  m.def("first_byte", &first_byte, py::call_guard<py::gil_scoped_release>());
  m.def("over", &over);
  m.def("pinned_by", &lagging::pinned_by);
  m.def("pinned_bytes", &lagging::pinned_bytes);
  m.def("through", &lagging::through);
  m.def("set_capacity", &lagging::set_capacity);
  m.def("synchronize", &lagging::synchronize_device, py::call_guard<py::gil_scoped_release>());
  m.def("calls", [] {
    py::dict calls;
    for (const auto& [name, counts] : lagging::calls()) calls[name.c_str()] = py::make_tuple(counts.beside, counts.waited_for);
    return calls;
  });
}
