// What ebbtide._torch, where the arena lives, and ebbtide._cuda, which knows PyTorch's CUDA, ask of each other. They are two
// modules, which share no symbols: each hands the other a capsule with a table of functions.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "births.hpp"

namespace ebbtide {

// The arena over a GPU's memory. All may be called by any thread.
struct ArenaFace {
  static constexpr const char* kCapsule = "ebbtide.arena_face";

  void* (*allocate)(std::size_t nbytes);            // throws c10::OutOfMemoryError
  void (*release)(void* address);                   // of allocate()
  bool (*contains)(const void* address);            // whether it is the arena's
  std::uint64_t (*size_of)(const void* address);    // bytes, as requested
  void* (*base_of)(const void* address, std::size_t* nbytes);  // of the storage that has it
  void (*used_on)(const void* address, CUstream stream);       // work of that stream may be under way there
  std::uint64_t (*give_back)(std::uint64_t nbytes);  // memory that nothing needs, to the driver; the bytes that went
  std::uint64_t (*live_bytes)();                     // as requested
  std::uint64_t (*held_bytes)();                     // of the GPU, with what is parked
};

// PyTorch's side, of the arena's GPU.
struct CudaFace {
  static constexpr const char* kCapsule = "ebbtide.cuda_face";

  CUstream (*stream)();              // that the calling thread's work goes to
  bool (*captures)();                // whether that is recorded into a graph and does not run
  std::uint64_t (*outside_bytes)();  // of the GPU that PyTorch's own allocator has. Takes its lock
  // From now on they are told of that GPU; null: nobody is. Kept until another call, and for calls under way.
  void (*tell)(int device, const Births* births);
};

}  // namespace ebbtide
