// How PyTorch's own CUDA allocator tells what it gives. Needs no header of CUDA's.
#pragma once

#include <cstddef>

namespace ebbtide {

// Whom PyTorch's own allocator tells what it gives, and what it has back. It calls both under its lock, in which nothing may
// be waited for that waits for it, Python's lock among it.
struct Births {
  void (*born)(void* address, std::size_t nbytes);  // bytes, as requested
  void (*ended)(void* address);                     // and all work that was under way there
};

}  // namespace ebbtide
