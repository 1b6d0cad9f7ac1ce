// The transport contract. A transport moves slices between this process and one peer per endpoint; the engine decides
// what goes where, retries and reports. tests/contract runs one suite over every transport.
//
// Thread: all calls come under the engine's lock (one driver at a time), except Endpoint::copy, see there.
// A transport opens no control sockets: it talks to its twin over the link's control channel (LinkContext::send) and
// asks the link for data streams.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/id.h"
#include "base/status.h"
#include "io/leave.h"
#include "io/network.h"
#include "memory/region.h"

namespace moontide::transport {

enum class Op : uint8_t { kRead = 1, kWrite = 2 };

// What a peer's transport made of its region, see memory::Attachment.
struct RemoteKey {
  std::string transport;
  uint64_t chunk_bytes = 0;  // 0: one key for all
  std::vector<Bytes> chunks;
};

// A peer's region as this side knows it.
struct RemoteRegion {
  uint32_t id = 0;
  uint64_t generation = 0;
  uint64_t length = 0;
  uint8_t access = 0;  // memory::Access bits
  uint32_t word = 0;   // in the peer's generation table
  std::string name;
  std::vector<RemoteKey> keys;
  bool live = true;  // false once the peer unregistered it or the link is over
  // Its owner's leave to write it from here. Whoever writes keeps a reference meanwhile; with the last one it is given
  // back, and the owner goes by that.
  std::shared_ptr<io::HeldLeave> leave;

  // The key for the chunk that `offset` < length lies in; null where the transport has none.
  const Bytes* key(std::string_view transport, uint64_t offset = 0) const;
  // How many bytes from `offset` on lie in one chunk of every transport.
  uint64_t contiguous(uint64_t offset) const;
};

// The same for a region of this process.
uint64_t contiguous(const memory::Region& region, uint64_t offset);

using RemoteRegionRef = std::shared_ptr<RemoteRegion>;

// One contiguous copy: `length` bytes between local memory and `offset` in the remote region. Lies in one chunk of
// each.
struct Piece {
  std::byte* local = nullptr;
  uint64_t offset = 0;
  uint64_t length = 0;
};

class Endpoint;
struct Slice;

// Whoever posted a slice hears of it here, in turns of the reactor or inside the endpoint's calls.
class SliceOwner {
 public:
  virtual ~SliceOwner() = default;
  // Bytes of the slice moved (some of them; also reported before completion, so that deadlines on progress work).
  virtual void progressed(Slice& slice, uint64_t bytes) = 0;
  // Exactly once per posted slice, with the outcome *and* quiet: from here on nothing of the transport touches the
  // slice's local memory, no byte of it can land at the target any more, and a successful write is visible there.
  virtual void completed(Slice& slice, Result<> outcome) = 0;
  // What the request is called that the slice is for; empty: it has no name.
  virtual std::string trace() const { return {}; }
};

// The unit of scheduling: pieces of one direction on one remote region.
struct Slice {
  Op op = Op::kRead;
  RemoteRegionRef remote;
  std::span<const Piece> pieces;  // the owner's, valid as long as the slice
  uint64_t length = 0;            // of all pieces
  SliceOwner* owner = nullptr;
  Endpoint* endpoint = nullptr;  // where it is posted now
  uint64_t tag = 0;              // the endpoint's own
  uint32_t attempts = 0;
  size_t index = 0;     // in the owner's list
  bool urgent = false;  // must not wait behind bulk: in a queue, or on the wire
};

// What a link gives to its endpoints. Outlives them.
class LinkContext {
 public:
  virtual ~LinkContext() = default;
  virtual io::Reactor& reactor() = 0;
  virtual memory::Registry& registry() = 0;
  // True on the side that opened the link: the one that makes data streams.
  virtual bool initiator() const = 0;
  // Both ends run on one host and share a local socket namespace.
  virtual bool same_host() const = 0;
  virtual bool same_instance() const = 0;
  virtual InstanceId peer_instance() const = 0;
  // Of the peer process (same host only).
  virtual const io::PeerCredentials* credentials() const = 0;
  // The peer's generation words (same host only).
  virtual std::shared_ptr<memory::GenerationView> generations() const = 0;
  // To the endpoint of the same transport at the other side, in order. Descriptors only on the same host.
  virtual void send(std::string_view transport, Bytes message, const std::vector<int>& fds) = 0;
  // Pairs of devices, one here and one at the peer, between which bytes can go: at least 1.
  virtual uint32_t rails() const { return 1; }
  // Initiator only: connects data stream `id` (unique at the endpoint, its own choice) over `rail`; the twin gets it by
  // Endpoint::accepted().
  virtual void open_stream(std::string_view endpoint, uint32_t rail, uint64_t id,
                           std::move_only_function<void(Result<std::unique_ptr<io::Stream>>)> opened) = 0;
  // Asks the other side to do nothing more with what came over data stream `id` of this link and to close it; `fenced`
  // runs when it said so, or when the link ended.
  virtual void fence_stream(std::string_view transport, uint64_t id, std::move_only_function<void()> fenced) = 0;
};

class Endpoint {
 public:
  // Everything posted is quiet when the destructor returns; completions of what was outstanding are *not* called.
  virtual ~Endpoint() = default;

