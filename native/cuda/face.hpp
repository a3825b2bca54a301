// What PyTorch does on the arena's GPU, for the arena: the table of faces.hpp. Before there is a front, of the current GPU.
#pragma once

#include "../device/faces.hpp"

namespace ebbtide {

extern const CudaFace kCudaFace;

CUstream current_stream();           // that the calling thread's work goes to
bool is_capturing(CUstream stream);  // or nobody can tell
std::uint64_t outside_bytes();       // of the GPU that PyTorch's own allocator has. Takes its lock

}  // namespace ebbtide
