#include "deferred.hpp"

#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <pybind11/stl.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "arithmetic.hpp"
#include "operands.hpp"
#include "recorder.hpp"
#include "standstill.hpp"

namespace py = pybind11;

namespace ebbtide {

namespace {

struct Memory {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

// A storage that deferred updates use, or that is guarded: ranges do not overlap.
struct Range {
  std::uintptr_t end;
  bool shared;  // guarded, or a gradient's: others may use it, too
  std::vector<UpdateNumber> numbers;
};

// What an optimizer's step ran in, on its thread.
struct Scene {
  at::ThreadLocalState modes;
  unsigned rounding = rounding_now();
  Threads threads = threads_now();

  bool computes_as_here() const { return rounding == rounding_now() && threads == threads_now() && keeps_its_threads(); }
};

// An update that waits, in the scene of its step, or updates that were made before their step, with who is told of uses.
struct Deferred {
  std::shared_ptr<const Scene> scene;
  bool step_comes = true;
  PyObject* reached = nullptr;  // a reference, which Python's end leaves as it is
  std::vector<std::uintptr_t> ranges;
};

// Nobody asks for the GIL while he holds it.
std::mutex deferred_mutex;
std::map<std::uintptr_t, Range> ranges;
std::map<UpdateNumber, Deferred> updates;
std::map<std::uintptr_t, std::size_t> arrays;  // in small memory: how many begin there
std::vector<PyObject*> unreferenced;  // once somebody has the GIL
PyObject* make_update = nullptr;
std::atomic<bool> given_up = false;  // an operator went on without an update that it needed

thread_local bool updating = false;  // what this thread runs is an update itself

Memory memory_of(const at::Tensor& tensor) {
  c10::StorageImpl* storage = storage_behind(tensor);
  if (storage == nullptr) return {};
  auto begin = reinterpret_cast<std::uintptr_t>(storage->_mutable_data_ptr_no_checks().get());
  if (begin == 0 || storage->device_type() != c10::DeviceType::CPU) return {};
  std::size_t nbytes = storage->sym_nbytes().is_heap_allocated() ? 1 : storage->nbytes();
  return {begin, begin + nbytes};
}

void find(Memory memory, std::vector<UpdateNumber>& found) {
  if (memory.begin == memory.end) return;
  for (auto range = ranges.lower_bound(memory.end); range != ranges.begin();) {
    --range;
    if (range->second.end <= memory.begin) return;
    for (UpdateNumber number : range->second.numbers) {
      if (std::ranges::find(found, number) == found.end()) found.push_back(number);
    }
  }
}

bool is_free_for(Memory memory, bool shared) {
  for (auto range = ranges.lower_bound(memory.end); range != ranges.begin();) {
    --range;
    if (range->second.end <= memory.begin) return true;
    if (!shared || !range->second.shared || range->first != memory.begin || range->second.end != memory.end) return false;
  }
  return true;
}

void add(UpdateNumber number, Deferred& update, Memory memory, bool shared) {
  if (memory.begin == memory.end) return;
  auto [range, is_new] = ranges.try_emplace(memory.begin, Range{memory.end, shared, {}});
  if (!is_new && std::ranges::find(range->second.numbers, number) != range->second.numbers.end()) return;
  range->second.numbers.push_back(number);
  update.ranges.push_back(memory.begin);
}

void leave_range(UpdateNumber number, std::uintptr_t begin) {
  auto range = ranges.find(begin);
  std::erase(range->second.numbers, number);
  if (range->second.numbers.empty()) ranges.erase(range);
}

Deferred forget(UpdateNumber number) {
  auto update = updates.find(number);
  if (update == updates.end()) return {};
  for (std::uintptr_t begin : update->second.ranges) leave_range(number, begin);
  Deferred gone = std::move(update->second);
  updates.erase(update);
  deferred_updates = updates.size();
  return gone;
}

// Callers MUST have the GIL, and not the mutex.
void drop_references() {
  std::vector<PyObject*> gone;
  {
    std::lock_guard lock(deferred_mutex);
    gone.swap(unreferenced);
  }
  for (PyObject* each : gone) Py_DECREF(each);
}

// What this thread does within it is not looked at.
class Unlooked {
 public:
  Unlooked() : before_(std::exchange(updating, true)) {}
  ~Unlooked() { updating = before_; }
  Unlooked(const Unlooked&) = delete;
  Unlooked& operator=(const Unlooked&) = delete;

