#include "host_copies.hpp"

#include <algorithm>
#include <utility>

namespace ebbtide {

namespace {

using Effort = PinnedBuffers::Effort;

std::function<void()> waits_for(c10::Event event) {
  return [event = std::make_shared<c10::Event>(std::move(event))] { event->synchronize(); };
}

}  // namespace

void HostCopies::set_limit(std::uint64_t bytes) {
  limit_ = bytes;
  buffers_.set_limit(bytes);
}

void HostCopies::open(const std::vector<std::string>& directories, unsigned threads) {
  file_.reset();
  error_ = 0;
  if (!directories.empty()) file_ = std::make_shared<Spilled>(directories, threads);
}

HostCopy* HostCopies::take(std::uint64_t nbytes, bool waits) {
  Buffer memory = buffers_.take(nbytes, waits ? Effort::Wait : Effort::None);
  bool is_in_parts = !memory && waits && file_ && contents() + nbytes <= limit_;  // what is free
  if (is_in_parts) memory = buffers_.take(nbytes, Effort::Beyond);
  if (!memory) return nullptr;
  auto copy = std::make_unique<HostCopy>();
  copy->nbytes = nbytes;
  copy->memory = std::move(memory);
  HostCopy* taken = copy.get();
  copies_.emplace(taken, std::move(copy));
  return taken;
}

std::uint64_t HostCopies::contents() const {
  std::uint64_t bytes = 0;
  for (const auto& [copy, _] : copies_) bytes += copy->memory ? copy->nbytes : 0;
  return bytes;
}

void HostCopies::drop(HostCopy*& copy) {
  HostCopy* dropped = std::exchange(copy, nullptr);
  if (dropped == nullptr) return;
  dropped->is_dropped = true;
  if (!dropped->under_way) end(*dropped);
}

void HostCopies::end(HostCopy& copy) {
  if (copy.memory) buffers_.give(std::move(copy.memory));
  if (copy.extent) copy.file->release(*copy.extent);
  copies_.erase(&copy);
}

bool HostCopies::spill(HostCopy& copy, c10::Event after) {
  if (copy.stays || copy.under_way || !copy.memory) return false;
  if (copy.extent) {  // it lies there already
    buffers_.give(std::exchange(copy.memory, {}));
    copy.came = false;
    return true;
  }
  if (!file_ || error_ != 0) return false;
  copy.file = file_;
  copy.extent = file_->reserve(copy.nbytes);
  if (!copy.extent) {
    error_ = file_->error();
    return false;
  }
  copy.under_way = file_->write(*copy.extent, copy.memory.memory, waits_for(std::move(after)));
  giving_up_ += copy.memory.nbytes;
  under_way_.push_back(&copy);
  return true;
}

bool HostCopies::bring(HostCopy& copy, bool must) {
  if (copy.under_way || copy.memory) return true;
  Buffer memory = buffers_.take(copy.nbytes, must ? Effort::Beyond : Effort::None);
  if (!memory) return false;
  auto before = memory.last ? waits_for(*std::exchange(memory.last, std::nullopt)) : [] {};
  copy.memory = std::move(memory);
  copy.comes = true;
  copy.under_way = copy.file->read(*copy.extent, copy.memory.memory, std::move(before));
  under_way_.push_back(&copy);
  return true;
}

void HostCopies::wait(HostCopy& copy) {
  if (!copy.under_way) return;
  copy.file->wait(copy.under_way);
  std::erase(under_way_, &copy);
  settle(copy);
}

bool HostCopies::wait_for_one() {
  if (under_way_.empty()) return false;
  auto gives_up = [](const HostCopy* copy) { return !copy->comes || copy->is_dropped; };
  auto found = std::ranges::find_if(under_way_, gives_up);
  wait(found != under_way_.end() ? **found : *under_way_.front());
  return true;
}

void HostCopies::settle() {
  std::vector<HostCopy*> ended;
  std::erase_if(under_way_, [&](HostCopy* copy) {
    if (!copy->file->has_ended(copy->under_way)) return false;
    ended.push_back(copy);
    return true;
  });
  for (HostCopy* copy : ended) settle(*copy);
}

// Its way has ended.
void HostCopies::settle(HostCopy& copy) {
  copy.error = copy.file->wait(std::exchange(copy.under_way, nullptr));
  const bool came = copy.came = std::exchange(copy.comes, false);
  (came ? read_ : written_) += copy.nbytes;
  if (!came) giving_up_ -= copy.memory.nbytes;
  if (copy.error != 0 && !came) {
    if (copy.file == file_) error_ = copy.error;
    copy.file->release(*std::exchange(copy.extent, std::nullopt));
  }
  if (copy.is_dropped) {
    end(copy);
  } else if (came ? copy.error != 0 : copy.error == 0 && !copy.stays) {
    buffers_.give(std::exchange(copy.memory, {}));
  }
}

std::uint64_t HostCopies::excess() const {
  std::uint64_t stays = buffers_.used() - giving_up_;
  return file_ && error_ == 0 && stays > limit_ - limit_ / 8 ? stays - (limit_ - limit_ / 4) : 0;
}

void HostCopies::give_back() {
  while (!under_way_.empty()) wait(*under_way_.front());
  if (!copies_.empty()) return;
  buffers_.give_back();
  file_.reset();
}

}  // namespace ebbtide
