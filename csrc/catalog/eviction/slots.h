// Memory for a policy: nodes under 32-bit numbers, and lists through them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "catalog/eviction/policy.h"

namespace moontide::catalog {

// Nodes have `Slot colder, hotter`. A node's address is stable from `take` to `give_back`; memory is not handed back
// before the end.
template <class Node>
class Slots {
 public:
  Slot take() {
    if (free_ == kNoSlot) grow();
    Slot slot = free_;
    free_ = (*this)[slot].hotter;
    (*this)[slot] = Node{};
    return slot;
  }
  void give_back(Slot slot) {
    (*this)[slot].hotter = free_;
    free_ = slot;
  }
  Node& operator[](Slot slot) { return chunks_[slot / kChunk][slot % kChunk]; }
  const Node& operator[](Slot slot) const { return chunks_[slot / kChunk][slot % kChunk]; }

 private:
  static constexpr Slot kChunk = 1024;

  void grow() {
    Slot base = static_cast<Slot>(chunks_.size()) * kChunk;
    MT_CHECK(base < kNoSlot - kChunk, "four billion entries");
    chunks_.push_back(std::make_unique<Node[]>(kChunk));
    for (Slot i = kChunk; i-- > 0;) give_back(base + i);
  }

  std::vector<std::unique_ptr<Node[]>> chunks_;
  Slot free_ = kNoSlot;
};

// A doubly linked list from the coldest to the hottest.
template <class Node>
class SlotList {
 public:
  Slot coldest() const { return coldest_; }
  Slot hottest() const { return hottest_; }
  bool empty() const { return coldest_ == kNoSlot; }

  void push_hottest(Slots<Node>& slots, Slot slot) { insert(slots, slot, hottest_, kNoSlot); }
  void push_coldest(Slots<Node>& slots, Slot slot) { insert(slots, slot, kNoSlot, coldest_); }
  void insert_before(Slots<Node>& slots, Slot slot, Slot hotter) { insert(slots, slot, slots[hotter].colder, hotter); }
  void remove(Slots<Node>& slots, Slot slot) {
    Node& node = slots[slot];
    (node.colder != kNoSlot ? slots[node.colder].hotter : coldest_) = node.hotter;
    (node.hotter != kNoSlot ? slots[node.hotter].colder : hottest_) = node.colder;
    node.colder = node.hotter = kNoSlot;
  }

 private:
  void insert(Slots<Node>& slots, Slot slot, Slot colder, Slot hotter) {
    slots[slot].colder = colder;
    slots[slot].hotter = hotter;
    (colder != kNoSlot ? slots[colder].hotter : coldest_) = slot;
    (hotter != kNoSlot ? slots[hotter].colder : hottest_) = slot;
  }

  Slot coldest_ = kNoSlot;
  Slot hottest_ = kNoSlot;
};

}  // namespace moontide::catalog
