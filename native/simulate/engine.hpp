// Runs a schedule's steps on a virtual clock: simulator/engine.py, which has the rules, for a plan and no other policy. The
// Python engine is the oracle: every figure is the same to the last bit (tests/simulator/test_native_engine.py).
#pragma once

#include "lowering.hpp"
#include "shortage.hpp"

namespace ebbtide::simulate {

class Run : public Shortage {
 public:
  // Pieces and commands are looked at while this lives. Throws std::out_of_range where a command has no link, and
  // std::invalid_argument for commands of another step.
  Run(const Pieces& pieces, const Commands& commands, const Machine& machine);

  void step();  // throws DoesNotFit

 private:
  void sort_out();
  void place();
  std::int64_t most_rounds() const;
  std::vector<unsigned> first_ranks(Piece piece, const Command* begin) const;
  unsigned birth_rank(Piece piece) const;
  std::span<const Command> commands(std::size_t tick) const;

  void wait(std::size_t tick);
  double use(std::size_t tick);  // how long its operation takes
  void compute(double work);
  void go_on();  // to the next event of a link
  void bear(Piece piece);
  void await_eviction(Piece piece);
  void issue(const Command& command);

  const Commands& commands_;
  std::vector<std::size_t> first_of_;             // by tick and one more, a place in the commands
  std::vector<std::vector<unsigned>> begins_;     // by piece, the ranks where it begins, if that is not the first alone
  const std::int64_t most_rounds_;  // of waiting for one tick
};

}  // namespace ebbtide::simulate
