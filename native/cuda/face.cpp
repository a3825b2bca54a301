#include "face.hpp"

#include "front.hpp"

namespace ebbtide {

namespace {

DeviceIndex device() { return the_front() != nullptr ? the_front()->device() : c10::cuda::current_device(); }

bool captures() { return is_capturing(current_stream()); }

}  // namespace

const CudaFace kCudaFace{.stream = current_stream, .captures = captures, .outside_bytes = outside_bytes};

CUstream current_stream() { return c10::cuda::getCurrentCUDAStream(device()).stream(); }

bool is_capturing(CUstream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) == cudaSuccess) return status != cudaStreamCaptureStatusNone;
  cudaGetLastError();  // a capture elsewhere makes the default stream unusable: no error of the next kernel's
  return true;
}

std::uint64_t outside_bytes() {
  native::CUDAAllocator& pytorchs = the_front() != nullptr ? the_front()->pytorchs() : *native::get();
  return static_cast<std::uint64_t>(pytorchs.getDeviceStats(device()).reserved_bytes[0].current);
}

}  // namespace ebbtide
