// A client of a pool: puts, gets and the rest, in batches.
//
// put: PutStart at the master → each node pulls its objects from this process → PutEnd at the master. Of several
// replicas one that landed is enough; a node that fails costs its replica only. get: places (from the cache while their
// lease lives, or from the master) → header and payload of the nearest in one transfer → proof: the checksum of a whole
// object; of a range, the header once more after the last byte. A failed proof leads to the next place, after the last
// one the master is asked once more; when those fail too it is NOT_FOUND.
//
// Every operation has a deadline, one outcome and one quiet, and survives the loss of the master's connection or of the
// master until then.
//
// Thread: the reactor's. Callbacks run in later turns. Memory named by parts stays valid and, for puts, unchanged until
// the operation is quiet; parts that are not registered with the engine are, for that time.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "store/buffers.h"
#include "store/checksums.h"
#include "store/commits.h"
#include "store/hot_reader.h"
#include "store/locations.h"
#include "store/master_link.h"
#include "store/operation.h"
#include "store/options.h"
#include "store/view.h"

namespace moontide::store {

struct PutItem {
  std::string key;
  std::vector<Part> parts;
  Bytes value;  // instead of parts: the client keeps it
  catalog::Retention retention{};
  bool follows = false;  // a block of a prefix: worthless without the item before it, evicted before that
  // Puts it in the place of an object: of this one, or, empty, of whichever there is, or none.
  std::optional<Generation> replaces{};
};

// Bytes of an object; what is past its end is cut off.
struct ObjectRange {
  uint64_t offset = 0;
  uint64_t length = 0;
};

struct GetItem {
  std::string key;
  std::vector<Part> parts;             // together at least as long as what is read; what is beyond it is left alone
  std::optional<ObjectRange> range{};  // nothing: the whole object
};

// What a put waits for. kSync: afterwards every client sees the object. kAsync: the bytes are placed and this client
// sees it; others do when the master has been told, in the background.
enum class Commit : uint8_t { kSync, kAsync };

struct ClientCounters {
  uint64_t puts = 0, put_bytes = 0, puts_failed = 0, puts_inline = 0;
  uint64_t gets = 0, get_bytes = 0, gets_missed = 0, range_gets = 0;
  uint64_t views = 0;
  uint64_t located_from_cache = 0, proofs_failed = 0;
  uint64_t hot_gets = 0, hot_get_bytes = 0, hot_views = 0, hot_failed = 0;  // from the hot cache of this host
};

class ViewRequest;

class Client {
 public:
  // `engine` and `network` outlive the client. Connects in the background.
  Client(io::Reactor& reactor, io::Network& network, engine::Engine& engine, ClientOptions options);
  // Operations under way end with CLOSED; their quiet may come later. Pending async commits are lost: see
  // when_committed().
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Per item: the length, or ALREADY_EXISTS, TOO_LARGE, NO_SPACE, UNAVAILABLE (no master, no node), INVALID, DENIED,
  // STALE (removed while it was put; the object that it was to replace is not there any more), TIMED_OUT. What replaces
  // is committed in sync.
  // `placement` is that of all items.
  OperationRef put(std::vector<PutItem> items, Commit commit, OperationOptions options,
                   catalog::Placement placement = {});
  // Per item: the bytes that were read, or NOT_FOUND, INVALID (the parts are too short, a range begins past the end:
  // says both), UNAVAILABLE, TIMED_OUT.
  OperationRef get(std::vector<GetItem> items, OperationOptions options);

  // Views of objects in place. Per key NOT_FOUND, UNAVAILABLE, TIMED_OUT as in a get; UNSUPPORTED (it lies where this
  // process cannot look) and NO_SPACE (as many bytes are looked at as may be): to be read by get() instead.
  using ViewsDone = std::move_only_function<void(std::vector<Result<ViewRef>> views)>;
  void view(std::vector<std::string> keys, int64_t timeout_ns, ViewsDone done);

