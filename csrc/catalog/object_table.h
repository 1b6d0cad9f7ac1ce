// Objects by key: at most one live object (unfinished or committed) per key, with its replicas. Single-threaded.
#pragma once

#include <array>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "catalog/eviction/policy.h"
#include "catalog/key_order.h"
#include "catalog/pointer_index.h"
#include "catalog/types.h"

namespace moontide::catalog {

struct Node;
struct Object;

inline constexpr int64_t kNever = INT64_MAX;

// One place of an object. The policy of its node knows it while it is placed and not pinned hard. Its address is
// stable.
struct Replica : Evictable {
  uint32_t join_round = 0;   // the node's round in which its inventory or a put_end last vouched for the entry
  bool placed = false;       // the node has the bytes, and they are the object's; else they are on their way
  bool repair = false;       // they are on their way from another node, not from the client
  bool unconfirmed = false;  // placed, and the node has to be told that it was committed or how long it is kept
  Object* object = nullptr;
  Node* node = nullptr;  // null: this one is not in use
  uint64_t offset = 0;
  Generation follows;  // the object on the same node without which this one is worthless; none: empty
};

// The replicas of one object at this moment: it may lose some while the list is walked.
template <class R>
struct ReplicaList {
  std::array<R*, kMaxReplicas> items;
  size_t count = 0;
  R* const* begin() const { return items.data(); }
  R* const* end() const { return items.data() + count; }
};

struct OpenPut {
  ClientId writer;  // none: came by inventory, the places are known
  uint64_t token = 0;
  int64_t deadline_ns = 0;
  Object* object = nullptr;
  std::list<OpenPut>::iterator self;  // in the catalog's list
};

// Its key lies behind it, in the same memory.
struct Object {
  struct Free {
    void operator()(Object* object) const;
  };
  using Owner = std::unique_ptr<Object, Free>;
  static Owner make(std::string_view key);

  Replica first;  // most objects have one replica only
  // Replicas beyond that, and nodes that may still hold an entry of it which is no replica any more.
  struct Further {
    std::vector<std::unique_ptr<Replica>> replicas;
    std::vector<NodeId> leaving;
    std::vector<NodeId> avoid;  // that its put wants nothing on
  };
  std::unique_ptr<Further> further;
  Generation generation;
  uint64_t length = 0;
  OpenPut* open = nullptr;      // put_start was answered, put_end has not come: nobody sees it. null: committed
  int64_t lease_until_ns = 0;   // while committed; 0 = none
  int64_t expires_ns = kNever;  // while committed
  uint32_t crc = 0;
  Pin pin = Pin::kNone;  // while committed
  uint8_t wanted = 1;    // replicas
  uint8_t missing = 0;   // of those, while committed; as the catalog counts them
  uint16_t key_bytes = 0;

  std::string_view key() const { return {reinterpret_cast<const char*>(this + 1), key_bytes}; }
  uint64_t key_hash() const { return first.key_hash; }
  uint64_t footprint() const { return entry_footprint(length); }
  bool committed() const { return open == nullptr; }

  ReplicaList<Replica> replicas() { return list<Replica>(*this); }
  ReplicaList<const Replica> replicas() const { return list<const Replica>(*this); }
  size_t placed_count() const;
  // Null: it has none there.
  Replica* on(const NodeId& node);
  // At most kMaxReplicas.
  Replica& add_replica();
  void remove_replica(Replica& replica);
  void leaves(const NodeId& node);
  void avoid(const std::vector<NodeId>& nodes);

 private:
  template <class R, class O>
  static ReplicaList<R> list(O& object) {
    ReplicaList<R> found;
    if (object.first.node != nullptr) found.items[found.count++] = &object.first;
    if (object.further == nullptr) return found;
    for (auto& one : object.further->replicas) found.items[found.count++] = one.get();
    return found;
  }
};

// Replicas on one node.
struct ByGeneration {
  using Thing = Replica;
  using Key = Generation;
  static Generation key(const Replica& replica) { return replica.object->generation; }
  static uint64_t hash(const Replica& replica) { return hash_of(key(replica)); }
  static uint64_t hash_of(const Generation& generation) {
    return (generation.sequence ^ uint64_t{generation.term} << 32) * 0x9E3779B97F4A7C15u;
  }
};

class ObjectTable {
 public:
  ObjectTable() = default;
  ~ObjectTable() { clear(); }
  ObjectTable(const ObjectTable&) = delete;
  ObjectTable& operator=(const ObjectTable&) = delete;

  Object* find(std::string_view key) { return find(key, hash_of(key)); }
  const Object* find(std::string_view key) const { return find(key, hash_of(key)); }
  static uint64_t hash_of(std::string_view key);
  Object* find(std::string_view key, uint64_t hash);
  const Object* find(std::string_view key, uint64_t hash) const;
  // They are about to be looked for: brings what lies scattered in memory into the caches.
  void prefetch(std::span<const uint64_t> hashes) const;
  // The key must be free. The object's address is stable until `erase`.
  Object& insert(std::string_view key);
  void erase(Object& object);
  void clear();

  // In the order of listing.
  const KeyOrder& ordered() const { return order_; }
  size_t size() const { return order_.size(); }

 private:
  struct ByKey {
    using Thing = Object;
    using Key = std::string_view;
    static Key key(const Object& object) { return object.key(); }
    static uint64_t hash(const Object& object) { return object.key_hash(); }
  };

  KeyOrder order_;  // owns them
  PointerIndex<ByKey> index_;
};

}  // namespace moontide::catalog
