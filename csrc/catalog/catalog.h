// The pool's metadata: which object lies where, what space is taken, what may be evicted.
//
// A pure state machine: no I/O, no clock, no random, no threads. Time is an argument and never goes back (an earlier
// `now_ns` counts as the latest seen); effects are values that the caller takes out (`take_orders`). The same calls
// give the same answers in the same order. Each call does a bounded amount of work, but for the end of an inventory and
// a lost node, which visit what lies on that node.
//
// The catalog owns no allocator: nodes place entries in their own memory and report where. It counts bytes by the same
// rule as they do (`entry_footprint`), and gives bytes back to placement only when the node says that they are free.
//
// The life of an object:
//
//     put_start ──► unfinished ──put_end──► committed ──evict, remove, ttl──► retiring ──retire_acked──► gone
//                       └──────────revoke, expiry, remove, lost term───────────►┘
//
// * A key has at most one live (unfinished or committed) object; any number of older generations may be retiring.
// * Nobody sees an object before it is committed, nor from the moment it is retiring: exists, list and locate agree.
// * Nobody sees an object, either, while an older generation of its key is retiring (`settled` is false): a master that
//   starts anew and hears of the older entry first cannot show it after the newer one was seen.
// * An object has one to kMaxReplicas replicas on as many nodes, of one generation and one checksum. A replica may
// retire
//   alone (evicted, lost, never landed): the object lives and shows as long as one is placed. When the object ends,
//   what still retires of it counts as the older entry that it then is.
// * A committed or retiring entry is forgotten only on the word of its node, or when the node is lost.
#pragma once

#include <algorithm>
#include <list>
#include <map>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "catalog/events.h"
#include "catalog/last_ops.h"
#include "catalog/node_table.h"
#include "catalog/object_table.h"
#include "catalog/types.h"

namespace moontide::catalog {

class Catalog {
 public:
  explicit Catalog(Limits limits, MakePolicy make_policy = policy_maker(kDefaultPolicy));
  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;

  // Everything is forgotten; nodes have to join again. The term must be higher than the current one and than every
  // term that nodes reported: generations of this reign are then newer than any that exists.
  void start_term(uint32_t term);
  uint32_t term() const { return term_; }

  // ---- nodes

  // A node connects: nothing is placed on it or retired from it before `node_ready`. kStale: the node has seen a later
  // term than this one, start a term above it first. kInvalid: the segment differs from what this instance lent before.
  Result<> node_join(const NodeId& id, const NodeJoin& join);
  // A piece of the inventory, in any order. Entries newer than the last operation on their key are adopted, of one key
  // the highest generation; the retirement of all others is ordered. One that was never confirmed waits for its
  // client's put_end like any open put. An error means that the node contradicts itself:
  // the caller drops the session.
  Result<> node_inventory(const NodeId& id, std::span<const InventoryEntry> entries, int64_t now_ns);
  // The inventory is complete: committed objects that were not in it are gone, and unacknowledged retires are ordered
  // again. The answer is the floor that the node has to apply before it takes a ticket again (see NodeOrder): puts
  // that ended while the node was given up are below it. Entries that landed since the inventory was read count only
  // when they are not below it.
  Result<Generation> node_ready(const NodeId& id);
  // The connection is gone. What the node holds stays located: it may be reachable for readers.
  void node_away(const NodeId& id);
  // The node is given up: its objects are misses, its open puts fail. If it joins again, what is still the last
  // operation on its key is adopted.
  void node_lost(const NodeId& id);

  // Its objects go to other nodes, as repairs do, and nothing is placed on it, until it is told otherwise, is lost, or
  // a term begins: bounded steps in tick(). What no other node has room for stays. kNotFound.
  Code drain(const NodeId& id, bool on);

  // At most one order per ready node, of at most `max_items` of each kind; each is handed out once per join.
  std::vector<NodeOrder> take_orders(size_t max_items);
  // The node has none of these any more and will refuse their tickets. Unknown generations are ignored: an
  // acknowledgement may come twice.
  void retire_acked(const NodeId& id, std::span<const Generation> generations);
  // Its segment keeps so many bytes of entries that are acknowledged: they are looked at in place. Comes with the
  // acknowledgement; the last word counts, until the node joins again.
  void node_holds(const NodeId& id, uint64_t bytes);
  // What became of orders to repair. A replica that landed counts when it is the object's, which may have ended since.
  void repaired(const NodeId& id, std::span<const RepairedItem> items, int64_t now_ns);

  // ---- puts

