// Objects by key: at most one live object (unfinished or committed) per key. Single-threaded.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "catalog/eviction/policy.h"
#include "catalog/object_index.h"
#include "catalog/types.h"

namespace moontide::catalog {

struct Node;

enum class ObjectState : uint8_t {
  kUnfinished,  // put_start was answered, put_end has not come: bytes are counted, nobody sees it
  kCommitted,
};

inline constexpr int64_t kNever = INT64_MAX;

// The policy of its node knows it while it is committed and not pinned hard.
struct Object : Evictable {
  std::string_view key;  // lives in the table
  Node* node = nullptr;
  Generation generation;
  uint64_t length = 0;
  uint64_t offset = 0;
  uint32_t crc = 0;
  ObjectState state = ObjectState::kUnfinished;
  uint32_t join_round = 0;      // the node's round in which its inventory or a put_end last vouched for the entry
  ClientId writer;              // while unfinished; none: came by inventory, the place is known
  uint64_t token = 0;           // while unfinished
  int64_t deadline_ns = 0;      // while unfinished
  int64_t lease_until_ns = 0;   // while committed; 0 = none
  Pin pin = Pin::kNone;         // while committed
  int64_t expires_ns = kNever;  // while committed
  Generation follows;           // the object on the same node without which this one is worthless; none: empty

  uint64_t footprint() const { return entry_footprint(length); }
  bool committed() const { return state == ObjectState::kCommitted; }
  bool evictable() const { return committed() && pin != Pin::kHard; }
};

class ObjectTable {
 public:
  using Map = std::map<std::string, Object, std::less<>>;

  Object* find(std::string_view key);
  const Object* find(std::string_view key) const;
  // The key must be free. The object's address is stable until `erase`.
  Object& insert(std::string_view key);
  void erase(Object& object);
  void clear() {
    index_.clear();
    map_.clear();
  }

  // Ordered by key (bytes).
  Map::const_iterator from(std::string_view key) const { return map_.lower_bound(key); }
  Map::const_iterator after(std::string_view key) const { return map_.upper_bound(key); }
  Map::const_iterator begin() const { return map_.begin(); }
  Map::const_iterator end() const { return map_.end(); }
  size_t size() const { return map_.size(); }

 private:
  Map map_;            // in the order of listing
  ObjectIndex index_;  // by hash
};

}  // namespace moontide::catalog
