#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace lagging {

// Collectives of the device's tensors, by way of `host`'s.
c10::intrusive_ptr<c10d::Backend> through(c10::intrusive_ptr<c10d::Backend> host, int rank, int size);

}  // namespace lagging
