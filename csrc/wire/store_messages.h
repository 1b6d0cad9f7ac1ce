// What clients, nodes and the master of a pool say to each other. Clients and nodes dial the master and speak first;
// clients reach nodes over engine links.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/id.h"
#include "base/status.h"
#include "wire/codec.h"
#include "wire/engine_messages.h"

namespace moontide::wire {

enum StoreMessage : uint16_t {
  // client → master; the hello first
  kClientHello = 300,
  kPutStart = 301,
  kPutEnd = 302,
  kPutRevoke = 303,
  kLocate = 304,
  kExists = 305,
  kRemove = 306,
  kList = 307,
  kTouch = 308,  // notice
  kPoolStats = 309,
  kKeepAlive = 310,  // client or node → master
  kKeep = 311,
  kDrain = 312,
  // node → master; the hello first, then the inventory
  kNodeHello = 320,
  kInventory = 321,
  kInventoryEnd = 322,
  kRetired = 323,   // notice
  kRepaired = 324,  // notice
  // master → node
  kNodeOrder = 340,  // notice
  // client → node
  kStorePull = 350,
  kViewOpen = 351,
  kViewClose = 352,
};
static_assert(uint16_t{kClientHello} > uint16_t{kApplicationFirst});

inline constexpr size_t kStoreItemsMax = 1024;          // of one request
inline constexpr size_t kStorePartsMax = 64u << 10;     // of one request
inline constexpr size_t kStoreRequestBytes = 4u << 20;  // a sender splits its batch beyond this

// The region that a node lends is announced under this name and the node's id.
inline std::string pool_region_name(const InstanceId& node) { return "pool:" + node.text(); }

// ---- sessions with the master

struct ClientHello {
  ProtocolRange protocol;
  InstanceId client;
  auto fields() { return std::tie(protocol, client); }
};

struct ClientWelcome {
  uint16_t protocol = 0;
  uint32_t term = 0;
  auto fields() { return std::tie(protocol, term); }
};

struct NodeHello {
  ProtocolRange protocol;
  InstanceId node;
  uint64_t capacity_bytes = 0;
  std::string address;      // of the node's engine
  uint32_t term = 0;        // the highest that it has joined
  InstanceId reign;         // whose term that was
  uint64_t secret_low = 0;  // tickets for this node are made with it
  uint64_t secret_high = 0;
  auto fields() { return std::tie(protocol, node, capacity_bytes, address, term, reign, secret_low, secret_high); }
};

struct NodeWelcome {
  uint16_t protocol = 0;
  uint32_t term = 0;
  InstanceId reign;
  auto fields() { return std::tie(protocol, term, reign); }
};

// How long an object is kept; see catalog::Retention.
struct Kept {
  uint8_t pin = 0;
  int64_t ttl_ns = 0;
  auto fields() { return std::tie(pin, ttl_ns); }
  bool operator==(const Kept&) const = default;
};

struct InventoryItem {
  std::string key;
  Generation generation;
  uint64_t length = 0;
  uint64_t offset = 0;
  uint32_t crc = 0;
  bool confirmed = false;
  auto fields() { return std::tie(key, generation, length, offset, crc, confirmed); }
};

struct Inventory {
  std::vector<InventoryItem> items;
  Later<std::vector<Kept>> kept{};  // per item, or none at all
  auto fields() { return std::tie(items, kept); }
};

struct InventoryEndReply {
  Generation floor;  // tickets below it are over
  auto fields() { return std::tie(floor); }
};

struct RetireItem {
  Generation generation;
  uint64_t key_hash = 0;
  auto fields() { return std::tie(generation, key_hash); }
};

// "Pull this entry from the node that has it": a replica is missing.
struct RepairItem {
  std::string key;
  Generation generation;
  uint64_t length = 0;
  uint32_t crc = 0;
  InstanceId source;
  std::string address;  // of the source's engine
  uint64_t offset = 0;  // there
  auto fields() { return std::tie(key, generation, length, crc, source, address, offset); }
};

struct NodeOrder {
  uint32_t term = 0;
  Generation floor;
  std::vector<Generation> confirm;
  std::vector<RetireItem> retire;
  Later<std::vector<Kept>> kept{};  // per item of `confirm`, or none at all
  Later<std::vector<RepairItem>> repair{};
  auto fields() { return std::tie(term, floor, confirm, retire, kept, repair); }
};

// What became of one order to repair.
struct RepairedItem {
  Generation generation;
  Code code = Code::kOk;
  uint64_t offset = 0;
  uint32_t crc = 0;
  auto fields() { return std::tie(generation, code, offset, crc); }
};

struct Repaired {
  std::vector<RepairedItem> items;
  auto fields() { return std::tie(items); }
};

struct Retired {
  std::vector<Generation> generations;
  // What the segment still keeps of entries that ended, since somebody looks at them; one number, or none: nothing.
  Later<std::vector<uint64_t>> held_bytes{};
  auto fields() { return std::tie(generations, held_bytes); }
};

// ---- puts

struct PutStartItem {
  std::string key;
  uint64_t length = 0;
  uint64_t token = 0;
  auto fields() { return std::tie(key, length, token); }
};

// Where the objects of a request are wanted; see catalog::Placement.
struct Placement {
  uint8_t replicas = 1;
  std::vector<InstanceId> prefer;
  std::vector<InstanceId> avoid;
  auto fields() { return std::tie(replicas, prefer, avoid); }
};

struct PutStart {
  std::vector<PutStartItem> items;
  // Per item, or none at all: 1 for a block of a prefix whose block before it is the item before it.
  Later<std::vector<uint8_t>> follows{};
  Later<std::vector<Placement>> placement{};  // one for all items; none: one replica, anywhere
  // Per item, or none at all: what the put may replace; see catalog::PutRequest.
  Later<std::vector<std::optional<Generation>>> replaces{};
  auto fields() { return std::tie(items, follows, placement, replaces); }
};

struct NodeRef {
  InstanceId node;
  std::string address;
  auto fields() { return std::tie(node, address); }
};

struct PutGranted {
  Code code = Code::kOk;
  uint32_t node = 0;  // index
  Generation generation;
  uint64_t tag = 0;  // with which the node knows that the master granted it
  auto fields() { return std::tie(code, node, generation, tag); }
};

// One more replica of an item.
struct PutGrantedFurther {
  uint32_t item = 0;  // index; in order
  uint32_t node = 0;  // index
  uint64_t tag = 0;
  auto fields() { return std::tie(item, node, tag); }
};

struct PutStartReply {
  std::vector<NodeRef> nodes;
  std::vector<PutGranted> items;
  Later<std::vector<PutGrantedFurther>> further{};
  auto fields() { return std::tie(nodes, items, further); }
};

struct PutEndItem {
  std::string key;
  Generation generation;
  InstanceId node;  // where it was placed
  uint64_t offset = 0;
  uint32_t crc = 0;
  auto fields() { return std::tie(key, generation, node, offset, crc); }
};

// One more replica of an item that landed, with the same checksum.
struct PutEndFurther {
  uint32_t item = 0;  // index; in order
  InstanceId node;
  uint64_t offset = 0;
  auto fields() { return std::tie(item, node, offset); }
};

struct PutEnd {
  std::vector<PutEndItem> items;
  Later<std::vector<Kept>> kept{};  // per item, or none at all
  Later<std::vector<PutEndFurther>> further{};
  auto fields() { return std::tie(items, kept, further); }
};

struct PutRevokeItem {
  std::string key;
  Generation generation;
  auto fields() { return std::tie(key, generation); }
};

struct PutRevoke {
  std::vector<PutRevokeItem> items;
  auto fields() { return std::tie(items); }
};

struct Codes {
  std::vector<Code> codes;
  auto fields() { return std::tie(codes); }
};

// ---- reads

struct Keys {
  std::vector<std::string> keys;
  auto fields() { return std::tie(keys); }
};

struct Keep {
  std::vector<std::string> keys;
  Kept kept;
  auto fields() { return std::tie(keys, kept); }
};

// "Its objects go to other nodes, and nothing new comes to it", or no more.
struct Drain {
  InstanceId node;
  bool on = true;
  auto fields() { return std::tie(node, on); }
};

// What still lies there.
struct Drained {
  Code code = Code::kOk;
  uint64_t objects = 0;
  uint64_t bytes = 0;
  auto fields() { return std::tie(code, objects, bytes); }
};

struct Located {
  Code code = Code::kNotFound;
  uint32_t node = 0;  // index
  Generation generation;
  uint64_t offset = 0;
  uint64_t length = 0;
  uint32_t crc = 0;
  auto fields() { return std::tie(code, node, generation, offset, length, crc); }
};

// One more place of an item's bytes.
struct LocatedFurther {
  uint32_t item = 0;  // index; in order
  uint32_t node = 0;  // index
  uint64_t offset = 0;
  auto fields() { return std::tie(item, node, offset); }
};

struct LocateReply {
  std::vector<NodeRef> nodes;
  std::vector<Located> items;
  int64_t lease_ns = 0;
  Later<std::vector<LocatedFurther>> further{};
  auto fields() { return std::tie(nodes, items, lease_ns, further); }
};

struct ListRequest {
  std::string prefix;
  std::string start_after;
  uint32_t limit = 0;
  auto fields() { return std::tie(prefix, start_after, limit); }
};

struct ListItem {
  std::string key;
  uint64_t length = 0;
  Generation generation;
  InstanceId node;
  auto fields() { return std::tie(key, length, generation, node); }
};

struct ListReply {
  std::vector<ListItem> items;
  std::string resume_after;  // not empty: ask again from here
  auto fields() { return std::tie(items, resume_after); }
};

struct NamedCount {
  std::string name;
  uint64_t value = 0;
  auto fields() { return std::tie(name, value); }
};

struct PoolStatsReply {
  std::vector<NamedCount> counts;
  auto fields() { return std::tie(counts); }
};

// ---- client → node

struct SourcePart {
  uint32_t region = 0;  // of the sender
  uint64_t region_generation = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
  auto fields() { return std::tie(region, region_generation, offset, length); }
};

struct StorePullItem {
  std::string key;
  Generation generation;
  uint64_t length = 0;
  uint64_t tag = 0;
  std::vector<SourcePart> parts;
  Bytes inline_value;  // used when there are no parts
  auto fields() { return std::tie(key, generation, length, tag, parts, inline_value); }
};

struct StorePull {
  std::vector<StorePullItem> items;
  auto fields() { return std::tie(items); }
};

struct Placed {
  Code code = Code::kOk;
  uint64_t offset = 0;
  uint32_t crc = 0;
  auto fields() { return std::tie(code, offset, crc); }
};

struct StorePullReply {
  std::vector<Placed> items;
  auto fields() { return std::tie(items); }
};

// "Keep these entries where they are: this process looks at them." Same host only.
struct ViewOpen {
  uint64_t viewer = 0;  // as an earlier answer named it; 0: name one
  std::vector<Generation> generations;
  auto fields() { return std::tie(viewer, generations); }
};

struct Viewed {
  Code code = Code::kOk;
  uint64_t offset = 0;  // of the entry's header
  auto fields() { return std::tie(code, offset); }
};

// With a leave (io/leave.h) where the viewer is new: its pins last until it closes them or is dead.
struct ViewOpenReply {
  uint64_t viewer = 0;
  std::vector<Viewed> items;
  auto fields() { return std::tie(viewer, items); }
};

// One pin of each.
struct ViewClose {
  uint64_t viewer = 0;
  std::vector<Generation> generations;
  auto fields() { return std::tie(viewer, generations); }
};

}  // namespace moontide::wire
