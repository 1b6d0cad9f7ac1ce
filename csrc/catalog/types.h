// What goes into the catalog and what comes out of it: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/id.h"
#include "base/status.h"

namespace moontide::catalog {

using NodeId = InstanceId;    // a node process; a restarted node is another one
using ClientId = InstanceId;  // a client process

inline constexpr size_t kMaxKeyBytes = 1024;
inline constexpr uint64_t kMaxObjectBytes = uint64_t{1} << 46;
inline constexpr size_t kMaxReplicas = 8;         // of one object
inline constexpr size_t kMaxPlacementNodes = 64;  // named as preferred or to be avoided
inline constexpr uint64_t kEntryHeaderBytes = 64;
inline constexpr uint64_t kEntryAlignment = 64;

// The bytes an object of `length` <= kMaxObjectBytes takes in a segment. The node's allocator uses the same rule, so
// that what the catalog counts is what the node has.
constexpr uint64_t entry_footprint(uint64_t length) {
  return (kEntryHeaderBytes + length + kEntryAlignment - 1) / kEntryAlignment * kEntryAlignment;
}

inline bool key_valid(std::string_view key) { return !key.empty() && key.size() <= kMaxKeyBytes; }

// Every bound and every duration of a catalog.
struct Limits {
  int64_t put_timeout_ns = 30 * kSecond;  // from put_start until an unfinished put may be cancelled
  int64_t lease_ns = kSecond;             // what a locate grants
  size_t max_objects = 4'000'000;         // entries of any state; past the watermarks the coldest go
  size_t max_nodes = 1024;
  size_t max_endings = 1 << 18;  // keys whose last operation is remembered after the object left, see LastOps
  uint32_t high_percent = 95;    // eviction starts above this share of a segment's bytes or of max_objects ...
  uint32_t low_percent = 90;     // ... and goes on until this one
  size_t evictions_per_step = 256;
  size_t scan_per_step = 4096;  // candidates looked at in one step (those with a live lease are passed over)
  size_t expiries_per_tick = 256;
  size_t repairs_max = 64;                // under way
  size_t repairs_per_tick = 64;           // objects that lack replicas looked at in one tick
  size_t drained_per_tick = 256;          // objects looked at on each node that is drained
  int64_t repair_pause_ns = 5 * kSecond;  // after a repair of an object failed
};

// ---- how long an object is kept

enum class Pin : uint8_t {
  kNone,
  kSoft,  // evicted only where what is not pinned does not make room enough, as far as one step looks
  kHard,  // never evicted
};

struct Retention {
  Pin pin = Pin::kNone;
  int64_t ttl_ns = 0;  // from the commit or from now on; 0: no end
  bool operator==(const Retention&) const = default;
};

inline constexpr int64_t kMaxTtlNs = int64_t{100} * 365 * 24 * 3600 * kSecond;

inline bool retention_valid(const Retention& r) {
  return r.pin <= Pin::kHard && r.ttl_ns >= 0 && r.ttl_ns <= kMaxTtlNs;
}

// ---- nodes

struct NodeJoin {
  uint64_t capacity_bytes = 0;  // of the one segment that the node lends
  std::string address;          // of the node's engine; opaque here
  uint32_t reported_term = 0;   // the highest term the node has joined so far
};

struct InventoryEntry {
  std::string key{};
  Generation generation{};
  uint64_t length = 0;
  uint64_t offset = 0;
  uint32_t crc = 0;
  bool confirmed = false;  // some catalog committed it and told the node so
  Retention retention{};   // as the node was told, with the time that is left
};

// "It was committed." Only a client can say that the memory was unchanged until the node had pulled it, and it says so
// by its put_end: an entry that nobody confirmed must not be shown by a master that starts anew. Comes again where the
// retention changed.
struct ConfirmItem {
  Generation generation{};
  Retention retention{};
};

struct RetireItem {
  Generation generation{};
  uint64_t key_hash = 0;
};

// "Pull this entry from the node that has it." The bytes count at the node from the order on.
struct RepairItem {
  std::string key{};
  Generation generation{};
  uint64_t length = 0;
  uint32_t crc = 0;
  NodeId source{};
  uint64_t offset = 0;  // there
};

// What became of it.
struct RepairedItem {
  Generation generation{};
  Code code = Code::kOk;
  uint64_t offset = 0;
  uint32_t crc = 0;
};

struct NodeOrder {
  NodeId node{};
  Generation floor{};  // no put older than this is open on the node: a ticket below it can be refused
  std::vector<ConfirmItem> confirm{};
  // "Clear the generation word of these entries, drop them, end your use of them, then acknowledge."
  std::vector<RetireItem> retire{};
  std::vector<RepairItem> repair{};
};

// ---- puts

// Where the objects of a batch of puts are wanted.
struct Placement {
  size_t replicas = 1;           // each on another node, 1 to kMaxReplicas
  std::vector<NodeId> prefer{};  // tried first, in this order
  std::vector<NodeId> avoid{};   // never used
};

inline bool placement_valid(const Placement& p) {
  return p.replicas >= 1 && p.replicas <= kMaxReplicas && p.prefer.size() <= kMaxPlacementNodes &&
         p.avoid.size() <= kMaxPlacementNodes;
}

struct PutRequest {
  std::string key{};
  uint64_t length = 0;
  uint64_t token = 0;  // chosen by the client, unique among its puts: asking again with it is answered again
  // A block of a prefix, of which the one before it in this batch is the block before: worthless without it, so it is
  // evicted first. Holds where both come to lie on the same node.
  bool follows = false;
  // Not only where the key is free. The object that the put may replace; an empty one: whichever there is, or none.
  std::optional<Generation> replaces{};
};

// `code` kOk: the rest says where. kAlreadyExists (for one that replaces: another put is under way), kStale (the key
// does not have that object), kTooLarge, kNoSpace (room is being made: ask again),
// kUnavailable (no node takes objects now), kInvalid (key, placement). Where fewer nodes have room than were asked for,
// fewer are granted, at least one.
struct PutGrant {
  Code code = Code::kOk;
  NodeId node{};
  std::vector<NodeId> further{};  // nodes of further replicas
  Generation generation{};
  uint64_t key_hash = 0;
  uint64_t length = 0;
  int64_t expires_in_ns = 0;
};

// A replica that landed.
struct PlacedAt {
  NodeId node{};
  uint64_t offset = 0;
  uint32_t crc = 0;
};

struct PutPlaced {
  std::string key{};
  Generation generation{};
  PlacedAt at{};
  Retention retention{};
  std::vector<PlacedAt> further{};
};

struct PutRef {
  std::string key{};
  Generation generation{};
};

// ---- reads

struct ReplicaAt {
  NodeId node{};
  uint64_t offset = 0;
};

struct Place {
  Code code = Code::kNotFound;
  NodeId node{};
  Generation generation{};
  uint64_t offset = 0;  // of the entry's header
  uint64_t length = 0;  // of the payload behind it
  uint32_t crc = 0;
  int64_t lease_ns = 0;
  std::vector<ReplicaAt> further{};  // other places of the same bytes; those on nodes that are away come last
};

struct Listed {
  std::string key{};
  uint64_t length = 0;
  Generation generation{};
  NodeId node{};  // one of those that have it
};

struct ListPage {
  std::vector<Listed> items{};
  std::string resume_after;  // not empty: there may be more after this key
};

struct Stats {
  uint64_t nodes = 0;
  uint64_t nodes_ready = 0;
  uint64_t nodes_draining = 0;
  uint64_t capacity_bytes = 0;
  uint64_t unfinished_bytes = 0;
  uint64_t committed_bytes = 0;
  uint64_t retiring_bytes = 0;
  uint64_t held_bytes = 0;  // of entries that ended and are still looked at in place
  uint64_t unfinished = 0;
  uint64_t committed = 0;
  uint64_t retiring = 0;
  uint64_t replicas = 0;           // of the committed objects
  uint64_t replicas_short = 0;     // that committed objects lack of what was asked for
  uint64_t hard_pinned_bytes = 0;  // of the committed ones
  // since the catalog was made
  uint64_t located = 0;
  uint64_t missed = 0;
  uint64_t evicted = 0;
  uint64_t removed = 0;
  uint64_t expired = 0;
  uint64_t puts_granted = 0;
  uint64_t puts_committed = 0;
  uint64_t puts_expired = 0;
  uint64_t puts_stale = 0;
  uint64_t puts_no_space = 0;
  uint64_t adopted = 0;
  uint64_t objects_lost = 0;
  uint64_t repairs = 0;
  uint64_t repairs_failed = 0;
  uint64_t drained = 0;  // replicas given up since they lie elsewhere
};

}  // namespace moontide::catalog
