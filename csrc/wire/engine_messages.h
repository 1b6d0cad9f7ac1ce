// What two engines say to each other on the control channel of a link.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/id.h"
#include "wire/codec.h"

namespace moontide::wire {

inline constexpr uint16_t kProtocolMin = 1;
inline constexpr uint16_t kProtocolMax = 5;
// From this version on requests may say what they are called (Traced).
inline constexpr uint16_t kProtocolTraced = 2;
// From this version on a pool's master tells its clients all places of an object.
inline constexpr uint16_t kProtocolReplicas = 3;
// From this version on a node tells what of its segment is looked at, though its object ended.
inline constexpr uint16_t kProtocolViews = 4;
// From this version on nodes say that they keep a hot cache of their host, and clients ask for it.
inline constexpr uint16_t kProtocolHotCache = 5;

enum EngineMessage : uint16_t {
  kProbe = 1,         // request: who are you, which protocols, how are you reached on one host
  kHello = 2,         // request: this connection is the control channel of a new link
  kDataStream = 3,    // request: this connection is a data stream of a link; after the reply it carries no messages
  kRegions = 4,       // notice: regions that can be reached now
  kRegionGone = 5,    // notice
  kReady = 6,         // notice: which transports this side can use on the link
  kTransport = 7,     // notice between the endpoints of one transport, with descriptors
  kFence = 8,         // request: drop a data stream; the reply says that nothing of it lands any more
  kPull = 9,          // request: read from my memory into yours
  kPullCancel = 10,   // notice
  kPing = 11,         // request
  kBye = 12,          // notice: the link is over here, nothing of it lands here any more; close it
  kResume = 13,       // request: this connection goes on as the control channel of a link
  kNotify = 14,       // request: for the application; the reply says that it waits there
  kLeave = 15,        // notice, with a descriptor: write that region yourself while you keep it
  kHoldClaim = 20,    // request
  kHoldRenew = 21,    // notice
  kHoldRelease = 22,  // request
  kApplicationFirst = 256,  // from here on: whoever uses the engine
};

struct ProtocolRange {
  uint16_t min = kProtocolMin;
  uint16_t max = kProtocolMax;
  auto fields() { return std::tie(min, max); }
};

struct Probe {
  ProtocolRange protocol;
  auto fields() { return std::tie(protocol); }
};

struct ProbeReply {
  ProtocolRange protocol;
  InstanceId instance;
  std::string boot_id;     // equal on one host
  std::string local_name;  // "unix:@…", empty: none
  auto fields() { return std::tie(protocol, instance, boot_id, local_name); }
};

struct Hello {
  ProtocolRange protocol;
  InstanceId instance;
  std::string address;                    // where this side listens
  bool local = false;                     // over the local socket, with the generation table's descriptor
  std::vector<InstanceId> superseded;     // tokens of earlier links that must be over before this one counts
  Later<std::vector<std::string>> rails;  // where else this side listens: one address per network device
  auto fields() { return std::tie(protocol, instance, address, local, superseded, rails); }
};

struct HelloReply {
  uint16_t protocol = 0;
  InstanceId instance;
  InstanceId token;  // of the link
  Later<std::vector<std::string>> rails;
  auto fields() { return std::tie(protocol, instance, token, rails); }
};

// The connection before is given up; `received`: how many messages of the other side came over the link so far.
struct Resume {
  InstanceId token;
  uint64_t received = 0;
  auto fields() { return std::tie(token, received); }
};

struct Resumed {
  uint64_t received = 0;
  auto fields() { return std::tie(received); }
};

struct DataStreamHello {
  InstanceId token;
  std::string transport;
  uint64_t id = 0;
  auto fields() { return std::tie(token, transport, id); }
};

struct RegionKey {
  std::string transport;
  uint64_t chunk_bytes = 0;  // of all chunks but the last
  std::vector<Bytes> chunks;
  auto fields() { return std::tie(transport, chunk_bytes, chunks); }
};

struct RegionInfo {
  uint32_t id = 0;
  uint64_t generation = 0;
  uint64_t length = 0;
  uint8_t access = 0;
  uint32_t word = 0;
  std::string name;
  std::vector<RegionKey> keys;
  auto fields() { return std::tie(id, generation, length, access, word, name, keys); }
};

struct Regions {
  std::vector<RegionInfo> regions;
  auto fields() { return std::tie(regions); }
};

struct RegionGone {
  uint32_t id = 0;
  auto fields() { return std::tie(id); }
};

struct Leave {
  uint32_t region = 0;
  uint64_t generation = 0;
  auto fields() { return std::tie(region, generation); }
};

struct PathState {
  std::string transport;
  std::string reason;  // empty: usable
  auto fields() { return std::tie(transport, reason); }
};

// Twice from each side: which transports it has at all, then which of them work on this link.
struct Ready {
  std::vector<PathState> paths;
  bool settled = false;
  auto fields() { return std::tie(paths, settled); }
};

struct TransportMessage {
  std::string transport;
  Bytes payload;
  auto fields() { return std::tie(transport, payload); }
};

struct Fence {
  std::string transport;
  uint64_t stream = 0;
  auto fields() { return std::tie(transport, stream); }
};

// From the puller's peer (`source`, a region of the sender) into a region of the receiver.
struct PullItem {
  uint32_t source = 0;
  uint64_t source_generation = 0;
  uint64_t source_offset = 0;
  uint32_t target = 0;
  uint64_t target_generation = 0;
  uint64_t target_offset = 0;
  uint64_t length = 0;
  auto fields() {
    return std::tie(source, source_generation, source_offset, target, target_generation, target_offset, length);
  }
};

struct Pull {
  uint64_t id = 0;  // of the sender's choice, for kPullCancel
  std::vector<PullItem> items;
  auto fields() { return std::tie(id, items); }
};

// A request and the name that its caller gave to what it is for. To peers of older versions goes the request alone.
template <Message T>
struct Traced {
  T request;
  std::string trace;
  auto fields() { return std::tie(request, trace); }
};

template <Message T>
Bytes encode_traced(T request, std::string trace, uint16_t version) {
  if (version < kProtocolTraced) return encode(request);
  return encode(Traced<T>{std::move(request), std::move(trace)});
}

// INVALID as decode().
template <Message T>
Result<Traced<T>> decode_traced(ByteView bytes, uint16_t version) {
  if (version >= kProtocolTraced) return decode<Traced<T>>(bytes);
  TRY(T request, decode<T>(bytes));
  return Traced<T>{std::move(request), {}};
}

struct PullCancel {
  uint64_t id = 0;
  auto fields() { return std::tie(id); }
};

struct Empty {
  uint8_t version = 1;
  auto fields() { return std::tie(version); }
};

struct Notify {
  Bytes payload;
  auto fields() { return std::tie(payload); }
};

struct HoldId {
  Bytes id;
  auto fields() { return std::tie(id); }
};

struct HoldClaimed {
  Bytes payload;
  uint64_t ttl_ns = 0;  // a duration; the holder renews well within it
  auto fields() { return std::tie(payload, ttl_ns); }
};

}  // namespace moontide::wire
