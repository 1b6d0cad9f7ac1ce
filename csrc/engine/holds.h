// Holds: memory that one side keeps for another until the other has read it (prefill → decode). The holder names it by
// an id and attaches a payload that says where things lie; a peer claims it, renews it by heartbeats while it reads,
// and releases it. The answer to the release, "held until now", is what makes the bytes that were read count.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "io/reactor.h"

namespace moontide::engine {

enum class HoldEnd : uint8_t { kReleased = 1, kExpired = 2, kPeerLost = 3, kEnded = 4 };

class Holds {
 public:
  struct Claimed {
    const Bytes* payload;
    int64_t ttl_ns;
  };
  static constexpr size_t kIdBytesMax = 256;

  Holds(io::Reactor& reactor, size_t count_max) : count_max_(count_max), reactor_(reactor), sweep_(reactor) {}

  // INVALID (id, ttl), ALREADY_EXISTS, NO_SPACE (too many holds at a time).
  Result<> add(Bytes id, Bytes payload, int64_t ttl_ns);
  // By the holder itself. NOT_FOUND.
  Result<> end(ByteView id);
  // Those that ended since the last call, in the order in which they did.
  std::vector<std::pair<Bytes, HoldEnd>> drain();

  // By the peer at `link`. NOT_FOUND: not there (yet, or any more); DENIED: another peer has it; EXPIRED.
  Result<Claimed> claim(ByteView id, uint64_t link);
  void renew(ByteView id, uint64_t link);
  // OK: the memory was held without interruption until now. EXPIRED or NOT_FOUND: it was not.
  Result<> release(ByteView id, uint64_t link);
  void link_closed(uint64_t link);

  size_t size() const { return holds_.size(); }

 private:
  struct Hold;
  using Map = std::map<std::string, Hold, std::less<>>;  // by id
  using Due = std::multimap<int64_t, Map::iterator>;     // by deadline
  struct Hold {
    Bytes payload;
    int64_t ttl_ns;
    uint64_t claimed_by = 0;
    Due::iterator due = {};
  };

  Map::iterator find(ByteView id);
  void set_deadline(Map::iterator hold);
  void finish(Map::iterator hold, HoldEnd how);
  void arm();
  void expire();

  size_t count_max_;
  io::Reactor& reactor_;
  io::Timer sweep_;
  int64_t sweep_ns_ = 0;  // what it was set for
  Map holds_;
  Due due_;
  std::deque<std::pair<Bytes, HoldEnd>> ended_;
};

}  // namespace moontide::engine
