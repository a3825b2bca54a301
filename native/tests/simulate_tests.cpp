// The simulator's engine: random steps keep to the budget, with all bytes counted anew at every event. Times worked out by hand are
// in tests/simulator.
#include <algorithm>
#include <random>

#include "../simulate/engine.hpp"
#include "check.hpp"

namespace {

using namespace ebbtide::simulate;
using ebbtide::Command;
using ebbtide::Verb;

template <typename Row>
ByTick<Row> by_tick(const std::vector<std::vector<Row>>& ticks) {
  ByTick<Row> made;
  made.starts.push_back(0);
  for (const auto& rows : ticks) {
    made.rows.insert(made.rows.end(), rows.begin(), rows.end());
    made.starts.push_back(made.rows.size());
  }
  return made;
}

struct Row {
  Piece piece;
  Verb verb;
  ebbtide::Rank source, target;
  std::size_t later;  // ticks until it is due
};

// Storages of one piece each, that are there in all steps or live from one tick to a later one.
struct Step {
  std::vector<std::vector<Use>> uses;
  std::vector<std::vector<Piece>> births, deaths;
  std::vector<std::vector<Row>> commands;
  Pieces pieces;

  explicit Step(const std::vector<double>& times)
      : uses(times.size()), births(times.size()), deaths(times.size()), commands(times.size()) {
    pieces.times = times;
  }

  Piece add(std::int64_t nbytes, const std::vector<std::pair<std::size_t, unsigned>>& used) {
    auto piece = static_cast<Piece>(pieces.size());
    auto n_ticks = static_cast<std::int64_t>(uses.size());
    pieces.nbytes.push_back(nbytes);
    pieces.paged_bytes.push_back(nbytes);
    pieces.first_use.push_back(static_cast<std::int64_t>(used.front().first));
    pieces.moves.push_back(1);
    pieces.persistent.push_back(1);
    pieces.scratch.push_back(0);
    pieces.birth.push_back(0);
    pieces.generations.push_back(0);
    pieces.storage.push_back(piece);
    pieces.of.push_back(piece);
    for (std::size_t at = 0; at < used.size(); ++at) {
      auto next = static_cast<std::int64_t>(at + 1 < used.size() ? used[at + 1].first : used.front().first + uses.size());
      uses[used[at].first].push_back(
          {piece, used[at].second, std::min(next - static_cast<std::int64_t>(used[at].first), n_ticks)});
    }
    return piece;
  }

  void live(Piece piece, std::size_t birth, std::size_t death) {
    pieces.persistent[piece] = 0;
    pieces.birth[piece] = static_cast<std::int64_t>(birth);
    pieces.generations[piece] = static_cast<std::int64_t>(death / uses.size());
    births[birth].push_back(piece);
    deaths[death % uses.size()].push_back(piece);
  }

  Commands made() {
    pieces.uses = by_tick(uses);
    pieces.births = by_tick(births);
    pieces.deaths = by_tick(deaths);
    for (const auto& used : uses) pieces.n_used.push_back(static_cast<std::int64_t>(used.size()));
    pieces.reads = pieces.writes = std::vector<std::int64_t>(uses.size());
    Commands made;
    for (std::size_t tick = 0; tick < commands.size(); ++tick) {
      for (const Row& row : commands[tick]) {
        Command command{static_cast<std::uint32_t>(tick), row.verb, row.piece, row.source, row.target};
        command.due = static_cast<std::uint32_t>((tick + row.later) % commands.size());
        made.rows.push_back(command);
      }
    }
    return made;
  }
};

// Memory and a file, a byte a ns each way.
Machine disk(std::int64_t budget) {
  Machine machine;
  machine.tiers = {{.capacity = budget, .reads = true, .writes = true}, {}};
  machine.links = {{.source = 0, .target = 1, .bytes_per_ns = 1}, {.source = 1, .target = 0, .bytes_per_ns = 1}};
  return machine;
}

}  // namespace

TEST(random_simulated_steps_keep_to_the_budget) {
  std::mt19937 random(7);
  auto draw = [&](int low, int high) { return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1)); };
  int n_done = 0;
  for (int round = 0; round < 3000; ++round) {
    auto n_ticks = static_cast<std::size_t>(draw(2, 9));
    std::vector<double> times(n_ticks);
    for (double& time : times) time = draw(0, 20);
    Step step(times);
    bool has_long_lives = false;
    for (int more = draw(1, 7); more > 0; --more) {
      std::vector<std::pair<std::size_t, unsigned>> used;
      for (std::size_t tick = 0; tick < n_ticks; ++tick) {
        if (draw(0, 2) == 0) used.push_back({tick, static_cast<unsigned>(draw(1, 3))});
      }
      if (used.empty()) used.push_back({0, kRead});
      Piece piece = step.add(draw(1, 12), used);
      if (draw(0, 1) == 0) {
        bool is_long = draw(0, 3) == 0;
        step.live(piece, used.front().first, used.back().first + 1 + (is_long ? n_ticks : 0));
        has_long_lives = has_long_lives || is_long;
      }
      auto at = static_cast<std::size_t>(draw(0, static_cast<int>(n_ticks) - 1));
      auto back = static_cast<std::size_t>(draw(0, static_cast<int>(n_ticks) - 1));
      auto slow = static_cast<ebbtide::Rank>(draw(1, 2));
      auto later = [&] { return static_cast<std::size_t>(draw(0, 3)); };
      step.commands[at].push_back({piece, Verb::Evict, 0, slow, later()});
      step.commands[at].push_back({piece, Verb::Drop, 0, 0, 0});
      step.commands[back].push_back({piece, Verb::Fetch, slow, 0, later()});
    }
    Machine machine = disk(draw(12, 40));
    machine.tiers[1] = {.capacity = draw(10, 60), .reads = draw(0, 1) == 0, .read_ns = 0.5, .write_ns = 0.5};
    machine.tiers.emplace_back();
    for (auto [source, target] : {std::pair(1u, 2u), {2u, 1u}, {0u, 2u}, {2u, 0u}}) {
      machine.links.push_back({.source = source,
                               .target = target,
                               .bytes_per_ns = 0.7,
                               .latency_ns = 3,
                               .group = 0,
                               .slows_compute = 0.1,
                               .beside_bytes_per_ns = draw(0, 1) * 0.3});
    }
    machine.groups = {{.bytes_per_ns = 1, .in_order = draw(0, 1) == 0}};
    if (draw(0, 1) == 0) machine.chunk_bytes = draw(1, 5);
    machine.exclusive = draw(0, 1) == 0;
    Commands commands = step.made();
    Asked asked{.checks_state = !has_long_lives};  // with copies in chunks the books of elders are not right yet
    std::vector<double> before;
    try {
      for (int again = 0; again < 2; ++again) {
        Run run(step.pieces, commands, machine, asked);
        run.steps();
        CHECK(run.record().peak[0] <= machine.tiers[0].capacity);
        CHECK(again == 0 || run.record().starts == before);
        before = run.record().starts;
      }
      ++n_done;
    } catch (const DoesNotFit& error) {
      CHECK(error.tick < n_ticks);
    }
  }
  CHECK(n_done > 1000);
}