 private:
  bool before_;
};

// torch.jit.trace goes on after it. In a trace the sizes that Python reads are tensors.
class Untraced {
 public:
  Untraced() : trace_(torch::jit::tracer::getTracingState()) {
    if (trace_) torch::jit::tracer::setTracingState(nullptr);
  }
  ~Untraced() {
    if (trace_) torch::jit::tracer::setTracingState(trace_);
  }
  Untraced(const Untraced&) = delete;
  Untraced& operator=(const Untraced&) = delete;

 private:
  std::shared_ptr<torch::jit::tracer::TracingState> trace_;
};

// An update on this thread, whatever the thread is in: as the optimizer's step would have run. Who profiles or debugs now
// does so on.
class Updating {
 public:
  explicit Updating(const at::ThreadLocalState& modes)
      : callbacks_(at::get_record_function_tls_()), debug_(c10::ThreadLocalDebugInfo::current()), guard_(modes) {
    at::set_record_function_tls_(callbacks_);
    c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(debug_);
  }

 private:
  at::RecordFunctionTLS callbacks_;
  std::shared_ptr<c10::ThreadLocalDebugInfo> debug_;
  at::ThreadLocalStateGuard guard_;
  Untraced untraced_;
  InOptimizer in_optimizer_;
  Unlooked unlooked_;
};

Deferred found_by(UpdateNumber number) {
  std::lock_guard lock(deferred_mutex);
  auto update = updates.find(number);
  return update == updates.end() ? Deferred() : update->second;
}

void make_in(const Scene& scene, const py::function& make) {
  Updating scope(scene.modes);
  make();
}

// On a thread that computes as that of the step did: those that share this one's work may round as it does.
void make_elsewhere_in(const Scene& scene, const py::function& make) {
  std::exception_ptr raised;
  {
    py::gil_scoped_release unlocked;
    std::thread([&] {
      round_so(scene.rounding);
      WithThreads threads(scene.threads);
      py::gil_scoped_acquire gil;
      try {
        make_in(scene, make);
      } catch (...) {
        raised = std::current_exception();
      }
    }).join();
  }
  if (raised) std::rethrow_exception(raised);
}

// A type that raises this very error, once: Python takes a type alone. Where it makes sure of the error's type, it calls that with
// the error.
py::object type_that_raises(const py::object& error) {
  py::object kind = py::type::of(error);
  auto held = std::make_shared<py::object>(error);
  py::dict attributes;
  attributes["__new__"] = py::cpp_function([held](const py::args& args) -> py::object {
    return args.size() > 1 ? py::object(args[1]) : std::exchange(*held, py::none());
  });
  for (const char* name : {"__module__", "__qualname__"}) attributes[name] = kind.attr(name);
  try {
    return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&PyType_Type))(kind.attr("__name__"),
                                                                                         py::make_tuple(kind), attributes);
  } catch (py::error_already_set&) {
    return kind;  // it wants no types made of it
  }
}

void raise_on_this_thread(const py::object& error) {
  py::object type = PyExceptionInstance_Check(error.ptr()) ? type_that_raises(error) : error;
  PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), type.ptr());
}

// Makes one update and says whether it could be made. The updater holds a lock: another thread that makes this update already is
// waited for there. What a signal's handler raises before it begins, or while it runs, is the script's once it has been made.
// Who raises more often than kMostTries is no handler: there is no memory, say.
bool carry_out_one(UpdateNumber number, py::object& of_a_handler) {
  constexpr int kMostTries = 100;
  bool made = true;
  for (int tries = 0; made; ++tries) {
    Deferred found = found_by(number);
    auto told = py::reinterpret_borrow<py::object>(found.scene != nullptr ? make_update : found.reached);
    if (!told) break;
    try {
      py::object raised = told(number);
      if (!raised.is_none()) {
        raise_on_this_thread(raised);
        made = false;
      }
      if (found.scene == nullptr) break;
    } catch (py::error_already_set& error) {
      if (!of_a_handler) of_a_handler = error.value();
      made = tries < kMostTries;
      given_up = given_up || !made;
    }
  }
  return made;
}

// Room for an update where the script's own calls are as deep as Python allows. Threads may have some at once.
class MoreCalls {
 public:
  MoreCalls() { Py_SetRecursionLimit(Py_GetRecursionLimit() + kMore); }
  ~MoreCalls() { Py_SetRecursionLimit(Py_GetRecursionLimit() - kMore); }
  MoreCalls(const MoreCalls&) = delete;
  MoreCalls& operator=(const MoreCalls&) = delete;

