// ebbtide._cuda: see _cuda.pyi for what each function promises.
#include <pybind11/pybind11.h>

#include <cstring>

#include "face.hpp"
#include "front.hpp"

namespace py = pybind11;

namespace ebbtide {

namespace {

Front& installed() {
  if (the_front() == nullptr) throw std::runtime_error("nothing stands in front of PyTorch's CUDA allocator yet");
  return *the_front();
}

void install(const py::capsule& face, int device, std::size_t min_bytes) {
  if (face.name() == nullptr || std::strcmp(face.name(), ArenaFace::kCapsule) != 0)
    throw std::invalid_argument("this is no face of an arena");
  install_front(*face.get_pointer<ArenaFace>(), static_cast<DeviceIndex>(device), min_bytes);
}

// c10::Error says more than its sentence, and has no translation here.
void set_budget(std::uint64_t nbytes) {
  try {
    installed().set_budget(nbytes);
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

py::dict stats() {
  py::dict out;
  out["served"] = installed().served();
  out["left_alone"] = installed().left_alone();
  out["outside_bytes"] = outside_bytes();
  return out;
}

}  // namespace

}  // namespace ebbtide

PYBIND11_MODULE(_cuda, m) {
  using namespace ebbtide;
  m.def("face", [] { return py::capsule(&kCudaFace, CudaFace::kCapsule); });
  m.def("install", install, py::arg("arena"), py::arg("device"), py::arg("min_bytes"));
  m.def("set_on", [](bool on) { installed().set_on(on); }, py::arg("on"));
  m.def("set_budget", set_budget, py::arg("nbytes"));
  m.def("set_largest_block", [](std::uint64_t nbytes) { installed().set_largest_block(nbytes); }, py::arg("nbytes"));
  m.def("stats", stats);
}
