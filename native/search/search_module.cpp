// The search's part of ebbtide._planning: columns are NumPy's, and the GIL is free while it computes.
#include <pybind11/stl.h>

#include <optional>

#include "../simulate/module.hpp"
#include "booking.hpp"
#include "choice.hpp"
#include "prices.hpp"
#include "stays.hpp"
#include "timing.hpp"
#include "windows.hpp"

namespace py = pybind11;

namespace ebbtide::search {

namespace {

using EventColumns = std::tuple<Ints, Ints, Ints>;
using WallRow = std::tuple<std::int64_t, std::vector<std::pair<double, double>>, double, double>;

Events events_of(const EventColumns& columns) {
  const auto& [first, second, nbytes] = columns;
  return {copied(first), copied(second), copied(nbytes)};
}

template <typename Compute>
auto without_gil(const Compute& compute) {
  py::gil_scoped_release release;
  return compute();
}

}  // namespace

void bind_search(py::module_& m) {
  m.def(
      "find_prices",
      [](const Ints& low, const Ints& high, const Floats& paged, const Floats& cost, const Ints& group, const Floats& write_cost,
         const Floats& deficit, const Floats& anew) {
        Covering covering{copied(low),   copied(high),       copied(paged),   copied(cost),
                          copied(group), copied(write_cost), copied(deficit), copied(anew)};
        Prices found = without_gil([&] { return find_prices(covering); });
        return py::make_tuple(shared(found.of_tick), found.bound);
      },
      py::kw_only(), py::arg("low"), py::arg("high"), py::arg("paged"), py::arg("cost"), py::arg("group"), py::arg("write_cost"),
      py::arg("deficit"), py::arg("anew") = Floats());

  m.def(
      "choose",
      [](const std::tuple<Ints, Ints, Floats>& must, const std::tuple<Ints, Ints, Floats>& wish, const Floats& paged,
         const Floats& cost, const Ints& group, const Floats& write_cost) -> std::optional<Flags> {
        const auto& [must_low, must_high, must_deficit] = must;
        const auto& [low, high, deficit] = wish;
        Demand needed{copied(must_low), copied(must_high), copied(must_deficit)};
        Covering covering{copied(low),   copied(high),       copied(paged),  copied(cost),
                          copied(group), copied(write_cost), copied(deficit)};
        std::optional<std::vector<std::uint8_t>> found = without_gil([&] { return choose(needed, covering); });
        if (!found) return std::nullopt;
        return Flags(shared(*found));
      },
      py::kw_only(), py::arg("must"), py::arg("wish"), py::arg("paged"), py::arg("cost"), py::arg("group"),
      py::arg("write_cost"));

  m.def(
      "carried",
      [](const Ints& first, const Ints& last, const Floats& leaves, const Floats& needed, const Floats& out_ns,
         const Floats& in_ns, double bin_ns, std::int64_t n_bins, const Ints& order, const Flags& others, double write_bins,
         double fetch_bins) {
        Copies copies{copied(first), copied(last), copied(leaves), copied(needed), copied(out_ns), copied(in_ns), bin_ns, n_bins};
        std::vector<std::int64_t> asking = copied(order);
        std::vector<std::uint8_t> going = copied(others);
        return shared(without_gil([&] { return carried(copies, asking, going, write_bins, fetch_bins); }));
      },
      py::kw_only(), py::arg("first"), py::arg("last"), py::arg("leaves"), py::arg("needed"), py::arg("out_ns"), py::arg("in_ns"),
      py::arg("bin_ns"), py::arg("n_bins"), py::arg("order"), py::arg("others"), py::arg("write_bins"), py::arg("fetch_bins"));

  m.def(
      "time_moves",
      [](const Ints& after, const Ints& until, const Ints& ready, const Ints& paged, const Ints& tier, const Flags& pays,
         const Flags& returns, const Floats& in_ns, const Floats& out_ns, const Ints& free, const Floats& reached, double step_ns,
         double lead_ns, bool lazy) {
        Chosen chosen{copied(after), copied(until),   copied(ready), copied(paged), copied(tier),
                      copied(pays),  copied(returns), copied(in_ns), copied(out_ns)};
        std::vector<std::int64_t> room = copied(free);
        Clock clock{static_cast<std::int64_t>(room.size()), step_ns, copied(reached)};
        Moves moves = without_gil([&] { return time_moves(chosen, room, clock, {lead_ns, lazy}); });
        return py::make_tuple(shared(moves.out), shared(moves.done), shared(moves.gone), shared(moves.back));
      },
      py::kw_only(), py::arg("after"), py::arg("until"), py::arg("ready"), py::arg("paged"), py::arg("tier"), py::arg("pays"),
      py::arg("returns"), py::arg("in_ns"), py::arg("out_ns"), py::arg("free"), py::arg("reached"), py::arg("step_ns"),
      py::arg("lead_ns"), py::arg("lazy"));

  m.def(
      "stays_of",
      [](const Ints& storage, const Ints& group, const Ints& until, const Ints& tier, const Flags& returns,
         const std::tuple<Ints, Ints, Ints, Ints>& moves, const Ints& birth, const Ints& death, const Flags& persistent,
         const Flags& dirty, std::int64_t n_ticks) {
        const auto& [out, done, gone, back] = moves;
        Moved moved{copied(storage), copied(group), copied(until), copied(tier), copied(returns)};
        Homes homes{copied(birth), copied(death), copied(persistent), copied(dirty), n_ticks};
        Moves timed{copied(out), copied(done), copied(gone), copied(back)};
        simulate::Stays found = without_gil([&] { return stays_of(moved, timed, homes); });
        return py::make_tuple(shared(found.storage), shared(found.tier), shared(found.start), shared(found.valid_from),
                              shared(found.stop));
      },
      py::kw_only(), py::arg("storage"), py::arg("group"), py::arg("until"), py::arg("tier"), py::arg("returns"),
      py::arg("moves"), py::arg("birth"), py::arg("death"), py::arg("persistent"), py::arg("dirty"), py::arg("n_ticks"));

  m.def(
      "longest_windows",
      [](const Ints& cuts, const Floats& begins_ns, const Ints& fresh, const Ints& held, const Ints& held_before,
         const EventColumns& uses, const EventColumns& rests, const EventColumns& used, const EventColumns& outlived,
         const std::vector<WallRow>& walls) {
        Step step{copied(cuts),    copied(begins_ns), copied(fresh),   copied(held),       copied(held_before),
                  events_of(uses), events_of(rests),  events_of(used), events_of(outlived)};
        std::vector<Wall> made;
        for (const auto& [nbytes, ns_per_byte, lost_in, lost_out] : walls)
          made.push_back({nbytes, ns_per_byte, lost_in, lost_out});
        return without_gil([&] { return longest_windows(step, made); });
      },
      py::kw_only(), py::arg("cuts"), py::arg("begins_ns"), py::arg("fresh"), py::arg("held"), py::arg("held_before"),
      py::arg("uses"), py::arg("rests"), py::arg("used"), py::arg("outlived"), py::arg("walls"));
}

}  // namespace ebbtide::search
