// What the parts of a pool can be told. Parsed and checked by whoever makes them; here they are values.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "catalog/eviction/policy.h"
#include "catalog/types.h"

namespace moontide::store {

struct MasterOptions {
  std::string listen = "127.0.0.1:0";
  // A term that no earlier master of this pool can have passed, as far as whoever starts this one knows. The term is
  // one above it, and above those that nodes report.
  uint32_t elector_term = 0;
  catalog::Limits catalog{};
  std::string eviction{catalog::kDefaultPolicy};  // the name of the policy
  // The longest lease that an earlier master of this pool may have granted. Until it is over after the start, puts and
  // removes are not finished: a node that has not come back yet may hold the entry that they end, and a client may
  // still read it by such a lease. 0: there was none.
  int64_t earlier_lease_ns = kSecond;
  int64_t tick_ns = 20 * kMillisecond;
  int64_t session_timeout_ns = 5 * kSecond;  // a session that is silent for so long is over
  int64_t node_grace_ns = 10 * kSecond;      // a node that is away for so long is given up
  int64_t settle_timeout_ns = 5 * kSecond;   // how long an answer waits for nodes to let go of older entries
  size_t sessions_max = 8192;
  size_t strangers_max = 1024;  // sessions without a hello; beyond it the oldest ends
  size_t waiting_max = 65536;   // answers that wait
  size_t events_max = 0;        // kept until they are taken, see catalog::EventLog; 0: none are noted
};

struct NodeOptions {
  std::string master;
  int64_t connect_timeout_ns = 2 * kSecond;
  int64_t request_timeout_ns = 5 * kSecond;
  int64_t keep_alive_ns = kSecond;
  size_t jobs_max = 1024;        // pulls under way; beyond it OVERLOADED
  size_t refused_max = 1 << 16;  // remembered tickets that must not be honoured
  // Views of processes of this host; what is beyond is copied.
  size_t viewers_max = 1024;
  size_t viewers_per_peer = 16;
  uint64_t view_percent_per_peer = 25;  // of the segment's bytes
  uint64_t view_percent = 50;
  // What is read again and again from other hosts is kept for this one's processes, in so much memory beside the
  // segment; 0: nothing is.
  uint64_t hot_bytes = 0;
  bool hot_private = false;  // in memory that other processes cannot map: for the simulation
};

struct ClientOptions {
  std::string master;
  int64_t connect_timeout_ns = 2 * kSecond;
  int64_t keep_alive_ns = kSecond;
  int64_t timeout_ns = 10 * kSecond;      // of an operation that names none
  int64_t no_node_wait_ns = 2 * kSecond;  // how long a put waits for a node to appear
  uint64_t inline_bytes = 4096;           // values up to this ride in the message
  size_t requests_max = 65536;            // to the master, waiting or under way
  size_t locations_max = 65536;           // cached
  size_t commits_max = 65536;             // of commit="async", not acknowledged yet; beyond it commits are awaited
  bool hot_anywhere = false;              // read hot caches of other hosts too: for the simulation
};

}  // namespace moontide::store
