// Regions by address, also overlapping ones: which one covers a range and may be used so, which ones touch it.
//
// A treap ordered by address; each node knows how far the regions below it reach, for every use. Adding, removing and
// finding take O(log n) steps, visiting takes O(log n) and one per region found.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace moontide::memory {

struct Region;
using RegionRef = std::shared_ptr<Region>;

// What a transfer does with local memory, as a mask.
enum class Use : uint8_t {
  kAny = 0,
  kInto = 1,     // bytes are put into it: not a kSource region
  kGranted = 2,  // peers may read it
};

bool suits(const Region& region, Use use);

class IntervalIndex {
 public:
  IntervalIndex();
  ~IntervalIndex();

  void add(const RegionRef& region);
  void remove(const Region& region);
  void clear();

  // A region that covers [start, start + length) and suits `use`; of several the one that begins last. Null: none.
  RegionRef covering(uint64_t start, uint64_t length, Use use) const;
  // Calls `visit` for each region that shares a byte with the range, in order of address, until it returns false.
  void touching(uint64_t start, uint64_t length, const std::function<bool(const RegionRef&)>& visit) const;

  // The longest way from the root, in nodes. Visits all: for tests.
  size_t depth() const;

 private:
  struct Node;
  using Link = std::unique_ptr<Node>;
  static void split(Link tree, const Region& at, Link& before, Link& behind);
  static Link join(Link before, Link behind);
  static const Node* covering(const Node* node, uint64_t start, uint64_t end, size_t use);
  static bool touching(const Node* node, uint64_t start, uint64_t end,
                       const std::function<bool(const RegionRef&)>& visit);
  static size_t depth(const Node* node);

  Link root_;
};

}  // namespace moontide::memory
