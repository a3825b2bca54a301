// The engine's part of ebbtide._planning: what Python has as lists comes as lists, and the GIL is free while steps run.
#include <pybind11/stl.h>

#include <algorithm>
#include <numeric>
#include <variant>

#include "engine.hpp"
#include "module.hpp"
#include "schedule_columns.hpp"

namespace py = pybind11;

namespace ebbtide::simulate {

namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

// Where the rows of each place begin, once they are sorted by place; and where the last ones end.
std::vector<std::size_t> starts_of(const Ints& places, std::size_t n_places, const char* unless_there) {
  std::vector<std::size_t> starts(n_places + 1, 0);
  for (std::int64_t place : copied(places)) {
    require(place >= 0 && static_cast<std::size_t>(place) < n_places, unless_there);
    ++starts[static_cast<std::size_t>(place) + 1];
  }
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  return starts;
}

// Rows that have a tick each, in their order at each tick.
template <typename Row, typename Make>
ByTick<Row> by_tick(const Ints& ticks, std::size_t n_ticks, const Make& make) {
  auto count = static_cast<std::size_t>(ticks.size());
  ByTick<Row> made{starts_of(ticks, n_ticks, "a tick that is not there"), {}};
  std::vector<std::size_t> next(made.starts.begin(), made.starts.end() - 1);
  made.rows.resize(count);
  for (std::size_t at = 0; at < count; ++at) made.rows[next[static_cast<std::size_t>(ticks.data()[at])]++] = make(at);
  return made;
}

using PieceColumns = std::tuple<Ints, Ints>;            // tick, piece
using UseColumns = std::tuple<Ints, Ints, Ints, Ints>;  // tick, piece, mode, until

Pieces make_pieces(Pieces pieces, const UseColumns& uses, const PieceColumns& births, const PieceColumns& deaths) {
  std::size_t count = pieces.nbytes.size(), n_ticks = pieces.times.size();
  for (std::size_t size :
       {pieces.paged_bytes.size(), pieces.packed_bytes.size(), pieces.first_use.size(), pieces.moves.size(),
        pieces.persistent.size(), pieces.scratch.size(), pieces.birth.size(), pieces.generations.size(), pieces.storage.size()}) {
    require(size == count, "the columns by piece differ in length");
  }
  for (std::size_t size : {pieces.n_used.size(), pieces.reads.size(), pieces.writes.size()}) {
    require(size == n_ticks, "the columns by tick differ in length");
  }
  require(std::ranges::all_of(pieces.of, [&](Piece piece) { return piece < count; }), "no such piece");
  auto piece_of = [&](std::int64_t piece) {
    require(piece >= 0 && static_cast<std::size_t>(piece) < count, "no such piece");
    return static_cast<Piece>(piece);
  };
  const auto& [use_tick, use_piece, mode, until] = uses;
  bool is_table = use_piece.size() == use_tick.size() && mode.size() == use_tick.size() && until.size() == use_tick.size();
  require(is_table, "the columns of uses differ in length");
  auto use_of = [&, piece = use_piece.data(), modes = mode.data(), next = until.data()](std::size_t at) {
    require(modes[at] >= 0 && modes[at] <= static_cast<std::int64_t>(kRead | kWrite), "no such mode of access");
    return Use{piece_of(piece[at]), static_cast<unsigned>(modes[at]), next[at]};
  };
  pieces.uses = by_tick<Use>(use_tick, n_ticks, use_of);
  auto pieces_of = [&](const PieceColumns& rows) {
    const Ints &tick = std::get<0>(rows), &piece = std::get<1>(rows);
    require(piece.size() == tick.size(), "the columns of births, or of deaths, differ in length");
    return by_tick<Piece>(tick, n_ticks, [&](std::size_t at) { return piece_of(piece.data()[at]); });
  };
  pieces.births = pieces_of(births);
  pieces.deaths = pieces_of(deaths);
  return pieces;
}

std::variant<Record, std::size_t> run(const Pieces& pieces, const Commands& commands, const Machine& machine,
                                      const Asked& asked) {
  try {
    Run run(pieces, commands, machine, asked);
    run.steps();
    return run.record();
  } catch (const DoesNotFit& error) {
    return error.tick;
  } catch (const std::out_of_range& error) {
    throw py::key_error(error.what());
  }
}

using StayColumns = std::tuple<Ints, Ints, Ints, Ints, Ints>;

Stays stays_of(const StayColumns& columns) {
  const auto& [storage, tier, start, valid_from, stop] = columns;
  return {copied(storage), copied(tier), copied(start), copied(valid_from), copied(stop)};
}

// Uses lie in the order of their storages.
Storages make_storages(std::int64_t n_ticks, const Ints& birth, const Ints& death, const Flags& persistent,
                       const Ints& use_storage, const Ints& use_tick) {
  require(use_storage.size() == use_tick.size(), "the columns of uses differ in length");
  auto use_starts = starts_of(use_storage, static_cast<std::size_t>(birth.size()), "no such storage");
  return {n_ticks, copied(birth), copied(death), copied(persistent), use_starts, copied(use_tick)};
}

// `links` are pairs of a source and a target.
Ways ways_of(std::size_t n_tiers, const std::vector<std::pair<unsigned, unsigned>>& links) {
  require(n_tiers > 0 && n_tiers <= 64, "a machine has 1 to 64 tiers");
  Ways made(n_tiers);
  for (unsigned rank = 0; rank < n_tiers; ++rank) {
    for (auto [source, target] : links) {
      require(source < n_tiers && target < n_tiers, "a link names a tier that is not there");
      if (source == rank) made[target].push_back(static_cast<Rank>(rank));
    }
  }
  return made;
}

Ways ways_of(const Machine& machine) {
  std::vector<std::pair<unsigned, unsigned>> links;
  for (const Link& link : machine.links) links.emplace_back(link.source, link.target);
  return ways_of(machine.tiers.size(), links);
}

Machine make_machine(const std::vector<Tier>& tiers, const std::vector<Link>& links, const std::vector<LinkGroup>& groups,
                     std::optional<std::int64_t> chunk_bytes, bool exclusive, double overlap, double fast_read_ns,
                     double fast_write_ns) {
  require(!tiers.empty() && tiers.size() <= 64, "a machine has 1 to 64 tiers");
  for (const Link& link : links) {
    require(link.source < tiers.size() && link.target < tiers.size(), "a link names a tier that is not there");
    require(link.group < static_cast<int>(groups.size()), "a link names a group that is not there");
  }
  return {tiers, links, groups, chunk_bytes.value_or(kUnlimited), exclusive, overlap, fast_read_ns, fast_write_ns};
}

// Asks Python. Copies share the function, so that no count of Python's changes while a simulation has no GIL.
Score score_of(const py::object& ask) {
  return [shared_ask = std::make_shared<py::object>(ask)](const std::vector<Candidate>& candidates) {
    py::gil_scoped_acquire acquire;
    py::dict columns = columns_of(candidates, {"piece", "nbytes", "age", "is_clean"}, &Candidate::id, &Candidate::bytes,
                                  &Candidate::age, &Candidate::clean);
    return (*shared_ask)(columns).cast<std::vector<double>>();
  };
}

}  // namespace