  // Bytes count from here on. A key with another open put answers kAlreadyExists until that put's deadline; after it
  // the stale put is cancelled, its entry is retired, and the caller's may start.
  std::vector<PutGrant> put_start(const ClientId& client, std::span<const PutRequest> requests, int64_t now_ns,
                                  const Placement& placement = {});
  // One place that landed is enough; those granted and not named are retired. kOk also when that generation is
  // committed already. kStale: removed, cancelled, lost or superseded: the put failed. The caller answers its client
  // when the key is `settled`: from then on everyone sees the object.
  std::vector<Code> put_end(const ClientId& client, std::span<const PutPlaced> placed, int64_t now_ns);
  // The client gives its own open put up. kStale: it is not open (any more), kAlreadyExists: it was committed.
  std::vector<Code> put_revoke(const ClientId& client, std::span<const PutRef> puts);

  // What follows happens at this time: for the calls that are not given one.
  void advance(int64_t now_ns) { now_ns_ = std::max(now_ns_, now_ns); }

  // ---- readers

  std::vector<Place> locate(std::span<const std::string> keys, int64_t now_ns);
  std::vector<bool> exists(std::span<const std::string> keys) const;
  void touch(std::span<const std::string> keys);
  // Ends committed objects and open puts; leases do not protect from it. The caller answers its client when `settled`:
  // only then does no node hold an entry that a newly started master could adopt.
  std::vector<Code> remove(std::span<const std::string> keys);
  // Says anew how long committed objects are kept, a ttl from now on. kNotFound; kInvalid: a bad key;
  // kUnavailable: its node is away and could not be told. What readers have
  // a lease of they may read until it ends, also when the new ttl ends before.
  std::vector<Code> keep(std::span<const std::string> keys, const Retention& retention, int64_t now_ns);
  // False while an entry of the key waits for its node's acknowledgement. (Keys count by hash: a collision, once in
  // 2^64, costs time.)
  bool settled(std::string_view key) const;
  // Visible objects in key order. Visits at most 4 × limit keys: `resume_after` continues.
  ListPage list(std::string_view prefix, std::string_view start_after, size_t limit) const;

  // Cancels puts past their deadline, ends objects past their ttl, evicts ahead of need and begins repairs of objects
  // that lack replicas (only where a node has room enough without eviction); bounded, so call it regularly. (An object
  // past its ttl is out of sight at once.)
  void tick(int64_t now_ns);

  // ---- events, of committed objects

  // Notes them from now on, at most `max` that nobody took; see EventLog.
  void note_events(size_t max) { events_.start(max); }
  void tell_events_anew() { events_.tell_anew(); }
  std::vector<Event> take_events(size_t max) { return events_.take(max, objects_); }
  const EventLog& events() const { return events_; }

  const Node* node(const NodeId& id) const { return nodes_.find(id); }
  const NodeTable& nodes() const { return nodes_; }
  Stats stats() const;
  // Recounts everything (slow, for tests): the error names the first disagreement.
  Result<> check_invariants() const;

 private:
  Generation next_generation() { return {term_, ++sequence_}; }
  size_t entries() const { return replica_count_ + retiring_count_; }
  Generation ticket_floor(const Node& node) const;

  // `live`: the object of that key, or null.
  PutGrant start_one(const ClientId& client, const PutRequest& request, const Placement& placement, Object* live);
  PutGrant grant(Object& object) const;
  Code place(const PutRequest& request, const Placement& placement, std::vector<Node*>& nodes);
  Code end_one(const ClientId& client, const PutPlaced& placed, Object* object);
  // kOk: the replica is marked as placed where the put says; kStale: the object has none there.
  Code land(Object& object, const PlacedAt& at);
  // Of an object of which some replicas are placed: it is seen from now on, those that are not placed are over.
  void commit(Object& object, const Retention& retention);
  // Tells the policies that the object was stored or read, and after what in the same batch.
  void use(Object& object);
  void use(Replica& replica);
  // The replica of this batch that was dealt with last on this node; null: none yet.
  Replica* last_of_batch(Node& node) const { return node.batch == batch_ ? node.last_of_batch : nullptr; }
  void pass(Object& object);
  void pass(Replica& replica);
  bool visible(const Object& object) const;
  static void tell_places(Object& object, Place& place);

  bool expired(const Object& object) const { return object.expires_ns <= now_ns_; }
  // The policy that has the replica, or will; null: it is pinned hard.
  static EvictionPolicy* policy_of(const Replica& replica);
  static bool evictable(const Replica& replica) { return replica.placed && replica.object->pin != Pin::kHard; }
  // Of a committed object: pins it or not, and starts its time anew.
  void keep_so(Object& object, const Retention& retention);
  // The same but for the policies.
  void retain(Object& object, const Retention& retention);
  void unretain(Object& object);
  // In the books of the replica's node.
  static void count_pin(const Replica& replica);
  static void discount_pin(const Replica& replica);
  // As a node is told: with the time that is left.
  Retention retention_of(const Object& object) const;

