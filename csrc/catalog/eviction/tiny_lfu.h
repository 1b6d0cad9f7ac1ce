// In the manner of W-TinyLFU: new entries pass through a small LRU window; one that leaves it stays only if it was used
// more often than the coldest entry of the main part, by a sketch that counts all keys and fades. The main part is a
// segmented LRU.
#pragma once

#include <array>

#include "catalog/eviction/slots.h"

namespace moontide::catalog {

// Uses per key, at most 15, never too low: four small counters per key in a table that keys share. Halved when it has
// counted ten times as many uses as it has room for keys.
class UseSketch {
 public:
  void reserve(size_t keys);
  void count(uint64_t key_hash);
  uint32_t uses(uint64_t key_hash) const;

 private:
  static constexpr size_t kRows = 4;
  struct Place {
    size_t word = 0;
    uint32_t shift = 0;
  };
  Place place(uint64_t key_hash, size_t row) const;

  std::vector<uint64_t> words_;  // sixteen counters each
  size_t counted_ = 0;
};

class TinyLfuPolicy final : public EvictionPolicy {
 public:
  void used(Evictable& entry, const Use& use) override;
  void erased(Evictable& entry) override;
  bool pick(size_t scan, int64_t now_ns, const std::function<Verdict(Evictable&)>& offer) override;

 private:
  enum Part : uint8_t { kWindow, kProbation, kProtected, kParts };
  struct Node {
    Evictable* entry = nullptr;
    uint64_t bytes : 56 = 0;
    uint64_t part : 8 = kWindow;
    Slot colder = kNoSlot;
    Slot hotter = kNoSlot;
  };
  struct Lru {
    SlotList<Node> list;
    uint64_t bytes = 0;
  };

  void push(Slot slot, Part part);
  void unlink(Slot slot);
  uint64_t bytes() const { return parts_[kWindow].bytes + parts_[kProbation].bytes + parts_[kProtected].bytes; }
  // One entry moves to where it belongs by size; false when all do.
  bool settle_one();

  Slots<Node> slots_;
  std::array<Lru, kParts> parts_;
  UseSketch sketch_;
  size_t count_ = 0;
};

}  // namespace moontide::catalog
