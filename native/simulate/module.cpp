// ebbtide._planning: see _planning.pyi for what each function promises. No torch: only its copy of pybind11, to compile.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "../core/decider.hpp"
#include "module.hpp"

namespace py = pybind11;

namespace ebbtide {

PYBIND11_MODULE(_planning, m) {
  m.attr("BUILT_FOR_TORCH") = EBBTIDE_BUILT_FOR_TORCH;
  py::class_<Policy>(m, "Policy").def_property_readonly("name", [](const Policy& p) { return std::string(p.name); });
  py::dict policies;
  for (const Policy& policy : kPolicies) policies[py::str(policy.name.data(), policy.name.size())] = policy;
  m.attr("POLICIES") = policies;

  simulate::bind_engine(m);
  search::bind_search(m);
}

}  // namespace ebbtide