  Result<> take_reported(Node& node, const InventoryEntry& entry);
  void take_known(Replica& replica, const InventoryEntry& entry);
  void adopt(Node& node, const InventoryEntry& entry);
  // One more place of an object that was heard of before.
  void adopt_further(Node& node, Object& object, const InventoryEntry& entry);
  void open_put(Object& object, const ClientId& writer, uint64_t token);
  void close_put(Object& object);

  // catalog_replicas.cpp
  // Not placed yet; its bytes count.
  Replica& add_replica(Object& object, Node& node);
  void mark_placed(Replica& replica, uint64_t offset);
  void leave_unfinished(Replica& replica);
  // Takes it out of every table of its node, and from its object; its bytes no longer count.
  void detach(Replica& replica);
  // Moves the replica to its node's retiring ones, and the object with it where that was the last that it could live
  // by.
  void give_up(Replica& replica, Ending why = Ending::kLost);
  // An entry of the object's generation that is none of its replicas (any more) retires while the object lives.
  void retire_beside(Object& object, Node& node);
  // Notes that an entry of it is on its way out there, and forgets those that are gone.
  void leaves(Object& object, const Node& node);
  // Moves all its replicas to their nodes' retiring ones; the object is destroyed.
  void retire(Object& object, Ending why = Ending::kRemoved);
  void retire_replicas(Object& object);
  // The object has no replicas any more.
  void end(Object& object, Ending why);
  // The same, and it went with the node that had its last replica.
  void lose(Object& object);
  void add_retiring(Node& node, Generation generation, const Retiring& retiring);
  void end_retiring(const Retiring& retiring);
  void begin_repairs();
  void begin_repair(Object& object);
  static bool is_avoided(const Object& object, const Node& node);
  // Of the node: they are ordered no more, and what comes of those that were is not wanted.
  void drop_repairs(Node& node);
  void order_repairs(Node& node, NodeOrder& order, size_t max_items);
  // catalog_drain.cpp
  void drain_some();
  void drain_some(Node& node);
  // Replicas that are placed where nothing is drained.
  static size_t staying_count(const Object& object);
  static bool known_elsewhere(const Object& object);
  bool somebody_could_have(const Object& object) const;

  // After its replicas changed: how many are missing.
  void recount(Object& object);

  void make_room(uint64_t footprint, const Placement& placement);
  void expire();
  void evict_ahead();
  void evict_ahead(Node& node);
  // So much more does not make the node evict.
  bool has_spare_room(const Node& node, uint64_t footprint) const;
  struct EvictionGoal {
    uint64_t bytes = 0;           // to free at least
    size_t count = 0;             // replicas to end at least
    size_t keep = 0;              // replicas that stay whatever the goal
    bool all_or_nothing = false;  // when all candidates together do not free `bytes`, end none
  };
  // Orders the retirement of victims until the goal is met, as far as one step goes.
  void evict(Node& node, const EvictionGoal& goal);

  Result<> check_node(const Node& node) const;
  Result<> check_object(const Object& object) const;

  const Limits limits_;
  const MakePolicy make_policy_;
  uint32_t term_ = 0;
  uint64_t sequence_ = 0;
  int64_t now_ns_ = 0;
  uint64_t batch_ = 0;  // counts the calls that have batches of keys
  ObjectTable objects_;
  NodeTable nodes_;
  LastOps last_ops_;
  EventLog events_;
  std::list<OpenPut> open_puts_;  // the first to time out first
  // With the key: nodes that lie may report one generation for several.
  using Deadline = std::tuple<int64_t, Generation, std::string_view>;
  static Deadline expiry_of(const Object& object) { return {object.expires_ns, object.generation, object.key()}; }
  std::map<Deadline, Object*> expiries_;                  // of the committed objects that have a ttl
  std::unordered_map<uint64_t, uint32_t> retiring_keys_;  // key hash → retiring entries; looked up only
  size_t retiring_count_ = 0;
  size_t replica_count_ = 0;
  // The committed objects that have fewer replicas than are wanted.
  using Short = std::pair<Generation, std::string_view>;
  static Short short_of(const Object& object) { return {object.generation, object.key()}; }
  struct Lacking {
    Object* object;
    int64_t not_before_ns;  // of a repair
  };
  std::map<Short, Lacking> short_;
  uint64_t missing_ = 0;                             // replicas of those
  size_t repairing_ = 0;                             // replicas that are on their way to fill that
  std::pair<Generation, std::string> repair_after_;  // of `short_`: looked at last
  bool ever_drained_ = false;                        // `missing` of objects may be an older one
  bool above_count_ = false;                         // as Node::above_watermark, for the number of replicas
  Stats counters_;                                   // only the counters are kept; the gauges are summed on demand
};

}  // namespace moontide::catalog
