// Runs steps on a virtual clock, as the runtime does: a plan's schedule, or an online policy. docs/simulator.md is the model.
//
// Left out: what elders are used for, places on the clock within a tick, and the runtime's own costs.
#pragma once

#include "lowering.hpp"
#include "online.hpp"

namespace ebbtide::simulate {

// What a simulation is asked for.
struct Asked {
  const Policy* policy = nullptr;  // nullptr: what the schedule says
  Score score = {};                // who leaves the first tier, in place of the policy's own rule
  int n_steps = 3;                 // the last is noted; under a policy, the mean of all after the second
  bool keeps_spans = false;        // of the last one, and its levels
  bool checks_state = false;       // at every event: slow
};

class Run : public Online {
 public:
  // Pieces and commands are looked at while this lives. Throws std::out_of_range where a command has no link, and
  // std::invalid_argument for commands of another step.
  Run(const Pieces& pieces, const Commands& commands, const Machine& machine, const Asked& asked);

  void steps();  // throws DoesNotFit

 private:
  void sort_out();
  void place();
  std::int64_t most_rounds() const;
  std::vector<unsigned> first_ranks(Piece piece, const Command* begin);
  unsigned birth_rank(Piece piece);
  std::span<const Command> commands(std::size_t tick) const;

  void step(bool is_last);
  void wait(std::size_t tick);
  double use(std::size_t tick);  // how long its operation takes
  void compute(std::size_t tick, double work);
  void go_on();  // to the next event of a link
  void bear(Piece piece);
  void await_eviction(Piece piece);
  void issue(const Command& command);

  const Commands& commands_;
  const Asked asked_;
  std::vector<std::size_t> first_of_;             // by tick and one more, a place in the commands
  std::vector<std::vector<unsigned>> begins_;     // by piece, the ranks where it begins, if that is not the first alone
  const std::int64_t most_rounds_;  // of waiting for one tick
};

}  // namespace ebbtide::simulate
