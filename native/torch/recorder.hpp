// Sees every operator of every thread before it runs, so that its operands are there when it does.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/operator_name.h>
#include <c10/core/DispatchKey.h>

#include <vector>

#include "../core/recording.hpp"

namespace ebbtide {

// Calls the_watch() for every operator from now on. An operator that runs when the recorder is removed still ends there.
// `shows_results`: it finds what an operator returned, before the operator ends.
void install_recorder(bool shows_results = false);
void remove_recorder();
// Those whose kernels work through lists of tensors, of this backend.
void install_list_operators(c10::DispatchKey backend = c10::DispatchKey::CPU);
bool is_served_by_groups(const c10::OperatorName& name);  // each group is then an operator of its own

// Forgets the calling thread's nodes of earlier steps: nothing is known of the modules of new ones.
void forget_nodes();

// Say whether an optimizer steps on this thread, and the phase that follows from this and from autograd.
void enter_optimizer(bool enters);
Phase phase_now();
Pass pass_now();  // it also depends on whether gradients are on

// Counts what the calling thread runs as an optimizer's, as long as this lives.
class InOptimizer {
 public:
  InOptimizer();
  ~InOptimizer();
  InOptimizer(const InOptimizer&) = delete;
  InOptimizer& operator=(const InOptimizer&) = delete;

 private:
  bool before_;
  int task_before_;
};

}  // namespace ebbtide
