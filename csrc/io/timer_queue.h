// Timers in order of their deadline; equal deadlines run in the order they were added. Adding costs O(log n),
// cancelling O(1): the task is dropped at once, its heap entry when it comes up or when half of the heap is such
// entries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "io/reactor.h"

namespace moontide::io {

class TimerQueue {
 public:
  TimerId add(int64_t deadline_ns, Task task) {
    uint32_t slot;
    if (free_.empty()) {
      slot = static_cast<uint32_t>(slots_.size());
      slots_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    slots_[slot].task = std::move(task);
    slots_[slot].live = true;
    heap_.push_back({deadline_ns, next_order_++, slot, slots_[slot].generation});
    std::push_heap(heap_.begin(), heap_.end(), later);
    return (static_cast<TimerId>(slots_[slot].generation) << 32) | slot;
  }

  // False when it ran, was cancelled or never was.
  bool cancel(TimerId timer) {
    const auto slot = static_cast<uint32_t>(timer);
    const auto generation = static_cast<uint32_t>(timer >> 32);
    if (slot >= slots_.size() || !slots_[slot].live || slots_[slot].generation != generation) return false;
    Task dropped = release(slot);  // its captures are destroyed after the table is consistent again
    if (++stale_ * 2 > heap_.size() && heap_.size() > 64) compact();
    return true;
  }

  std::optional<int64_t> next_deadline_ns() {
    drop_stale();
    if (heap_.empty()) return std::nullopt;
    return heap_.front().deadline_ns;
  }

  // The earliest task whose deadline is not after `now_ns`, taken out; an empty task when there is none.
  Task take_due(int64_t now_ns) {
    drop_stale();
    if (heap_.empty() || heap_.front().deadline_ns > now_ns) return {};
    const uint32_t slot = heap_.front().slot;
    pop();
    return release(slot);
  }

  size_t size() const { return heap_.size() - stale_; }

 private:
  struct Slot {
    Task task;
    uint32_t generation = 1;
    bool live = false;
  };
  struct Entry {
    int64_t deadline_ns;
    uint64_t order;
    uint32_t slot;
    uint32_t generation;
  };
  static bool later(const Entry& a, const Entry& b) {
    return a.deadline_ns != b.deadline_ns ? a.deadline_ns > b.deadline_ns : a.order > b.order;
  }
  bool stale(const Entry& entry) const { return slots_[entry.slot].generation != entry.generation; }

  Task release(uint32_t slot) {
    Slot& freed = slots_[slot];
    freed.live = false;
    if (++freed.generation == 0) freed.generation = 1;
    free_.push_back(slot);
    return std::exchange(freed.task, {});
  }
  void pop() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    heap_.pop_back();
  }
  void drop_stale() {
    while (!heap_.empty() && stale(heap_.front())) {
      pop();
      --stale_;
    }
  }
  void compact() {
    std::erase_if(heap_, [this](const Entry& entry) { return stale(entry); });
    std::make_heap(heap_.begin(), heap_.end(), later);
    stale_ = 0;
  }

  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  std::vector<Entry> heap_;
  uint64_t next_order_ = 0;
  size_t stale_ = 0;
};

}  // namespace moontide::io
