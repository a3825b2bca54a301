// What Python reaches of the device besides PyTorch's own interface.

#include "lagging.hpp"

#include <torch/csrc/utils/pybind.h>

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

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::class_<Gate>(m, "Gate").def(py::init<c10::Stream>()).def("open", &Gate::open);
  m.def("default_generator", &lagging::default_generator);
  m.def("set_capacity", &lagging::set_capacity);
  m.def("synchronize", &lagging::synchronize_device, py::call_guard<py::gil_scoped_release>());
  m.def("calls", [] {
    py::dict calls;
    for (const auto& [name, counts] : lagging::calls()) calls[name.c_str()] = py::make_tuple(counts.beside, counts.waited_for);
    return calls;
  });
}