 private:
  static constexpr int kMore = 500;
};

template <typename Find>
void carry_out_found(Find find_them) {
  if (updating) return;
  std::vector<UpdateNumber> found;
  {
    std::lock_guard lock(deferred_mutex);
    find_them(found);
  }
  if (!found.empty()) carry_out(found);
}

}  // namespace

bool defer(UpdateNumber number, const std::vector<at::Tensor>& own, const at::Tensor& gradient) {
  if (!keeps_its_threads()) return false;
  auto scene = std::make_shared<const Scene>();
  std::lock_guard lock(deferred_mutex);
  if (!is_free_for(memory_of(gradient), true)) return false;
  for (const at::Tensor& tensor : own) {
    if (!is_free_for(memory_of(tensor), false)) return false;
  }
  Deferred& update = updates[number];
  update.scene = std::move(scene);
  add(number, update, memory_of(gradient), true);
  for (const at::Tensor& tensor : own) add(number, update, memory_of(tensor), false);
  deferred_updates = updates.size();
  return true;
}

bool guard(UpdateNumber number, const std::vector<at::Tensor>& tensors, py::object reached, bool alone) {
  drop_references();
  std::lock_guard lock(deferred_mutex);
  for (const at::Tensor& tensor : tensors) {
    if (!is_free_for(memory_of(tensor), true)) return false;
  }
  Deferred& update = updates[number];
  if (update.reached == nullptr) update.reached = reached.release().ptr();
  const std::size_t before = update.ranges.size();
  for (const at::Tensor& tensor : tensors) add(number, update, memory_of(tensor), true);
  deferred_updates = updates.size();
  if (!alone || !others_in_operators()) return true;
  while (update.ranges.size() > before) {  // one that began before may use them
    leave_range(number, update.ranges.back());
    update.ranges.pop_back();
  }
  return false;
}

void carried_out(UpdateNumber number) {
  Deferred gone;  // when the mutex is free: it may hold Python objects
  {
    std::lock_guard lock(deferred_mutex);
    gone = forget(number);
    if (gone.reached != nullptr) unreferenced.push_back(gone.reached);
  }
  drop_references();
}

bool step_will_not_come(UpdateNumber number) {
  std::lock_guard lock(deferred_mutex);
  auto update = updates.find(number);
  if (update == updates.end()) return false;
  update->second.step_comes = false;
  return true;
}

void end_guards_of(const void* storage, std::uint64_t nbytes) {
  auto first = reinterpret_cast<std::uintptr_t>(storage);
  std::lock_guard lock(deferred_mutex);
  std::vector<std::uintptr_t> begins;  // those of slices lie within it
  for (auto range = ranges.lower_bound(first); range != ranges.end() && range->first < first + std::max<std::uint64_t>(nbytes, 1);
       ++range)
    begins.push_back(range->first);
  for (std::uintptr_t begin : begins) {
    for (UpdateNumber number : std::vector(ranges.at(begin).numbers)) {
      Deferred& update = updates.at(number);
      if (update.scene != nullptr) continue;  // which keeps the storage
      leave_range(number, begin);
      std::erase(update.ranges, begin);
      if (update.ranges.empty()) unreferenced.push_back(forget(number).reached);
    }
  }
}

std::vector<std::pair<std::uintptr_t, std::size_t>> places_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::pair<std::uintptr_t, std::size_t>> places;
  for (const at::Tensor& tensor : tensors) {
    Memory memory = memory_of(tensor);
    places.emplace_back(memory.begin, memory.end - memory.begin);
  }
  return places;
}

bool is_unshared(const at::Tensor& tensor) {
  if (const void* address = managed_storage(tensor)) return !the_arena()->is_pinned_from_outside(address);
  Memory memory = memory_of(tensor);
  {
    std::lock_guard lock(deferred_mutex);
    auto array = arrays.lower_bound(memory.begin);
    if (array != arrays.end() && array->first < memory.end) return false;
  }
  if (the_allocator() == nullptr || memory.end - memory.begin >= the_allocator()->min_bytes) return false;
  c10::StorageImpl* storage = storage_behind(tensor);
  return storage == nullptr || the_allocator()->has_allocated(storage->_mutable_data_ptr_no_checks());  // else an array's, say
}

