#include "births.hpp"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <utility>

namespace ebbtide {

namespace {

thread_local Births* births = nullptr;

}  // namespace

Births::Births() : outer_(std::exchange(births, this)) {}

Births::~Births() {
  births = outer_;
  if (outer_ != nullptr) outer_->addresses_.insert(outer_->addresses_.end(), addresses_.begin(), addresses_.end());
}

void Births::look_at_inner(bool repeats) {
  if (births == nullptr) return;
  bool above_autograd = !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradFunctionality);
  if (repeats && !above_autograd) return;
  for (Births* each = births; each != nullptr; each = each->outer_) each->spoiled_ = true;
}

void Births::note(const void* address) {
  if (births != nullptr) births->addresses_.push_back(address);
}

void Births::forget(const void* address) {
  for (Births* each = births; each != nullptr; each = each->outer_) std::ranges::replace(each->addresses_, address, nullptr);
}

NoBirths::NoBirths() : outer_(std::exchange(births, nullptr)) {}

NoBirths::~NoBirths() { births = outer_; }

}  // namespace ebbtide
