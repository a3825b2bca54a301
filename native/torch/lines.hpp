// Finds the line of the user's program that makes a storage, from Python's frames, where lines are noted at all.
//
// [Note: lines]  A frame's file has a rank. The user's own has 0. A frame without a file, such as a notebook's cell, has 1. An
// installed package's has 2; PyTorch's, the standard library's and ours have 3. The line is the innermost frame of the lowest
// rank; none is of rank 3. If an installed package's frame lies further in, the innermost of these goes before: "nets.py:7
// Block.forward from train.py:12". In the backward pass, frames around the engine say only that there was a backward(). So what
// a node makes there belongs to the line of the forward operator that made the node, as with modules (recorder.cpp). Frames
// within the engine (a Function's backward, checkpointing) go before that.
//
// It takes Python's lock, so callers MUST hold no lock of ours.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../core/tape.hpp"

namespace ebbtide {

inline constexpr int kUsersOwn = 0, kNoFile = 1, kInstalled = 2, kPassedOver = 3;

// A rule for files whose name begins with `text` (`anywhere`: has it in it). They have this rank, and `shown` replaces the name
// up to the end of `text`.
struct LineRule {
  std::string text;
  bool anywhere;
  int rank;
  std::string shown;
};

// Sets the rules from now on. The first that fits a file counts, and files of no rule are the user's own. No rules: no lines.
void note_lines(std::vector<LineRule> rules);
bool notes_lines();

// Returns the calling thread's line, as "train.py:12 Net.forward"; "" if only PyTorch runs. `of_node` stands for frames around
// autograd's engine, unless it is "".
std::string line_here(const std::string& of_node);

void forget_lines();

// Gives the current line to storages that are born on the step's thread as long as this lives.
class BirthLine {
 public:
  explicit BirthLine(Tape& tape);
  ~BirthLine();
  BirthLine(const BirthLine&) = delete;
  BirthLine& operator=(const BirthLine&) = delete;

 private:
  Tape* tape_ = nullptr;
};

}  // namespace ebbtide
