// S3-FIFO: new entries pass through a small queue; those used again there, or soon after they left it, go to the main
// one, which is a FIFO with second chances.
#pragma once

#include "catalog/eviction/ghosts.h"
#include "catalog/eviction/slots.h"

namespace moontide::catalog {

class S3FifoPolicy final : public EvictionPolicy {
 public:
  void used(Evictable& entry, const Use& use) override;
  void erased(Evictable& entry) override;
  bool pick(size_t scan, int64_t now_ns, const std::function<Verdict(Evictable&)>& offer) override;

 private:
  struct Node {
    Evictable* entry = nullptr;
    uint64_t bytes : 46 = 0;
    uint64_t uses : 2 = 0;
    uint64_t main : 1 = 0;
    Slot colder = kNoSlot;
    Slot hotter = kNoSlot;
  };
  struct Queue {
    SlotList<Node> list;
    uint64_t bytes = 0;
    size_t count = 0;
  };

  Queue& queue_of(const Node& node) { return node.main ? main_ : small_; }
  void push(Slot slot);
  void unlink(Slot slot);

  Slots<Node> slots_;
  Queue small_, main_;
  Ghosts ghosts_;
  uint32_t departures_ = 0;  // from the small queue
};

}  // namespace moontide::catalog
