// ebbtide._torch: see _torch.pyi for what each function promises.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <caffe2/serialize/inline_container.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>

#include "../core/fault.hpp"
#include "../simulate/schedule_columns.hpp"
#include "arithmetic.hpp"
#include "gathers.hpp"
#include "holders.hpp"
#include "collective_pins.hpp"
#include "counters_dict.hpp"
#include "deferred.hpp"
#include "device_memory.hpp"
#include "dlpack_table.hpp"
#include "lines.hpp"
#include "modules.hpp"
#include "operands.hpp"
#include "operator_rules.hpp"
#include "plain_recorder.hpp"
#include "profiler_labels.hpp"
#include "recipes.hpp"
#include "recorder.hpp"
#include "recording_columns.hpp"
#include "repeatable.hpp"
#include "run_tiers.hpp"

namespace py = pybind11;

namespace ebbtide {

namespace {

Arena& arena() {
  if (the_arena() == nullptr) throw std::runtime_error("the arena has not been started");
  return *the_arena();
}

DeviceMemory& device_memory() {
  if (the_device_memory() == nullptr) throw std::runtime_error("no session has been started for a device");
  return *the_device_memory();
}

Watch& watch() {
  if (the_watch() == nullptr) throw std::runtime_error("nothing watches this process yet");
  return *the_watch();
}

PlainRecorder* plain_recorder = nullptr;  // once it has watched

struct ArenaSettings {
  std::vector<std::string> spill_dirs;
  std::vector<AskedTier> tiers;     // between memory and the spill directories, the fastest first
  std::uint64_t arena_bytes = 0;    // the arena's bound; 0: none
  std::uint64_t process_bytes = 0;  // the process's bound; 0: none
  std::uint64_t machine_bytes = 0;  // what it can have at most; 0: not known
  std::size_t min_bytes = kManagedBytes;
  std::uint64_t piece_bytes = kPiece;
  std::string policy = "demand";
  unsigned io_threads = 2;
  std::int64_t watchdog_ns = std::int64_t{30} * 1'000'000'000;
  double chaos_rate = 0.0;
  std::uint64_t chaos_seed = 0;
};

void start(const ArenaSettings& asked) {
  const Policy* chosen = find_policy(asked.policy);
  if (chosen == nullptr) throw std::invalid_argument("no such policy: " + asked.policy);
  if (the_arena() == nullptr) {
    Options options;
    options.io_threads = asked.io_threads;
    options.on_governor_wake = [] {
      install_fault_handler(*the_arena());
      unpin_ended(false);
    };
    options.unpins_come = collectives_under_way;
    options.make = [](const void* address) { make_anew(address); };
    options.make_all = make_all;
    options.ask_to_make = ask_to_make;
    options.labels = profiler_labels();
    check_allocator();
    make_arena(options, run_tiers(asked.tiers, asked.spill_dirs));
    install_allocator();
    watch_arena();
    install_recorder();
    install_list_operators();
    install_gathers();
    learn_slice_deleter(*torch::createStorage(py::module_::import("torch").attr("UntypedStorage")(64)[py::slice(0, 32, 1)].ptr())
                             .unsafeGetStorageImpl());
  }
  install_fault_handler(arena());
  arena().reset_trouble();
  arena().set_watchdog(asked.watchdog_ns);
  arena().set_chaos(asked.chaos_rate, asked.chaos_seed);
  arena().set_policy(*chosen);
  arena().set_least_piece(asked.piece_bytes);
  begin_pieces(asked.piece_bytes);
  the_allocator()->min_bytes = asked.min_bytes;
  the_allocator()->on = true;
  py::gil_scoped_release unlocked;
  arena().set_machine(asked.machine_bytes);
  arena().set_limits(asked.arena_bytes, asked.process_bytes);
}

// The threads that share an operator's work have the mask of the thread that made them. Each takes an element.
void let_faults_into_pool() {
  if (in_each_of_the_team([](void*) { let_faults_in(); }, nullptr)) return;
  at::Tensor elements = at::empty({static_cast<std::int64_t>(at::get_num_threads())});
  auto shared = at::TensorIterator::nullary_op(elements);
  shared.for_each([](char**, const std::int64_t*, std::int64_t, std::int64_t) { let_faults_in(); }, /*grain_size=*/1);
}

// ebbtide.planning.load_schedule.ScheduleColumns.
std::size_t load_schedule(const py::object& columns) {
  auto column = [&](const char* name) { return ColumnOf(columns, name); };
  auto number = [](std::int64_t value) { return value == -1 ? kNever : narrow<std::uint32_t>(value, kNever - 1); };
  ColumnOf tick_ns = column("tick_ns"), nbytes = column("nbytes"), serial = column("serial"), birth = column("birth");
  ColumnOf use_storage = column("use_storage"), use_tick = column("use_tick");
  require_same_length(nbytes, serial), require_same_length(nbytes, birth), require_same_length(use_storage, use_tick);
  Schedule s;
  s.tick_ns.assign(tick_ns.begin(), tick_ns.end());
  s.n_ticks = number(static_cast<std::int64_t>(tick_ns.size()) - 1);
  for (std::int64_t bytes : column("headroom"))
    s.headroom.push_back(static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 0)));
  for (std::size_t i = 0; i < nbytes.size(); ++i) {
    s.storages.push_back({.nbytes = static_cast<std::uint64_t>(nbytes[i]),
                          .serial = static_cast<std::uint64_t>(serial[i]),
                          .birth = number(birth[i]),
                          .uses = {}});
  }
  for (std::int64_t storage : column("allocations")) s.allocations.push_back(number(storage));
  auto last = static_cast<std::int64_t>(s.storages.size()) - 1;
  for (std::size_t i = 0; i < use_storage.size(); ++i)
    s.storages[narrow<std::uint32_t>(use_storage[i], last)].uses.push_back(number(use_tick[i]));
  simulate::Commands made = commands_of(columns.attr("commands"));
  s.commands = std::move(made.rows);
  ColumnOf maker = column("maker"), ingredient = column("ingredient");
  require_same_length(nbytes, maker), require_same_length(nbytes, ingredient);
  for (std::size_t i = 0; i < nbytes.size(); ++i) {
    s.storages[i].maker = number(maker[i]);
    s.storages[i].ingredient = ingredient[i] != 0;
  }
  std::ranges::sort(made.begins, std::greater{}, &simulate::Begin::tier);
  for (auto [storage, tier] : made.begins) s.storages[narrow<std::uint32_t>(storage, last)].begins = tier;  // the fastest is last
  return scheduled_watch().schedules().load(std::move(s));
}