void look_at(at::ArrayRef<const c10::IValue> arguments) {
  carry_out_found([&](auto& found) {
    for (const c10::IValue& argument : arguments)
      for_each_part(argument, [&](const at::Tensor& part) { find(memory_of(part), found); });
  });
}

void look_at(const at::Tensor& tensor) { look_at(c10::IValue(tensor)); }

void look_at(const void* address, std::size_t nbytes) {
  auto begin = reinterpret_cast<std::uintptr_t>(address);
  carry_out_found([&](auto& found) { find({begin, begin + nbytes}, found); });
}

void look_at_all() {
  carry_out_found([](auto& found) {
    for (const auto& [number, update] : updates) found.push_back(number);
  });
}

void look_before_a_setting() {
  carry_out_found([](auto& found) {
    for (const auto& [number, update] : updates) {
      if (update.step_comes) found.push_back(number);
    }
  });
}

void carry_out(const std::vector<UpdateNumber>& numbers) {
  if (updating || !Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  MoreCalls more_calls;
  py::object of_a_handler;  // raised once all are made: the operator that looks goes on in any case
  for (UpdateNumber number : numbers) {
    if (!carry_out_one(number, of_a_handler)) break;
  }
  if (of_a_handler) raise_on_this_thread(of_a_handler);
}

void carry_out_all() {
  carry_out_found([](auto& found) {
    for (const auto& [number, update] : updates) {
      if (update.scene != nullptr) found.push_back(number);
    }
  });
}

void set_updater(py::object updater) {
  PyObject* before = std::exchange(make_update, updater.is_none() ? nullptr : updater.release().ptr());
  Py_XDECREF(before);
  given_up = false;
}

void make_early(const py::function& make) {
  InOptimizer in_optimizer;
  Unlooked unlooked;
  make();
}

void make_in_its_scene(UpdateNumber number, const py::function& make) {
  std::shared_ptr<const Scene> scene = found_by(number).scene;
  if (scene == nullptr) return;
  scene->computes_as_here() ? make_in(*scene, make) : make_elsewhere_in(*scene, make);
}

void abandon_deferred() {
  std::vector<Deferred> gone;  // when the mutex is free
  std::unique_lock lock(deferred_mutex, std::try_to_lock);
  deferred_updates = 0;
  if (!lock) return;  // for good: the thread that had it is not here
  std::vector<UpdateNumber> waiting;
  for (const auto& [number, update] : updates) {
    if (update.scene != nullptr) waiting.push_back(number);
  }
  for (UpdateNumber number : waiting) gone.push_back(forget(number));
  deferred_updates = updates.size();
}

void bind_deferred(py::module_& m) {
  m.def("defer", &defer, py::arg("number"), py::arg("own"), py::arg("gradient"));
  m.def("guard", &guard, py::arg("number"), py::arg("tensors"), py::arg("reached"), py::arg("alone"));
  m.def("carried_out", &carried_out);
  m.def("step_will_not_come", &step_will_not_come);
  m.def("note_array", [](std::uintptr_t address, bool begins) {
    std::lock_guard lock(deferred_mutex);
    auto array = arrays.try_emplace(address).first;
    array->second += begins ? 1 : -1;
    if (array->second == 0) arrays.erase(array);
  });
  m.def("is_unshared", &is_unshared);
  m.def("set_updater", &set_updater);
  m.def("make_early", &make_early);
  m.def("make_in_its_scene", &make_in_its_scene);
  m.def("memory_of", &places_of);
  m.def("look_at", [](const std::vector<at::Tensor>& tensors) {
    if (!anything_deferred()) return;
    for (const at::Tensor& tensor : tensors) look_at(tensor);
  });
  m.def("look_at_memory", [](std::uintptr_t address, std::size_t nbytes) {
    if (anything_deferred()) look_at(reinterpret_cast<const void*>(address), nbytes);
  });
  m.def("look_at_all", [] {
    if (anything_deferred()) look_at_all();
  });
  m.def("look_before_a_setting", [] {
    if (anything_deferred()) look_before_a_setting();
  });
  m.def("carry_out", [](const std::vector<UpdateNumber>& numbers) {
    if (anything_deferred()) carry_out(numbers);
  });
  m.def("carry_out_all", [] {
    if (anything_deferred()) carry_out_all();
  });
  m.def("abandon_deferred", &abandon_deferred);
  m.def("gave_up", [] { return given_up.load(); });
  m.def("deferred_count", [] { return deferred_updates.load(); });
}

}  // namespace ebbtide