void bind_engine(py::module_& m) {
  py::class_<Pieces>(m, "Pieces")
      .def(py::init([](const Ints& nbytes, const Ints& paged_bytes, const Ints& packed_bytes, const Ints& first_use,
                       const Flags& moves, const Flags& persistent, const Flags& scratch, const Ints& birth,
                       const Ints& generations, const Ints& storage, const Column<Piece>& of, const UseColumns& uses,
                       const PieceColumns& births, const PieceColumns& deaths, const Ints& n_used, const Ints& reads,
                       const Ints& writes, const Floats& times) {
             Pieces pieces{.nbytes = copied(nbytes),
                           .paged_bytes = copied(paged_bytes),
                           .packed_bytes = copied(packed_bytes),
                           .first_use = copied(first_use),
                           .moves = copied(moves),
                           .persistent = copied(persistent),
                           .scratch = copied(scratch),
                           .birth = copied(birth),
                           .generations = copied(generations),
                           .storage = copied(storage),
                           .of = copied(of),
                           .uses = {},
                           .births = {},
                           .deaths = {},
                           .n_used = copied(n_used),
                           .reads = copied(reads),
                           .writes = copied(writes),
                           .times = copied(times)};
             return make_pieces(std::move(pieces), uses, births, deaths);
           }),
           py::kw_only(), py::arg("nbytes"), py::arg("paged_bytes"), py::arg("packed_bytes"), py::arg("first_use"),
           py::arg("moves"), py::arg("persistent"), py::arg("scratch"), py::arg("birth"), py::arg("generations"),
           py::arg("storage"), py::arg("of"), py::arg("uses"), py::arg("births"), py::arg("deaths"), py::arg("n_used"),
           py::arg("reads"), py::arg("writes"), py::arg("times"))
      .def_property_readonly("storage", [](const Pieces& pieces) { return py::array(py::cast(pieces.storage)); });

  py::class_<Tier>(m, "Tier").def(
      py::init(
          [](std::optional<std::int64_t> capacity_bytes, bool reads, bool writes, double read_ns, double write_ns, bool packs) {
            return Tier{
                capacity_bytes ? std::min(*capacity_bytes, kUnlimited - 1) : kUnlimited, reads, writes, read_ns, write_ns, packs};
          }),
      py::kw_only(), py::arg("capacity_bytes"), py::arg("reads"), py::arg("writes"), py::arg("read_ns"), py::arg("write_ns"),
      py::arg("packs"));
  py::class_<Link>(m, "Link").def(
      py::init([](unsigned source, unsigned target, double bytes_per_ns, double latency_ns, std::optional<int> group,
                  double slows_compute, double beside_bytes_per_ns) {
        return Link{source, target, bytes_per_ns, latency_ns, group.value_or(-1), slows_compute, beside_bytes_per_ns};
      }),
      py::kw_only(), py::arg("source"), py::arg("target"), py::arg("bytes_per_ns"), py::arg("latency_ns"), py::arg("group"),
      py::arg("slows_compute"), py::arg("beside_bytes_per_ns"));
  py::class_<LinkGroup>(m, "LinkGroup")
      .def(py::init([](double bytes_per_ns, bool in_order) { return LinkGroup{bytes_per_ns, in_order}; }), py::kw_only(),
           py::arg("bytes_per_ns"), py::arg("in_order"));
  py::class_<Machine>(m, "Machine")
      .def(py::init(&make_machine), py::kw_only(), py::arg("tiers"), py::arg("links"), py::arg("groups"), py::arg("chunk_bytes"),
           py::arg("exclusive"), py::arg("overlap"), py::arg("fast_read_ns"), py::arg("fast_write_ns"));

  py::class_<Asked>(m, "Asked")
      .def(py::init([](const Policy* policy, const py::object& score, int n_steps, bool keeps_spans, bool checks_state) {
             return Asked{policy, score.is_none() ? Score{} : score_of(score), n_steps, keeps_spans, checks_state};
           }),
           py::kw_only(), py::arg("policy"), py::arg("score") = py::none(), py::arg("n_steps"), py::arg("keeps_spans"),
           py::arg("checks_state"), py::keep_alive<1, 2>());

  py::class_<Record>(m, "Record")
      .def_property_readonly("starts", [](const Record& record) { return shared(record.starts); })
      .def_property_readonly("stalls", [](const Record& record) { return shared(record.stalls); })
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
      .def_readonly("peak", &Record::peak)
      .def("spans",
           [](const Record& record) {
             return columns_of(record.spans, {"lane", "kind", "start_ns", "stop_ns", "tick", "storage", "nbytes"}, &Span::lane,
                               &Span::kind, &Span::start, &Span::stop, &Span::tick, &Span::storage, &Span::nbytes);
           })
      .def("levels",
           [](const Record& record) {
             return columns_of(record.levels, {"rank", "time_ns", "nbytes"}, &Level::rank, &Level::time, &Level::nbytes);
           })
      .def("queued", [](const Record& record) {
        return columns_of(record.queued, {"tick", "storage", "source", "target"}, &Queued::tick, &Queued::storage,
                          &Queued::source, &Queued::target);
      });

  py::class_<Storages>(m, "Storages")
      .def(py::init(&make_storages), py::kw_only(), py::arg("n_ticks"), py::arg("birth"), py::arg("death"), py::arg("persistent"),
           py::arg("use_storage"), py::arg("use_tick"));

  m.def(
      "lower",
      [](const Storages& storages, std::size_t n_tiers, const std::vector<std::pair<unsigned, unsigned>>& links,
         const StayColumns& stays) { return as_schedule(lower(stays_of(stays), storages, ways_of(n_tiers, links))); },
      py::arg("storages"), py::kw_only(), py::arg("n_tiers"), py::arg("links"), py::arg("stays"));

  m.def(
      "simulate_stays",
      [](const Pieces& pieces, const Machine& machine, const Storages& storages, const StayColumns& columns, const Asked& asked) {
        Stays stays = stays_of(columns);
        py::gil_scoped_release release;
        return run(pieces, lower(stays, storages, ways_of(machine)), machine, asked);
      },
      py::arg("pieces"), py::arg("machine"), py::arg("storages"), py::arg("stays"), py::arg("asked"));

  m.def(
      "simulate",
      [](const Pieces& pieces, const Machine& machine, const py::object& schedule, const Asked& asked) {
        Commands commands = commands_of(schedule);
        py::gil_scoped_release release;
        return run(pieces, commands, machine, asked);
      },
      py::arg("pieces"), py::arg("machine"), py::arg("schedule"), py::arg("asked"));
}

}  // namespace ebbtide::simulate
