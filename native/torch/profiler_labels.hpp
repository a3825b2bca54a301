// Labels for torch.profiler: its traces show who waited for memory, and why. They cost nothing where no profiler runs.
#pragma once

#include "../core/wait_label.hpp"

namespace ebbtide {

WaitLabels profiler_labels();

}  // namespace ebbtide
