#include "watch.hpp"

#include <stdexcept>

#include "allocator.hpp"

namespace ebbtide {

namespace {

Watch* watch = nullptr;

class ArenaWatch final : public ScheduledWatch {
 public:
  explicit ArenaWatch(Arena& arena) : arena_(arena) {}

  bool on() const override { return !arena_.in_child(); }
  const void* find(c10::StorageImpl& storage) override {
    const void* address = storage._mutable_data_ptr_no_checks().get();
    return address != nullptr && arena_.contains(address) ? address : nullptr;
  }

  void enter(const char* name, std::span<const Operand> operands, Work work, Pass pass) override {
    arena_.enter(name, operands, work, pass);
  }
  void exit() override {
    if (!arena_.in_child()) arena_.exit();
  }
  std::uint64_t note_need(const char* name, std::span<const Operand> operands) override {
    return arena_.note_need(name, operands);
  }
  void prefetch(std::span<const Operand> operands) override { arena_.prefetch(operands); }

  Counters begin_step(bool record) override { return arena_.begin_step(record); }
  Counters end_step(bool completed) override { return arena_.end_step(completed); }
  void classify(const void* address, Kind kind) override { arena_.classify(address, kind); }
  Tape& tape() override { return arena_.tape(); }

  Schedules& schedules() override { return arena_.schedules(); }
  Counters counters() override { return arena_.counters(); }
  void reset_peaks() override { arena_.reset_peaks(); }

 private:
  Arena& arena_;
};

}  // namespace

Watch* the_watch() { return watch; }
ScheduledWatch& scheduled_watch() {
  auto* scheduled = dynamic_cast<ScheduledWatch*>(watch);
  if (scheduled == nullptr) throw std::runtime_error("no session has been started");
  return *scheduled;
}
void set_watch(Watch* chosen) { watch = chosen; }
void watch_arena() { watch = new ArenaWatch(*the_arena()); }

}  // namespace ebbtide