std::vector<std::pair<int, bool>> uses_by_argument(const std::string& name, const std::string& overload, bool leaves_gradients) {
  std::vector<std::pair<int, bool>> uses;
  for (const Use& use : uses_of(schema_of(name, overload), leaves_gradients))
    uses.emplace_back(static_cast<int>(use.access), use.overwrites);
  return uses;
}

void watch_without_arena(std::uint64_t least_piece) {
  plain_recorder = &install_plain_recorder();
  begin_pieces(least_piece);
  plain_recorder->watch(true, least_piece);
  set_watch(plain_recorder);
  install_list_operators();
}

void unwatch() {
  if (the_arena() == nullptr && plain_recorder != nullptr) plain_recorder->watch(false);
  if (the_device_memory() != nullptr) the_device_memory()->stop();
}

py::dict begin_step(bool record, bool modules) {
  forget_nodes();
  name_modules(record && modules);
  enter_optimizer(false);
  if (record) {
    look_again_what_repeats();
    install_recorder();
  }
  look_whether_kernels_came();
  return as_dict(watch().begin_step(record));
}

py::dict end_step(bool completed) {
  unpin_last_step();
  Counters after = watch().end_step(completed);
  if (the_arena() == nullptr && the_device_memory() == nullptr) remove_recorder();
  return as_dict(after);
}

void classify(const std::vector<at::Tensor>& tensors, std::size_t kind) {
  if (kind >= kKinds) throw std::invalid_argument("no such kind");
  for (const at::Tensor& tensor : tensors) {
    for_each_part(tensor, [&](const at::Tensor& part) {
      if (const void* p = watched_storage(part)) watch().classify(p, static_cast<Kind>(kind));
    });
  }
}

