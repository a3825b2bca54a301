// The engine's part of ebbtide._decider: what Python has as lists comes as lists, and the GIL is free while steps run.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <variant>

#include "engine.hpp"
#include "module.hpp"
#include "lowering.hpp"

namespace py = pybind11;

namespace ebbtide::simulate {

namespace {

template <typename T>
using Rows = std::vector<std::vector<T>>;

template <typename Row, typename T, typename Make>
ByTick<Row> by_tick(const Rows<T>& ticks, const Make& make) {
  ByTick<Row> made;
  made.starts.push_back(0);
  for (const auto& rows : ticks) {
    for (const T& row : rows) made.rows.push_back(make(row));
    made.starts.push_back(made.rows.size());
  }
  return made;
}

// Lists by storage and by tick as simulator/pieces.py has them.
struct PiecesLists {
  Rows<std::tuple<Piece, unsigned, std::int64_t>> uses;
  Rows<Piece> births, deaths;
};

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

Pieces make_pieces(Pieces pieces, const PiecesLists& lists) {
  std::size_t count = pieces.nbytes.size(), n_ticks = pieces.times.size();
  auto check = [&](Piece piece) {
    require(piece < count, "no such piece");
    return piece;
  };
  for (std::size_t size : {pieces.paged_bytes.size(), pieces.packed_bytes.size(), pieces.first_use.size(), pieces.moves.size(),
                           pieces.persistent.size(), pieces.scratch.size(), pieces.birth.size(), pieces.generations.size()}) {
    require(size == count, "the columns by piece differ in length");
  }
  for (std::size_t size : {lists.uses.size(), lists.births.size(), lists.deaths.size(), pieces.n_used.size(), pieces.reads.size(),
                           pieces.writes.size()}) {
    require(size == n_ticks, "the columns by tick differ in length");
  }
  pieces.uses = by_tick<Use>(lists.uses, [&](const auto& row) {
    auto [piece, mode, until] = row;
    require(mode <= (kRead | kWrite), "no such mode of access");
    return Use{check(piece), mode, until};
  });
  pieces.births = by_tick<Piece>(lists.births, check);
  pieces.deaths = by_tick<Piece>(lists.deaths, check);
  return pieces;
}

using CommandRow = std::tuple<Piece, int, int, int, std::int64_t>;

Commands make_commands(const Pieces& pieces, const Machine& machine, const Rows<CommandRow>& commands,
                       const Rows<unsigned>& begins) {
  auto rank = [&](int number) {
    require(number >= 0 && static_cast<std::size_t>(number) < machine.tiers.size(), "no such tier");
    return static_cast<unsigned>(number);
  };
  require(commands.size() == pieces.n_ticks() && begins.size() == pieces.size(), "the schedule is of another step");
  Commands made;
  made.begins = by_tick<unsigned>(begins, rank);
  made.at = by_tick<Command>(commands, [&](const CommandRow& row) {
    auto [piece, verb, source, target, due] = row;
    require(piece < pieces.size(), "no such piece");
    require(verb >= 0 && verb <= 2, "no such verb");
    return Command{piece, static_cast<Verb>(verb), rank(source), rank(target), due};
  });
  return made;
}

std::variant<Record, std::size_t> run(const Pieces& pieces, const Commands& commands, const Machine& machine, int n_steps) {
  try {
    Run run(pieces, commands, machine);
    for (int step = 0; step < n_steps; ++step) run.step();
    return run.record();
  } catch (const DoesNotFit& error) {
    return error.tick;
  } catch (const std::out_of_range& error) {
    throw py::key_error(error.what());
  }
}

template <typename T>
using Column = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <typename T>
std::vector<T> copied(const Column<T>& column) {
  return {column.data(), column.data() + column.size()};
}

using Ints = Column<std::int64_t>;
using StayColumns = std::tuple<Ints, Ints, Ints, Ints, Ints>;

}  // namespace

void bind_engine(py::module_& m) {
  py::class_<Pieces>(m, "Pieces")
      .def(py::init([](std::vector<std::int64_t> nbytes, std::vector<std::int64_t> paged_bytes,
                       std::vector<std::int64_t> packed_bytes, std::vector<std::int64_t> first_use,
                       std::vector<std::uint8_t> moves, std::vector<std::uint8_t> persistent, std::vector<std::uint8_t> scratch,
                       std::vector<std::int64_t> birth, std::vector<std::int64_t> generations, decltype(PiecesLists::uses) uses,
                       Rows<Piece> births, Rows<Piece> deaths, std::vector<std::int64_t> n_used, std::vector<std::int64_t> reads,
                       std::vector<std::int64_t> writes, std::vector<double> times) {
             Pieces pieces{.nbytes = std::move(nbytes),
                           .paged_bytes = std::move(paged_bytes),
                           .packed_bytes = std::move(packed_bytes),
                           .first_use = std::move(first_use),
                           .moves = std::move(moves),
                           .persistent = std::move(persistent),
                           .scratch = std::move(scratch),
                           .birth = std::move(birth),
                           .generations = std::move(generations),
                           .uses = {},
                           .births = {},
                           .deaths = {},
                           .n_used = std::move(n_used),
                           .reads = std::move(reads),
                           .writes = std::move(writes),
                           .times = std::move(times)};
             return make_pieces(std::move(pieces), {std::move(uses), std::move(births), std::move(deaths)});
           }),
           py::kw_only(), py::arg("nbytes"), py::arg("paged_bytes"), py::arg("packed_bytes"), py::arg("first_use"),
           py::arg("moves"), py::arg("persistent"), py::arg("scratch"), py::arg("birth"), py::arg("generations"), py::arg("uses"),
           py::arg("births"), py::arg("deaths"), py::arg("n_used"), py::arg("reads"), py::arg("writes"), py::arg("times"));

  py::class_<Machine>(m, "Machine")
      .def(py::init([](const std::vector<std::tuple<std::optional<std::int64_t>, bool, bool, double, double, bool>>& tiers,
                       const std::vector<std::tuple<unsigned, unsigned, double, double, int, double>>& links,
                       const std::vector<std::tuple<double, bool>>& groups, std::optional<std::int64_t> chunk_bytes,
                       bool exclusive, double overlap, double fast_read_ns, double fast_write_ns) {
             Machine machine;
             require(!tiers.empty() && tiers.size() <= 64, "a machine has 1 to 64 tiers");
             for (auto [capacity, reads, writes, read_ns, write_ns, packs] : tiers) {
               machine.tiers.push_back(
                   {capacity ? std::min(*capacity, kUnlimited - 1) : kUnlimited, reads, writes, read_ns, write_ns, packs});
             }
             for (auto [source, target, rate, latency_ns, group, slows] : links) {
               require(source < tiers.size() && target < tiers.size(), "a link names a tier that is not there");
               require(group < static_cast<int>(groups.size()), "a link names a group that is not there");
               machine.links.push_back({source, target, rate, latency_ns, group, slows});
             }
             for (auto [rate, in_order] : groups) machine.groups.push_back({rate, in_order});
             machine.chunk_bytes = chunk_bytes.value_or(kUnlimited);
             machine.exclusive = exclusive;
             machine.overlap = overlap;
             machine.fast_read_ns = fast_read_ns;
             machine.fast_write_ns = fast_write_ns;
             return machine;
           }),
           py::kw_only(), py::arg("tiers"), py::arg("links"), py::arg("groups"), py::arg("chunk_bytes"), py::arg("exclusive"),
           py::arg("overlap"), py::arg("fast_read_ns"), py::arg("fast_write_ns"));

  py::class_<Record>(m, "Record")
      .def_readonly("starts", &Record::starts)
      .def_readonly("stalls", &Record::stalls)
      .def_readonly("by_cause", &Record::by_cause)
      .def_readonly("moved_bytes", &Record::moved_bytes)
      .def_readonly("rescues", &Record::rescues)
      .def_readonly("demand_fetches", &Record::demand_fetches)
      .def_readonly("demand_bytes", &Record::demand_bytes)
      .def_readonly("n_uses", &Record::n_uses)
      .def_readonly("hits", &Record::hits)
      .def_readonly("slower_ns", &Record::slower_ns)
      .def_readonly("slow_reads", &Record::slow_reads)
      .def_readonly("slow_writes", &Record::slow_writes)
      .def_readonly("area", &Record::area)
      .def_readonly("peak", &Record::peak);

  py::class_<Storages>(m, "Storages")
      .def(py::init([](const Ints& birth, const Ints& death, const Column<std::uint8_t>& persistent, const Column<Piece>& piece) {
             return Storages{copied(birth), copied(death), copied(persistent), copied(piece)};
           }),
           py::kw_only(), py::arg("birth"), py::arg("death"), py::arg("persistent"), py::arg("piece"));

  m.def(
      "simulate_stays",
      [](const Pieces& pieces, const Machine& machine, const Storages& storages, const StayColumns& columns, int n_steps) {
        const auto& [storage, tier, start, valid_from, stop] = columns;
        Stays stays{copied(storage), copied(tier), copied(start), copied(valid_from), copied(stop)};
        py::gil_scoped_release release;
        return run(pieces, lower(stays, storages, pieces, machine), machine, n_steps);
      },
      py::arg("pieces"), py::arg("machine"), py::arg("storages"), py::arg("stays"), py::arg("n_steps"));

  m.def(
      "simulate",
      [](const Pieces& pieces, const Machine& machine, const Rows<CommandRow>& commands, const Rows<unsigned>& begins,
         int n_steps) {
        Commands made = make_commands(pieces, machine, commands, begins);
        py::gil_scoped_release release;
        return run(pieces, made, machine, n_steps);
      },
      py::arg("pieces"), py::arg("machine"), py::arg("commands"), py::arg("begins"), py::arg("n_steps"));
}

}  // namespace ebbtide::simulate
