#include "face.hpp"

#include <atomic>
#include <type_traits>

#include "front.hpp"

namespace ebbtide {

namespace {

std::atomic<int> told_of = 0;
std::atomic<const Births*> births = nullptr;

DeviceIndex device() {
  if (the_front() != nullptr) return the_front()->device();
  return births != nullptr ? static_cast<DeviceIndex>(told_of) : c10::cuda::current_device();
}

// PyTorch's allocator cannot be told to forget whom it tells, so that one stays, and passes on what it is to.
void tell(int device, const Births* to) {
  static const bool attached = [] {
    native::CUDAAllocator& pytorchs = the_front() != nullptr ? the_front()->pytorchs() : *native::get();
    pytorchs.attachAllocatorTraceTracker([](const auto& entry) {
      using Entry = std::remove_cvref_t<decltype(entry)>;
      const Births* them = births;
      if (them == nullptr || entry.device_ != told_of) return;
      void* at = reinterpret_cast<void*>(entry.addr_);
      if (entry.action_ == Entry::ALLOC) them->born(at, entry.size_);
      if (entry.action_ == Entry::FREE_COMPLETED) them->ended(at);
    });
    return true;
  }();
  static_cast<void>(attached);
  told_of = device;
  births = to;
}

bool captures() { return is_capturing(current_stream()); }

}  // namespace

const CudaFace kCudaFace{.stream = current_stream, .captures = captures, .outside_bytes = outside_bytes, .tell = tell};

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