c10::StorageImpl& storage_of(const at::Tensor& tensor) { return *tensor.storage().unsafeGetStorageImpl(); }

void start_device(const DeviceSettings& asked) {
  if (the_arena() != nullptr)
    throw std::runtime_error("this process had a session that bounds its memory: start another for a device");
  DeviceMemory& memory = make_device_memory(asked);
  repeat_on_an_accelerator();
  install_recorder(/*shows_results=*/true);
  install_list_operators(memory.dispatch_key());
}

template <typename Do>
void for_each_storage(const py::object& what, Do once) {
  if (torch::isStorage(what.ptr())) {
    c10::Storage storage = torch::createStorage(what.ptr());
    py::gil_scoped_release unlocked;
    once(*storage.unsafeGetStorageImpl());
    return;
  }
  auto tensor = what.cast<at::Tensor>();
  py::gil_scoped_release unlocked;
  for_each_part(tensor, [&](const at::Tensor& part) { once(*storage_behind(part)); });
}

bool pin_on_device(const py::object& what, bool for_good) {
  bool stayed = true;
  for_each_storage(what, [&](c10::StorageImpl& storage) { stayed = device_memory().pin(storage, for_good) && stayed; });
  return stayed;
}

std::uint64_t evict(const std::vector<at::Tensor>& tensors) {
  py::gil_scoped_release unlocked;
  std::uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    for_each_part(tensor, [&](const at::Tensor& part) {
      if (the_device_memory() != nullptr) bytes += the_device_memory()->evict(storage_of(part));
      if (managed_storage(part) == nullptr || part.numel() == 0) return;
      std::span<const char> memory = reach_of(part);
      bytes += arena().evict(memory.data(), 1, memory.size());
    });
  }
  return bytes;
}

void prefetch(const std::vector<at::Tensor>& tensors) {
  py::gil_scoped_release unlocked;
  std::vector<Operand> operands;
  for (const at::Tensor& tensor : tensors) collect_operands(tensor, Use{}, operands);
  watch().prefetch(operands);
}

bool is_resident(const at::Tensor& tensor) {
  if (the_device_memory() != nullptr) return the_device_memory()->is_here(storage_of(tensor));
  if (managed_storage(tensor) == nullptr || tensor.numel() == 0) return true;
  std::span<const char> memory = reach_of(tensor);
  return arena().is_resident(memory.data(), memory.size());
}

// PyTorch hands the kernel the address of the whole storage, which may be away, or a part of it.
at::Tensor read_record(caffe2::serialize::PyTorchStreamReader& reader, const std::string& name, std::size_t nbytes) {
  next_is_untouched = true;
  at::DataPtr data = c10::GetAllocator(c10::DeviceType::CPU)->allocate(nbytes);
  std::vector<char> chunk(std::size_t{1} << 20);
  char* end = static_cast<char*>(data.get()) + nbytes;  // of a view with larger elements, which leaves out some bytes
  auto copy = [end](void* to, const void* from, std::size_t n) {
    auto* at = static_cast<char*>(to);
    if (at < end) std::memcpy(at, from, std::min(n, static_cast<std::size_t>(end - at)));
  };
  std::size_t recorded = reader.getRecordSize(name);
  if (recorded < nbytes || reader.getRecord(name, data.get(), recorded, chunk.size(), chunk.data(), copy) != recorded)
    throw std::runtime_error("a record of a file has another size than the file says");
  // It is as PyTorch makes it: of no sizes, and not to be resized.
  c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, std::move(data), nullptr, false);
  return at::detail::make_tensor<at::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                 caffe2::TypeMeta::Make<std::uint8_t>());
}

}  // namespace

