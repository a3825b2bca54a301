// ebbtide._torch: see _torch.pyi for what each function promises.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/utils/pybind.h>

#include "../core/fault.hpp"
#include "operands.hpp"
#include "recorder.hpp"

namespace py = pybind11;

namespace ebbtide {

namespace {

Arena& arena() {
  if (the_arena() == nullptr) throw std::runtime_error("the arena has not been started");
  return *the_arena();
}

template <typename T, std::size_t N>
py::tuple as_tuple(const std::array<T, N>& values) {
  py::tuple result(N);
  for (std::size_t i = 0; i < N; ++i) result[i] = values[i];
  return result;
}

void start(const std::string& spill_dir, std::uint64_t arena_bytes, std::uint64_t process_bytes, std::size_t min_bytes,
           unsigned io_threads, std::int64_t watchdog_ns, double chaos_rate, std::uint64_t chaos_seed) {
  if (the_arena() == nullptr) {
    Options options;
    options.spill_directory = spill_dir;
    options.io_threads = io_threads;
    options.every_tick = [] { install_fault_handler(*the_arena()); };
    install_allocator(options);
    install_recorder();
    install_list_operators();
    learn_slice_deleter(*torch::createStorage(py::module_::import("torch").attr("UntypedStorage")(64)[py::slice(0, 32, 1)].ptr())
                             .unsafeGetStorageImpl());
  }
  install_fault_handler(arena());
  arena().reset_trouble();
  arena().set_watchdog(watchdog_ns);
  arena().set_chaos(chaos_rate, chaos_seed);
  the_allocator()->min_bytes = min_bytes;
  the_allocator()->on = true;
  py::gil_scoped_release unlocked;
  arena().set_limits(arena_bytes, process_bytes);
}

py::dict counters() {
  Counters c = arena().counters();
  py::dict d;
  d["live_bytes"] = c.live;
  d["resident_bytes"] = c.resident;
  d["clean_bytes"] = c.clean;
  d["dirty_bytes"] = c.dirty;
  d["held_bytes"] = c.held;
  d["arena_limit_bytes"] = c.arena_limit;
  d["process_limit_bytes"] = c.process_limit;
  d["rest_bytes"] = c.rest;
  d["spill_bytes"] = c.spill;
  d["blocks"] = c.blocks;
  d["live_peak_bytes"] = c.live_peak;
  d["held_peak_bytes"] = c.held_peak;
  d["held_byte_ns"] = c.held_byte_ns;
  d["held_ns"] = c.held_ns;
  d["evicted_bytes"] = as_tuple(c.evicted);
  d["fetched_bytes"] = as_tuple(c.fetched);
  d["written_bytes"] = as_tuple(c.written);
  d["stall_room_ns"] = c.stall_ns[static_cast<std::size_t>(Stall::Room)];
  d["stall_fetch_ns"] = c.stall_ns[static_cast<std::size_t>(Stall::DemandFetch)];
  d["faults"] = c.faults;
  d["cancelled"] = c.cancelled;
  d["largest_operator_bytes"] = c.largest_operator_bytes;
  d["largest_operator"] = c.largest_operator;
  d["over_budget"] = c.over_budget;
  d["message"] = c.message;
  return d;
}

void classify(const std::vector<at::Tensor>& tensors, std::size_t kind) {
  if (kind >= kKinds) throw std::invalid_argument("no such kind");
  for (const at::Tensor& tensor : tensors) {
    if (const void* p = managed_storage(tensor)) arena().classify(p, static_cast<Kind>(kind));
  }
}

std::uint64_t evict(const std::vector<at::Tensor>& tensors) {
  py::gil_scoped_release unlocked;
  std::uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (const void* p = managed_storage(tensor)) bytes += arena().evict(p);
  }
  return bytes;
}

bool is_resident(const at::Tensor& tensor) {
  const void* p = managed_storage(tensor);
  if (p == nullptr) return true;
  State state = arena().state(p);
  return state != State::Absent && state != State::Reading;
}

}  // namespace

PYBIND11_MODULE(_torch, m) {
  m.attr("KINDS") = py::make_tuple("parameter", "gradient", "optimizer_state", "activation", "other");
  m.def("start", &start, py::kw_only(), py::arg("spill_dir"), py::arg("arena_bytes"), py::arg("process_bytes"),
        py::arg("min_bytes"), py::arg("io_threads"), py::arg("watchdog_ns"), py::arg("chaos_rate"), py::arg("chaos_seed"));
  m.def("stop", [] {
    arena().set_chaos(0.0, 0);
    the_allocator()->on = false;
  });
  m.def("set_limits",
        [](std::uint64_t arena_bytes, std::uint64_t process_bytes) {
          py::gil_scoped_release unlocked;
          arena().set_limits(arena_bytes, process_bytes);
        },
        py::kw_only(), py::arg("arena_bytes"), py::arg("process_bytes"));
  m.def("begin_step", [] { arena().begin_step(); });
  m.def("end_step", [] { arena().end_step(); });
  m.def("classify", &classify, py::arg("tensors"), py::arg("kind"));
  m.def("counters", &counters);
  m.def("reset_peaks", [] { arena().reset_peaks(); });
  m.def("is_managed", [](const at::Tensor& tensor) { return the_arena() != nullptr && managed_storage(tensor) != nullptr; });
  m.def("is_resident", &is_resident);
  m.def("evict", &evict);
  m.def("hold", [](std::uintptr_t address) {
    auto* p = reinterpret_cast<const void*>(address);
    if (the_arena() == nullptr || the_arena()->in_child() || !the_arena()->contains(p)) return false;
    py::gil_scoped_release unlocked;
    return the_arena()->hold(p);
  });
  m.def("let_go", [](std::uintptr_t address) {
    if (!arena().in_child()) arena().let_go(reinterpret_cast<const void*>(address));
  });
  m.def("adopt", [](const at::Tensor& tensor) { return adopt(*tensor.storage().unsafeGetStorageImpl()); });
  m.def("install_fault_handler", [] { return install_fault_handler(arena()); });
}

}  // namespace ebbtide
