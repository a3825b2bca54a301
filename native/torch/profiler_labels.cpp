#include "profiler_labels.hpp"

#include <ATen/record_function.h>

#include <array>
#include <utility>

namespace ebbtide {

namespace {

// The labels, by the cause of the stall.
constexpr std::array<const char*, kStalls> kLabels{"ebbtide: stall, no room", "ebbtide: fetch, prefetched late",
                                                   "ebbtide: fetch, on demand"};

void* begin(Stall cause) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!callbacks.has_value()) return nullptr;
  auto* label = new at::RecordFunction(std::move(*callbacks));
  label->before(kLabels[static_cast<std::size_t>(cause)]);
  return label;
}

}  // namespace

WaitLabels profiler_labels() {
  return {.begin = begin, .end = [](void* label) { delete static_cast<at::RecordFunction*>(label); }};
}

}  // namespace ebbtide
