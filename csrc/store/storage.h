// A node's side of puts: it takes tickets, pulls the bytes into its segment, and obeys the master's orders about them.
// Knows no master: store/node has the session.
//
// Thread: the reactor's.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "engine/engine.h"
#include "store/buffers.h"
#include "store/checksums.h"
#include "store/options.h"
#include "store/segment.h"
#include "store/ticket.h"
#include "store/views.h"
#include "wire/store_messages.h"

namespace moontide::store {

class PullJob;
class RepairJob;

struct StorageCounters {
  uint64_t pulls = 0;
  uint64_t pulled_bytes = 0;
  uint64_t refused = 0;
  uint64_t failed = 0;
  uint64_t retired = 0;
  uint64_t repairs = 0;
  uint64_t repairs_failed = 0;
};

class Storage {
 public:
  using Retired = std::move_only_function<void(std::vector<Generation> generations)>;
  using Repaired = std::move_only_function<void(const wire::RepairedItem& item)>;

  // `retired` hears of every retire that was ordered: none of these is or becomes an entry, and their bytes are free.
  // It may run inside obey().
  // `retired` with nothing: bytes of entries that had ended came free (held_bytes() fell).
  // `repaired` hears of the outcome of every order to repair, maybe inside obey(); nothing when a join began meanwhile.
  Storage(engine::Engine& engine, std::shared_ptr<memory::Arena> arena, const SipKey& secret,
          const NodeOptions& options, Retired retired, Repaired repaired);
  ~Storage();

  // A client's request to pull. Answered when every item has its outcome.
  void serve(const engine::LinkRef& link, rpc::Incoming request, rpc::Responder responder);

  // A join begins: no ticket is taken and nothing becomes an entry until open_gate(). The inventory stands still.
  void close_gate(uint32_t term);
  void open_gate(Generation floor);
  bool gate_is_open() const { return gate_open_; }

  void obey(const wire::NodeOrder& order);

  // Up to `max` entries with generations above `after`, in order.
  wire::Inventory inventory_after(Generation after, size_t max) const;

  Views& views() { return views_; }
  const Views& views() const { return views_; }
  const Segment& segment() const { return segment_; }
  const StorageCounters& counters() const { return counters_; }
  size_t jobs() const { return jobs_.size() + repair_jobs_.size(); }

 private:
  friend class PullJob;
  friend class RepairJob;

  // The job's use of the generation is over: published, or its extent is free.
  void pull_over(Generation generation);
  void forget(const std::shared_ptr<PullJob>& job) { jobs_.erase(job); }
  void forget(const std::shared_ptr<RepairJob>& job) { repair_jobs_.erase(job); }

  engine::Engine& engine_;
  const NodeOptions& options_;
  Segment segment_;
  Views views_;
  TicketGate gate_;
  ChecksumQueue checksums_;
  HeaderSlots headers_;
  Retired retired_;
  Repaired repaired_;
  bool gate_open_ = false;
  std::set<std::shared_ptr<PullJob>> jobs_;
  std::set<std::shared_ptr<RepairJob>> repair_jobs_;
  // Ordered by the master that this node has joined, and not called off: only these may become entries without a
  // ticket.
  std::set<Generation> repairs_;
  std::set<Generation> pulling_;
  std::set<Generation> retire_when_over_;          // ordered while it was pulled
  std::vector<std::shared_ptr<PullJob>> at_gate_;  // have their bytes, wait for open_gate()
  StorageCounters counters_;
};

}  // namespace moontide::store