  using CodesDone = std::move_only_function<void(Result<std::vector<Code>> codes)>;
  // kOk or kNotFound per key.
  void exists(std::vector<std::string> keys, int64_t timeout_ns, CodesDone done);
  // kOk or kNotFound per key; afterwards no client sees what was there, whoever restarts. kUnavailable: it is out of
  // sight, but its node did not confirm in time, so a master that restarts may show it again.
  void remove(std::vector<std::string> keys, int64_t timeout_ns, CodesDone done);
  // kOk or kNotFound per key: how long these objects are kept, a ttl from now on.
  void keep(std::vector<std::string> keys, const catalog::Retention& retention, int64_t timeout_ns, CodesDone done);
  // The node's objects go to others, or no more do. What is left there: ask again until that is nothing. kNotFound: no
  // such node.
  using DrainedDone = std::move_only_function<void(Result<wire::Drained> left)>;
  void drain(const InstanceId& node, bool on, int64_t timeout_ns, DrainedDone done);
  // The lengths of the objects, where they are found: to make room before a get().
  using LengthsDone = std::move_only_function<void(Result<std::vector<Result<uint64_t>>> lengths)>;
  void lengths(std::vector<std::string> keys, int64_t timeout_ns, LengthsDone done);
  // The places of the objects, as the master sees them now: the first is the one that a get would begin with.
  using PlacesDone = std::move_only_function<void(Result<std::vector<Result<Location>>> places)>;
  void places(const std::vector<std::string>& keys, int64_t timeout_ns, PlacesDone done);
  // One page, in key order.
  void list(const std::string& prefix, const std::string& start_after, uint32_t limit, int64_t timeout_ns,
            std::move_only_function<void(Result<wire::ListReply>)> done);
  void pool_stats(int64_t timeout_ns, std::move_only_function<void(Result<wire::PoolStatsReply>)> done);
  // When no async commit is pending.
  void when_committed(io::Task task) { commits_.when_empty(std::move(task)); }

  const InstanceId& id() const { return id_; }
  bool connected() const { return master_.connected(); }
  const ClientCounters& counters() const { return counters_; }
  const Commits& commits() const { return commits_; }

 private:
  friend class PutOperation;
  friend class GetOperation;
  friend class ViewRequest;

  int64_t timeout_or_default(int64_t timeout_ns) const { return timeout_ns > 0 ? timeout_ns : options_.timeout_ns; }
  using EncodeKeys = std::function<Bytes(std::vector<std::string> keys)>;
  void ask_codes(
      uint16_t type, std::vector<std::string> keys, int64_t timeout_ns, CodesDone done,
      const EncodeKeys& encode = [](std::vector<std::string> keys) {
        return wire::encode(wire::Keys{std::move(keys)});
      });
  // Keys to the master in requests of bounded size; `each` gets the first index of a chunk and its answer.
  using LocateAnswer = std::move_only_function<void(Result<wire::LocateReply> reply)>;
  void locate(const std::vector<std::string>& keys, int64_t deadline_ns, LocateAnswer answer);
  // Per item of the answer; nothing: a miss. The nearest place comes first.
  std::vector<std::optional<Location>> locations_in(const wire::LocateReply& reply) const;
  // `each` gets the index of a key that was found and where it lies; `done` runs once, in a later turn.
  using EachLocation = std::function<void(size_t index, const Location& location)>;
  void locate_all(const std::vector<std::string>& keys, const std::vector<size_t>& indices, int64_t timeout_ns,
                  EachLocation each, std::move_only_function<void(Result<> outcome)> done);
  void remember(const std::string& key, const Location& location, int64_t expires_ns) {
    locations_.put(key, location, expires_ns);
  }
  // This client's own put, or a cached place.
  std::optional<Location> known_location(const std::string& key);
  void touched(const std::string& key);
  void flush_touches();
  void track(const OperationRef& operation);

  io::Reactor& reactor_;
  // Reports an operation that is over to the engine's observer where it took too long. `item`: the one to name.
  void tell_if_slow(const char* kind, const Operation& operation, size_t item, std::string_view key,
                    const std::string& peer);

  engine::Engine& engine_;
  const ClientOptions options_;
  const InstanceId id_;
  MasterLink master_;
  Commits commits_;
  LocationCache locations_;
  TemporaryRegions regions_;
  std::shared_ptr<ChecksumQueue> checksums_;
  std::shared_ptr<HeaderSlots> headers_;
  HotReader hot_;
  uint64_t next_token_ = 1;
  std::vector<std::string> touched_;
  io::Timer touch_timer_;
  std::set<OperationRef> operations_;
  std::shared_ptr<Viewing> viewing_;
  std::set<std::shared_ptr<ViewRequest>> view_requests_;
  ClientCounters counters_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace moontide::store
