#include "recording_columns.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <type_traits>

namespace py = pybind11;

namespace ebbtide {

namespace {

// One column of a table of records; kNever becomes -1.
template <typename Record, typename F>
py::array_t<std::int64_t> column(const std::vector<Record>& records, F field) {
  py::array_t<std::int64_t> values(static_cast<py::ssize_t>(records.size()));
  auto out = values.mutable_unchecked<1>();
  for (std::size_t i = 0; i < records.size(); ++i) {
    auto value = field(records[i]);
    bool never = std::is_same_v<decltype(value), std::uint32_t> && static_cast<std::uint64_t>(value) == kNever;
    out(static_cast<py::ssize_t>(i)) = never ? -1 : static_cast<std::int64_t>(value);
  }
  return values;
}

}  // namespace

py::object as_columns(const Recording& r) {
  py::dict d;
  d["time_ns"] = r.time_ns;
  d["stalled_ns"] = r.stalled_ns;
  std::vector<std::string> names = r.names;
  names.insert(names.end(), r.calls.begin(), r.calls.end());
  d["names"] = names;
  d["tick_name"] = column(r.ticks, [](auto& t) { return t.name; });
  d["tick_module"] = column(r.ticks, [](auto& t) { return t.module; });
  d["tick_arguments"] = column(r.ticks, [&](auto& t) { return static_cast<std::uint32_t>(r.names.size()) + t.arguments; });
  d["tick_depth"] = column(r.ticks, [](auto& t) { return t.depth; });
  d["tick_phase"] = column(r.ticks, [](auto& t) { return static_cast<int>(t.phase); });
  d["tick_begin_ns"] = column(r.ticks, [](auto& t) { return t.begin_ns; });
  d["tick_stalled_ns"] = column(r.ticks, [](auto& t) { return t.stalled_ns; });
  d["tick_reserved"] = column(r.ticks, [](auto& t) { return t.reserved; });
  d["serial"] = column(r.storages, [](auto& s) { return s.serial; });
  d["nbytes"] = column(r.storages, [](auto& s) { return s.nbytes; });
  d["kind"] = column(r.storages, [](auto& s) { return static_cast<int>(s.kind); });
  d["birth"] = column(r.storages, [](auto& s) { return s.birth; });
  d["allocation"] = column(r.storages, [](auto& s) { return s.allocation; });
  d["depth"] = column(r.storages, [](auto& s) { return s.depth; });
  d["death"] = column(r.storages, [](auto& s) { return s.death; });
  d["scratch"] = column(r.storages, [](auto& s) { return static_cast<int>(s.scratch); });
  d["thread"] = column(r.storages, [](auto& s) { return s.thread; });
  d["whole"] = column(r.storages, [](auto& s) { return s.whole; });
  d["freed_after"] = column(r.storages, [](auto& s) { return s.freed_after; });
  d["packed_bytes"] = column(r.storages, [](auto& s) { return std::max<std::int64_t>(s.packed_bytes, -1); });
  d["module"] = column(r.storages, [](auto& s) { return s.module; });
  d["line"] = column(r.storages, [](auto& s) { return s.line; });
  d["use_storage"] = column(r.uses, [](auto& u) { return u.storage; });
  d["use_first"] = column(r.uses, [](auto& u) { return u.first; });
  d["use_last"] = column(r.uses, [](auto& u) { return u.last; });
  d["use_access"] = column(r.uses, [](auto& u) { return static_cast<int>(u.access); });
  d["use_moved"] = column(r.uses, [](auto& u) { return u.moved; });
  d["span_storage"] = column(r.spans, [](auto& s) { return s.storage; });
  d["span_tick"] = column(r.spans, [](auto& s) { return s.tick; });
  d["span_lane"] = column(r.spans, [](auto& s) { return static_cast<int>(s.lane); });
  d["span_source"] = column(r.spans, [](auto& s) { return static_cast<int>(s.source); });
  d["span_target"] = column(r.spans, [](auto& s) { return static_cast<int>(s.target); });
  d["span_asked_ns"] = column(r.spans, [](auto& s) { return s.asked_ns; });
  d["span_begin_ns"] = column(r.spans, [](auto& s) { return s.begin_ns; });
  d["span_end_ns"] = column(r.spans, [](auto& s) { return s.end_ns; });
  return py::module_::import("ebbtide.ir.recording").attr("Recording")(**d);
}

}  // namespace ebbtide
