#include "counters_dict.hpp"

#include <pybind11/stl.h>

namespace py = pybind11;

namespace ebbtide {

py::dict as_dict(const Counters& c) {
  py::dict d;
  d["live_bytes"] = c.live;
  d["resident_bytes"] = c.resident;
  d["reserved_bytes"] = c.reserved;
  d["arena_limit_bytes"] = c.arena_limit;
  d["unmanaged_bytes"] = c.unmanaged;
  d["elsewhere_bytes"] = c.elsewhere;
  d["elsewhere_peak_bytes"] = c.elsewhere_peak;
  d["process_peak_bytes"] = c.process_peak;
  d["tier_bytes"] = py::tuple(py::cast(c.tier_used));
  d["tier_peak_bytes"] = py::tuple(py::cast(c.tier_peak));
  d["tier_written_bytes"] = py::tuple(py::cast(c.tier_written));
  d["tier_read_bytes"] = py::tuple(py::cast(c.tier_read));
  d["blocks"] = c.blocks;
  d["live_peak_bytes"] = c.live_peak;
  d["step_live_peak_bytes"] = c.step_live_peak;
  d["reserved_peak_bytes"] = c.reserved_peak;
  d["resident_peak_bytes"] = c.resident_peak;
  d["reserved_byte_ns"] = c.reserved_byte_ns;
  d["resident_byte_ns"] = c.resident_byte_ns;
  d["measured_ns"] = c.measured_ns;
  d["evicted_bytes"] = as_tuple(c.evicted);
  d["fetched_bytes"] = as_tuple(c.fetched);
  d["written_bytes"] = as_tuple(c.written);
  d["resident_bytes_by_kind"] = as_tuple(c.resident_kinds);
  d["stall_room_ns"] = c.stall_ns[static_cast<std::size_t>(Stall::Room)];
  d["stall_late_ns"] = c.stall_ns[static_cast<std::size_t>(Stall::LatePrefetch)];
  d["stall_fetch_ns"] = c.stall_ns[static_cast<std::size_t>(Stall::DemandFetch)];
  d["fetching_ns"] = c.copy_ns[0];
  d["evicting_ns"] = c.copy_ns[1];
  d["operators"] = c.operators;
  d["faults"] = c.faults;
  d["made_anew_bytes"] = c.made_anew;
  d["made_anew_ns"] = c.made_anew_ns;
  d["ingredient_bytes"] = c.ingredients;
  d["looked_at"] = c.looked_at;
  d["largest_operator_bytes"] = c.largest_operator_bytes;
  d["largest_operator_used"] = c.largest_operator_used;
  d["largest_operand_bytes"] = c.largest_operand;
  d["largest_operator"] = c.largest_operator;
  d["stuck_at_bytes"] = c.stuck_at_bytes;
  d["held_bytes"] = c.held;
  d["refused"] = c.refused;
  d["over_budget"] = c.over_budget;
  d["message"] = c.message;
  d["tables_filled"] = c.tables_filled;
  return d;
}

}  // namespace ebbtide