PYBIND11_MODULE(_torch, m) {
  find_module_calls();
  bind_deferred(m);
  m.attr("KINDS") = as_tuple(kKindNames);
  m.attr("PHASES") = as_tuple(kPhaseNames);
  m.attr("LANES") = as_tuple(kLaneNames);
  m.attr("VERBS") = as_tuple(kVerbNames);
  m.attr("ACCESSES") = as_tuple(kAccessNames);
  m.attr("MANAGED_BYTES") = kManagedBytes;
  py::class_<AskedTier>(m, "AskedTier")
      .def(py::init<std::string, std::uint64_t, int>(), py::kw_only(), py::arg("kind"), py::arg("capacity_bytes"),
           py::arg("node"));
  py::class_<ArenaSettings>(m, "ArenaSettings")
      .def(py::init<>())
      .def_readwrite("spill_dirs", &ArenaSettings::spill_dirs)
      .def_readwrite("tiers", &ArenaSettings::tiers)
      .def_readwrite("arena_bytes", &ArenaSettings::arena_bytes)
      .def_readwrite("process_bytes", &ArenaSettings::process_bytes)
      .def_readwrite("machine_bytes", &ArenaSettings::machine_bytes)
      .def_readwrite("min_bytes", &ArenaSettings::min_bytes)
      .def_readwrite("piece_bytes", &ArenaSettings::piece_bytes)
      .def_readwrite("policy", &ArenaSettings::policy)
      .def_readwrite("io_threads", &ArenaSettings::io_threads)
      .def_readwrite("watchdog_ns", &ArenaSettings::watchdog_ns)
      .def_readwrite("chaos_rate", &ArenaSettings::chaos_rate)
      .def_readwrite("chaos_seed", &ArenaSettings::chaos_seed);
  m.def("start", &start, py::arg("asked"));
  py::class_<DeviceSettings>(m, "DeviceSettings")
      .def(py::init<>())
      .def_readwrite("device", &DeviceSettings::device)
      .def_readwrite("fast_bytes", &DeviceSettings::fast_bytes)
      .def_readwrite("host_bytes", &DeviceSettings::host_bytes)
      .def_readwrite("spill_dirs", &DeviceSettings::spill_dirs)
      .def_readwrite("io_threads", &DeviceSettings::io_threads)
      .def_readwrite("min_bytes", &DeviceSettings::min_bytes)
      .def_readwrite("policy", &DeviceSettings::policy)
      .def_readwrite("chaos_rate", &DeviceSettings::chaos_rate)
      .def_readwrite("chaos_seed", &DeviceSettings::chaos_seed);
  m.def("start_device", &start_device, py::arg("asked"), py::call_guard<py::gil_scoped_release>());
  m.def("device_memory", [](const std::string& name) {
    c10::Device device(name);
    return c10::getDeviceAllocator(device.type())->getMemoryInfo(device.has_index() ? device.index() : c10::DeviceIndex{0});
  });
  m.def(
      "allocator_bytes",
      [](const std::string& name, bool reset_peak) {
        c10::Device device(name);
        c10::DeviceAllocator& allocator = *c10::getDeviceAllocator(device.type());
        const auto index = device.has_index() ? device.index() : c10::DeviceIndex{0};
        auto stats = allocator.getDeviceStats(index);
        const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
        if (reset_peak) allocator.resetPeakStats(index);
        return std::tuple(stats.allocated_bytes[all].current, stats.reserved_bytes[all].current, stats.allocated_bytes[all].peak);
      },
      py::arg("device"), py::arg("reset_peak") = false);
  m.def(
      "set_device_limit", [](std::uint64_t bytes) { device_memory().set_limit(bytes); },
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "suspend_device", [](bool suspends) { device_memory().suspend(suspends, /*for_a_graph=*/true); },
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "stop_device",
      [] {
        auto [nbytes, failure] = device_memory().stop();
        return std::pair(nbytes, failure);
      },
      py::call_guard<py::gil_scoped_release>());
  m.def("pin_on_device", &pin_on_device, py::arg("what"), py::arg("for_good") = false);
  m.def("keep_on_device",
        [](const py::object& what) { for_each_storage(what, [](c10::StorageImpl& storage) { device_memory().keep(storage); }); });
  m.def("unpin_on_device", [](const py::object& what) {
    for_each_storage(what, [](c10::StorageImpl& storage) { device_memory().unpin(storage); });
  });
  m.def(
      "measure_tier",
      [](const std::string& kind, int node) {
        TierRates r = measure_tier({kind, 0, node});
        return py::dict(py::arg("out") = r.out, py::arg("back") = r.back, py::arg("read") = r.read, py::arg("write") = r.write,
                        py::arg("fast_read") = r.fast_read, py::arg("fast_write") = r.fast_write);
      },
      py::arg("kind"), py::arg("node"));
  m.def(
      "check_tier", [](const std::string& kind, std::uint64_t bytes, int node) { check_tier({kind, bytes, node}); },
      py::arg("kind"), py::arg("capacity_bytes"), py::arg("node"));
  m.def("stop", [] {
    arena().set_chaos(0.0, 0);
    the_allocator()->on = false;
  });
  m.def("set_checksum", [](bool on, bool pages) { arena().set_checksum(on, pages); }, py::arg("on"), py::arg("pages") = false);
  m.def(
      "set_limits",
      [](std::uint64_t arena_bytes, std::uint64_t process_bytes) {
        py::gil_scoped_release unlocked;
        arena().set_limits(arena_bytes, process_bytes);
      },
      py::kw_only(), py::arg("arena_bytes"), py::arg("process_bytes"));
  m.def("set_machine", [](std::uint64_t bytes) { arena().set_machine(bytes); }, py::call_guard<py::gil_scoped_release>());
  m.def("watch", &watch_without_arena, py::kw_only(), py::arg("piece_bytes") = kPiece);
  m.def("unwatch", &unwatch);
  m.def("notice", [](const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) for_each_part(tensor, [](const at::Tensor& part) { watched_storage(part); });
  });
  m.def("begin_step", &begin_step, py::kw_only(), py::arg("record") = false, py::arg("modules") = false);
  m.def("end_step", &end_step, py::kw_only(), py::arg("completed") = true);
  m.def("threads_now", [] {
    Threads now = threads_now();
    return std::pair(now.openmp, now.mkl);
  });
  m.def("give_threads", [](const std::pair<int, int>& here, const std::pair<int, int>& to_new) {
    give_threads({here.first, here.second}, {to_new.first, to_new.second});
  });
  m.def("note_lines", [](const std::vector<std::tuple<std::string, bool, int, std::string>>& rows) {
    std::vector<LineRule> rules;
    for (const auto& [text, anywhere, rank, shown] : rows) rules.push_back({text, anywhere, rank, shown});
    note_lines(std::move(rules));
  });
  m.def("line_here", [](const std::string& of_node) { return notes_lines() ? line_here(of_node) : ""; });
  m.def("module_here", &module_here);
  m.def("enter_optimizer", &enter_optimizer);
  m.def("take_recording", [] { return as_columns(watch().tape().take()); });
  m.def("load_schedule", &load_schedule, py::arg("columns"));
  m.def("touches_nothing",
        [](const std::string& name, const std::string& overload) { return touches_nothing(schema_of(name, overload)); });
  m.def("over_lists", &over_lists);
  m.def("repeatable_operators", [] {
    auto listed = [](auto names) { return std::vector<std::string>(names.begin(), names.end()); };
    return std::tuple(listed(repeatable_operators()), listed(operators_repeatable_in_place()),
                      listed(operators_repeatable_on_accelerators()));
  });
  m.def("repeats", [](const std::string& name, const std::string& overload) {
    c10::OperatorName name_of(name, overload);
    if (!is_repeatable(name_of) && !is_repeatable_in_place(name_of)) return false;
    auto op = c10::Dispatcher::singleton().findOp(name_of);
    return op.has_value() && has_known_kernels(*op);
  });
  m.def("change_repeatable", &change_repeatable, py::arg("without"), py::arg("added"));
  m.def("look_again_what_repeats", &look_again_what_repeats);
  m.def("cut_groups", &cut_groups);
  m.def("uses_of", &uses_by_argument);
  m.def("unload_schedule", [](std::size_t number) { scheduled_watch().schedules().unload(number); });
  m.def("unload_schedules", [] { scheduled_watch().schedules().unload(); });
  m.def("followed", [] { return scheduled_watch().schedules().followed(); });
  m.def("gone", [] { return scheduled_watch().schedules().gone(); });
  m.def("standing", [] { return scheduled_watch().schedules().standing(); });
  m.def("classify", &classify, py::arg("tensors"), py::arg("kind"));
  m.def("counters", [] {
    Counters now;
    {
      py::gil_scoped_release unlocked;
      now = scheduled_watch().counters();
    }
    return as_dict(now);
  });
  m.def("reset_peaks", [] { scheduled_watch().reset_peaks(); }, py::call_guard<py::gil_scoped_release>());
  m.def(
      "set_aside",
      [](std::uint64_t bytes, int process) {
        py::gil_scoped_release unlocked;
        if (the_arena() != nullptr) arena().set_aside(bytes, process);  // a device's budget is not the process's
      },
      py::arg("bytes"), py::arg("process") = 0);
  m.def("reset_needs", [] { arena().reset_needs(); });
  m.def("reset_trouble", [] { arena().reset_trouble(); });
  m.def("remeasure_unmanaged", [] {
    if (the_arena() != nullptr) arena().remeasure_unmanaged();
  });
  m.def("look_at_data_files", [] { arena().look_at_data_files(); }, py::call_guard<py::gil_scoped_release>());
  m.def("is_managed", [](const at::Tensor& tensor) { return the_arena() != nullptr && managed_storage(tensor) != nullptr; });
  m.def("read_record", &read_record, py::arg("reader"), py::arg("name"), py::arg("nbytes"));
  m.def("is_resident", &is_resident);
  m.def("evict", &evict);
  m.def("prefetch", &prefetch);
  m.def(
      "pin",
      [](std::uintptr_t address, std::uint64_t nbytes) {
        auto* p = reinterpret_cast<const void*>(address);
        if (the_arena() == nullptr || !the_arena()->contains(p)) return false;
        if (the_arena()->in_child()) install_fault_handler(*the_arena());
        int error = 0;
        {
          py::gil_scoped_release unlocked;
          error = the_arena()->pin(p, nbytes);
        }
        if (error != 0 && error != ENOENT) {
          throw std::runtime_error(
              "ebbtide: a tensor cannot be read back from the spill directory: " + std::string(std::strerror(error)) +
              ". What it held is lost; go on from a checkpoint, with another directory (--spill DIR)");
        }
        return error == 0 && !the_arena()->in_child();
      },
      py::arg("address"), py::arg("nbytes") = 0);
  m.def(
      "unpin",
      [](std::uintptr_t address, std::uint64_t nbytes) {
        if (!arena().in_child()) arena().unpin(reinterpret_cast<const void*>(address), nbytes);
      },
      py::arg("address"), py::arg("nbytes") = 0);
  m.def(
      "enter_backend",
      [](const std::vector<at::Tensor>& tensors) {
        enter_collective();
        for (const at::Tensor& tensor : tensors) pin_for_collective(tensor, false);
      },
      py::call_guard<py::gil_scoped_release>());
  m.def("exit_backend",
        [](const py::object& work) { exit_backend(py::isinstance<c10d::Work>(work) ? py::cast<c10d::Work*>(work) : nullptr); });
  m.def("dlpack_table", &dlpack_table, py::arg("theirs"), py::arg("before"));
  m.def("adopt_all", [](const py::dict& attributes, const py::list& locals, const py::list& roots) {
    using Told = std::pair<std::uint64_t, std::vector<std::pair<std::uint64_t, std::string>>>;
    std::optional<Adopted> adopted = adopt_all(attributes.ptr(), locals.ptr(), roots.ptr());
    return adopted ? std::optional<Told>({adopted->bytes, adopted->left_alone}) : std::nullopt;
  });
  m.def(
      "want_all_recipes", [](bool all, unsigned one_in) { watch(), want_all_recipes(all, one_in); }, py::arg("all"),
      py::arg("one_in") = 2);
  m.def("check_what_is_made", &check_what_is_made);
  m.def(
      "make_all",
      [] {
        if (watch().on()) make_all();
      },
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "begin_change",
      [] {
        begin_change();
        look_again_who_rounds();
        look_again_who_keeps_threads();
        if (watch().on()) make_all();
      },
      py::call_guard<py::gil_scoped_release>());
  m.def("end_change", &end_change);
  m.def("all_have_rounded_as_usual", &all_have_rounded_as_usual);
  m.def("recipes", [] { return recipes_kept.load(); });
  m.def("install_fault_handler", [] { return install_fault_handler(arena()); });
  m.def("let_faults_into_pool", &let_faults_into_pool, py::call_guard<py::gil_scoped_release>());
}

}  // namespace ebbtide
