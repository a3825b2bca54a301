// Copies between a device's memory and pinned memory, on streams of their own, and the events that order them. It knows no vendor:
// c10's interfaces reach any device that PyTorch has.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Event.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <optional>

#include "pinned_buffers.hpp"

namespace ebbtide {

class DeviceCopies {
 public:
  explicit DeviceCopies(c10::Device device);

  c10::Stream current() const { return guard_.getStream(device_); }
  bool is_capturing(const c10::Stream& stream) const;  // into a graph, in which a copy of ours would be run again
  c10::Event mark(const c10::Stream& stream) const;  // what the stream has been given so far
  c10::Event timed_mark(const c10::Stream& stream) const;

  c10::Event mark_out() const { return mark(out_); }  // all copies out that have been asked for

  void synchronize() const { guard_.synchronizeDevice(device_.index()); }  // the host waits for all its streams

  // Memory for work on that stream. Throws c10::OutOfMemoryError.
  c10::DataPtr allocate(std::uint64_t nbytes, const c10::Stream& stream) const;
  // It is given back no earlier than `after` has passed.
  void record(const c10::DataPtr& memory) const { guard_.recordDataPtrOnStream(memory, out_); }

  // Copies of a small storage, which nobody sees: in the order of the current stream, and for the host, which waits.
  c10::Storage clone(const c10::Storage& storage) const;
  c10::Storage to_host(const c10::Storage& storage) const;

  struct Copy {
    c10::Event end;
    std::optional<c10::Event> timed_begin, timed_end;  // where times were asked for
  };
  // Each returns when the copy is asked for. It begins after `after`, and after the buffer's last copy.
  Copy out(void* memory, Buffer& buffer, std::uint64_t nbytes, const c10::Event& after, bool timed) {
    return copy(out_, after, buffer, memory, nbytes, timed);
  }
  Copy back(void* memory, Buffer& buffer, std::uint64_t nbytes, const c10::Event& after, bool timed) {
    return copy(back_, after, buffer, memory, nbytes, timed);
  }

 private:
  Copy copy(const c10::Stream& stream, const c10::Event& after, Buffer& buffer, void* memory, std::uint64_t nbytes, bool timed);

  const c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  const c10::Stream out_, back_;
};

}  // namespace ebbtide
