// ebbtide._planning: see _planning.pyi for what each function promises. No torch: only its copy of pybind11, to compile.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "module.hpp"
#include "order.hpp"

namespace py = pybind11;

namespace ebbtide {

namespace {

// Views of the simulator's columns, which keep them alive and from growing.
struct Views {
  py::buffer_info valid, evicting, nbytes, last_use, next_use, moves, transient;
};

template <typename T>
std::span<const T> column(const py::buffer_info& view) {
  if (view.ndim != 1 || view.itemsize != sizeof(T) || (view.size > 1 && view.strides[0] != sizeof(T))) {
    throw std::invalid_argument("not a column of numbers of " + std::to_string(sizeof(T)) + " bytes");
  }
  return {static_cast<const T*>(view.ptr), static_cast<std::size_t>(view.size)};
}

struct SharedOrder {
  Views views;
  Order order;

  SharedOrder(const Policy& policy, unsigned n_tiers, Views&& v)
      : views(std::move(v)),
        order(policy,
              {column<std::uint64_t>(views.valid), column<std::uint64_t>(views.evicting), column<std::uint64_t>(views.nbytes),
               column<std::int64_t>(views.last_use), column<std::int64_t>(views.next_use), column<std::uint8_t>(views.moves),
               column<std::uint8_t>(views.transient)},
              n_tiers) {
    if (n_tiers > 64) throw std::invalid_argument("more than 64 tiers");
  }
};

}  // namespace

PYBIND11_MODULE(_planning, m) {
  m.attr("BUILT_FOR_TORCH") = EBBTIDE_BUILT_FOR_TORCH;
  py::class_<Policy>(m, "Policy")
      .def_property_readonly("name", [](const Policy& p) { return std::string(p.name); })
      .def_readonly("sees_every", &Policy::sees_every)
      .def_readonly("ahead_of_pressure", &Policy::ahead_of_pressure)
      .def_property_readonly("goes_ahead", [](const Policy& p) { return p.high > 0; })
      .def_property_readonly("evicts_some_after_use", [](const Policy& p) { return p.evict_after_use != EvictAfterUse::Nothing; })
      .def(
          "evicts_after_use", [](const Policy& p, bool transient) { return evicts_after_use(p, transient); },
          py::arg("transient"))
      .def(
          "batch_bytes", [](const Policy& p, std::uint64_t budget) { return batch_bytes(p, budget); }, py::arg("budget"))
      .def(
          "ahead_bytes", [](const Policy& p, std::uint64_t budget, std::uint64_t free) { return ahead_bytes(p, budget, free); },
          py::arg("budget"), py::arg("free"));
  py::dict policies;
  for (const Policy& policy : kPolicies) policies[py::str(policy.name.data(), policy.name.size())] = policy;
  m.attr("POLICIES") = policies;

  py::class_<SharedOrder>(m, "Order")
      .def(py::init([](const Policy& policy, unsigned n_tiers, const py::buffer& valid, const py::buffer& evicting,
                       const py::buffer& nbytes, const py::buffer& last_use, const py::buffer& next_use, const py::buffer& moves,
                       const py::buffer& transient) {
             return std::make_unique<SharedOrder>(policy, n_tiers,
                                                  Views{valid.request(), evicting.request(), nbytes.request(), last_use.request(),
                                                        next_use.request(), moves.request(), transient.request()});
           }),
           py::arg("policy"), py::arg("n_tiers"), py::kw_only(), py::arg("valid"), py::arg("evicting"), py::arg("nbytes"),
           py::arg("last_use"), py::arg("next_use"), py::arg("moves"), py::arg("transient"))
      .def("changed",
           [](SharedOrder& self, BlockId piece) {
             if (piece >= self.views.valid.size) throw py::index_error("no such piece");
             self.order.changed(piece);
           })
      .def(
          "victims",
          [](SharedOrder& self, unsigned tier, std::uint64_t needed, std::int64_t now,
             const std::function<bool(BlockId)>& evictable) { return self.order.victims(tier, needed, now, evictable); },
          py::arg("tier"), py::arg("needed"), py::arg("now"), py::arg("evictable"));

  simulate::bind_engine(m);
  search::bind_search(m);
}

}  // namespace ebbtide
