// Which line of the user's program makes a storage: asked of Python's frames, where lines are noted at all.
//
// [Note: lines]  A frame's file has a rank: the user's own (0), what was written by no file, such as a notebook's cell
// (1), an installed package's or the standard library's (2), and PyTorch's or ours (3). The innermost frame of the lowest
// rank is the line; of rank 3 none is. In the backward pass, frames around the engine say no more than that there was a
// backward(): what a node makes there belongs to the line of the forward operator that made the node, as modules do
// (recorder.cpp). Frames within the engine (a Function's backward, checkpointing) go before that.
//
// Python's lock is taken here, so callers MUST hold no lock of ours.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../core/tape.hpp"

namespace ebbtide {

inline constexpr int kUsersOwn = 0, kNoFile = 1, kInstalled = 2, kPyTorchOrOurs = 3;

// A file whose name begins with `text`, or has it in it, is of this rank, and named `shown` and what follows `text`.
struct LineRule {
  std::string text;
  bool anywhere;
  int rank;
  std::string shown;
};

// From now on. The first rule that fits a file counts; the files of no rule are the user's own. None: no lines.
void note_lines(std::vector<LineRule> rules);
bool notes_lines();

// Of the calling thread, as "train.py:12 Net.forward"; "" if only PyTorch runs. `of_node` stands for what lies around the
// engine of autograd, unless it is "".
std::string line_here(const std::string& of_node);

// The line that a node with this number is made at, until forget_lines.
void note_line_of_node(std::int64_t sequence_nr, Tape& tape);
void forget_lines();

// What is born on the step's thread as long as this lives is born at the current line.
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
