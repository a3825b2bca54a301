// Runs a schedule's steps on a virtual clock: simulator/engine.py, which has the rules, for a plan and no other policy. The
// Python engine is the oracle: every figure is the same to the last bit (tests/simulator/test_native_engine.py).
#pragma once

#include "shortage.hpp"

namespace ebbtide::simulate {

class Run : public Shortage {
 public:
  // Pieces and commands are looked at while this lives. Throws std::out_of_range where a command has no link.
  Run(const Pieces& pieces, const Commands& commands, const Machine& machine);

  void step();  // throws DoesNotFit

 private:
  void place();
  std::int64_t most_rounds() const;
  std::vector<unsigned> first_ranks(Piece piece, const Command* begin) const;
  unsigned birth_rank(Piece piece) const;
  std::span<const unsigned> begins(Piece piece) const;

  void wait(std::size_t tick);
  double use(std::size_t tick);  // how long its operation takes
  void compute(double work);
  void go_on();  // to the next event of a link
  void bear(Piece piece);
  void await_eviction(Piece piece);
  void issue(const Command& command);

  const Commands& commands_;
  const std::int64_t most_rounds_;  // of waiting for one tick
};

}  // namespace ebbtide::simulate