  // Unique on the link; "tcp", "tcp.1" for the endpoints of one transport on several rails.
  virtual std::string_view name() const = 0;
  // Endpoints of one transport share the slices that wait for it.
  virtual std::string_view transport() const { return name(); }
  // True: copies in the calling thread by copy(); else post() and completed().
  virtual bool synchronous() const { return false; }

  // Sets up (exchanges keys, probes); `ready` runs once, with the reason where this link cannot use the transport.
  virtual void start(std::move_only_function<void(Result<>)> ready) = 0;

  // Can this endpoint do `op` on `remote`? (shm: only regions in arenas that are mapped here.)
  virtual bool reaches(const RemoteRegion& remote, Op op) const = 0;

  // Synchronous endpoints: moves the pieces now, in the calling thread. Any thread, several at a time, without the
  // lock; the caller keeps pins on the local memory and references on the endpoint and, for a write, on the leave.
  // STALE when the remote region's generation had changed by the time the last byte was copied; PEER_LOST, DENIED as
  // the system says.
  virtual Result<> copy(const RemoteRegion& remote, Op op, std::span<const Piece> pieces);

  // Synchronous endpoints: where the region lies in this process, for reading, as long as the result is kept; null
  // where it cannot be looked at in place. It says nothing about who writes there meanwhile.
  virtual std::shared_ptr<const std::byte> view(const RemoteRegion& remote) const {
    (void)remote;
    return nullptr;
  }

  // Asynchronous endpoints: how many slices can be taken now (back-pressure).
  virtual size_t room(bool urgent) const {
    (void)urgent;
    return SIZE_MAX;
  }
  // Takes the slice; it is completed() exactly once, later or inside this call. The slice stays alive until then.
  virtual void post(Slice& slice);
  // Wants it over: completed() follows as soon as it is quiet, with CANCELED unless it was done already.
  virtual void cancel(Slice& slice);

  // The path does not deliver: everything posted ends with UNAVAILABLE as soon as it is quiet.
  virtual void reset(const Error& cause) { (void)cause; }
  // Tries whether the path works again; `working` runs once, unless the endpoint is closed first.
  virtual void revive(std::move_only_function<void(Result<>)> working) { working({}); }

  // A region of this process was registered (its announcement to the peer follows), one of the peer's is gone.
  virtual void region_added(const memory::Region& region) { (void)region; }
  virtual void region_gone(const RemoteRegion& remote) { (void)remote; }

  // A message of the twin, a data stream of the twin.
  virtual void message(Bytes payload, std::vector<io::Fd> fds);
  virtual void accepted(uint64_t stream_id, std::unique_ptr<io::Stream> stream);
  // The twin asks to fence: afterwards nothing that came over that stream lands here any more.
  virtual void fence_stream(uint64_t stream_id);

  // This side gives the link up: completes with `cause` all that is quiet now, and keeps the rest (writes that the peer
  // may still be landing) until close(). True when something is kept.
  virtual bool retire(const Error& cause) {
    close(cause);
    return false;
  }

  // The link is over: completes everything outstanding with `cause`; after it returns the endpoint touches nothing.
  virtual void close(const Error& cause) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;

  // The longest range that one registration may have; a longer region is attached in chunks of so many bytes.
  virtual uint64_t max_region_bytes() const { return UINT64_MAX; }

  // What peers need to reach this chunk of `region` by this transport; empty: nothing needed; nullopt: it cannot be
  // reached so. An error fails the registration of the whole region, and what was attached of it is detached.
  virtual Result<std::optional<Bytes>> attach(const memory::Region& region, uint64_t offset, uint64_t length) = 0;
  // Takes back what attach() gave as `key`; called when nothing uses the region any more, before its memory is handed
  // back. Chunks that are attached when the transport ends are not detached before.
  virtual void detach(const memory::Region& region, uint64_t offset, const Bytes& key) {
    (void)region, (void)offset, (void)key;
  }

  // True when keys are given to peers on the same host only (they hold addresses).
  virtual bool same_host_only() const { return true; }

  // True when each rail of a link gets an endpoint of its own; else there is one, on rail 0.
  virtual bool per_rail() const { return false; }

  // Null with a reason where the transport cannot serve such a link at all (other host, forbidden by configuration).
  virtual Result<std::shared_ptr<Endpoint>> connect(LinkContext& link, uint32_t rail) = 0;
};

using TransportList = std::vector<std::unique_ptr<Transport>>;

}  // namespace moontide::transport
