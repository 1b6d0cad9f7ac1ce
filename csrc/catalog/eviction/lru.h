// Least recently used. Of one request the last entry is the coldest: a prefix is read from its head.
#pragma once

#include "catalog/eviction/slots.h"

namespace moontide::catalog {

class LruPolicy final : public EvictionPolicy {
 public:
  void used(Evictable& entry, const Use& use) override;
  void erased(Evictable& entry) override;
  bool pick(size_t scan, int64_t now_ns, const std::function<Verdict(Evictable&)>& offer) override;

 private:
  struct Node {
    Evictable* entry = nullptr;
    Slot colder = kNoSlot;
    Slot hotter = kNoSlot;
  };

  Slots<Node> slots_;
  SlotList<Node> list_;
};

}  // namespace moontide::catalog
