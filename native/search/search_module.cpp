// The search's part of ebbtide._decider: columns are NumPy's, and the GIL is free while it computes.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "../simulate/module.hpp"
#include "prices.hpp"
#include "windows.hpp"

namespace py = pybind11;

namespace ebbtide::search {

namespace {

template <typename T>
using Column = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <typename T>
std::vector<T> copied(const Column<T>& column) {
  return {column.data(), column.data() + column.size()};
}

using EventColumns = std::tuple<Column<std::int64_t>, Column<std::int64_t>, Column<std::int64_t>>;
using WallRow = std::tuple<std::int64_t, std::vector<std::pair<double, double>>, double, double>;

Events events_of(const EventColumns& columns) {
  const auto& [first, second, nbytes] = columns;
  return {copied(first), copied(second), copied(nbytes)};
}

}  // namespace

void bind_search(py::module_& m) {
  m.def(
      "find_prices",
      [](const Column<std::int64_t>& low, const Column<std::int64_t>& high, const Column<double>& paged,
         const Column<double>& cost, const Column<std::int64_t>& group, const Column<double>& write_cost,
         const Column<double>& deficit, int rounds) {
        Covering covering{copied(low),   copied(high),       copied(paged),  copied(cost),
                          copied(group), copied(write_cost), copied(deficit)};
        Prices found;
        {
          py::gil_scoped_release release;
          found = find_prices(covering, rounds);
        }
        return py::make_tuple(py::array_t<double>(static_cast<py::ssize_t>(found.of_tick.size()), found.of_tick.data()),
                              found.bound);
      },
      py::kw_only(), py::arg("low"), py::arg("high"), py::arg("paged"), py::arg("cost"), py::arg("group"), py::arg("write_cost"),
      py::arg("deficit"), py::arg("rounds"));

  m.def(
      "longest_windows",
      [](const Column<std::int64_t>& cuts, const Column<double>& begins_ns, const Column<double>& fresh, const EventColumns& uses,
         const EventColumns& rests, const std::vector<WallRow>& walls) {
        Step step{copied(cuts), copied(begins_ns), copied(fresh), events_of(uses), events_of(rests)};
        std::vector<Wall> made;
        for (const auto& [nbytes, ns_per_byte, lost_in, lost_out] : walls)
          made.push_back({nbytes, ns_per_byte, lost_in, lost_out});
        py::gil_scoped_release release;
        return longest_windows(step, made);
      },
      py::kw_only(), py::arg("cuts"), py::arg("begins_ns"), py::arg("fresh"), py::arg("uses"), py::arg("rests"),
      py::arg("walls"));
}

}  // namespace ebbtide::search
