#include "device_copies.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/version.h>

#include "recipe.hpp"

namespace ebbtide {

namespace {

// Nobody sees the operators that copy: not autograd, not a mode of the script's, not a recorder.
class Unseen {
 public:
  Unseen() : below_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect), c10::default_excluded_set | kAbove) {}

 private:
  at::DisableRecordFunctionGuard unrecorded_;
  c10::impl::ForceDispatchKeyGuard below_;
};

at::Tensor bytes_at(void* memory, std::uint64_t nbytes, c10::Device device) {
  return at::for_blob(memory, {static_cast<std::int64_t>(nbytes)})
      .options(at::TensorOptions().dtype(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

}  // namespace

DeviceCopies::DeviceCopies(c10::Device device)
    : device_(device),
      guard_(device.type()),
      out_(guard_.getStreamFromGlobalPool(device)),
      back_(guard_.getStreamFromGlobalPool(device)) {}

bool DeviceCopies::is_capturing([[maybe_unused]] const c10::Stream& stream) const {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
  return guard_.isStreamCapturing(stream);
#else
  return false;  // Python says so instead: DeviceMemory::suspend()
#endif
}

c10::Event DeviceCopies::mark(const c10::Stream& stream) const {
  c10::Event event(device_.type());
  event.record(stream);
  return event;
}

c10::Event DeviceCopies::timed_mark(const c10::Stream& stream) const {
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(stream);
  return event;
}

c10::DataPtr DeviceCopies::allocate(std::uint64_t nbytes, const c10::Stream& stream) const {
  c10::StreamGuard guard(stream);  // and its device
  return c10::GetAllocator(device_.type())->allocate(nbytes);
}

c10::Storage DeviceCopies::clone(const c10::Storage& storage) const {
  Unseen unseen;
  void* memory = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  return bytes_at(memory, storage.nbytes(), device_).clone().storage();
}

c10::Storage DeviceCopies::to_host(const c10::Storage& storage) const {
  Unseen unseen;
  void* memory = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  return bytes_at(memory, storage.nbytes(), device_).to(c10::DeviceType::CPU).storage();
}

DeviceCopies::Copy DeviceCopies::copy(const c10::Stream& stream, const c10::Event& after, Buffer& buffer, void* memory,
                                      std::uint64_t nbytes, bool timed) {
  after.block(stream);
  if (buffer.last) buffer.last->block(stream);
  std::optional<c10::Event> begin, end;
  if (timed) begin = timed_mark(stream);
  {
    Unseen unseen;
    c10::StreamGuard guard(stream);
    at::Tensor here = bytes_at(memory, nbytes, device_);
    at::Tensor there = bytes_at(buffer.memory, nbytes, c10::Device(c10::DeviceType::CPU));
    (stream == out_ ? there : here).copy_(stream == out_ ? here : there, /*non_blocking=*/true);
  }
  if (timed) end = timed_mark(stream);
  buffer.last = mark(stream);
  return {mark(stream), std::move(begin), std::move(end)};
}

}  // namespace ebbtide
