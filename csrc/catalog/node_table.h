// Nodes, the bytes of their segments, and the entries on their way out. Single-threaded.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "catalog/object_table.h"
#include "catalog/tickets.h"
#include "catalog/types.h"

namespace moontide::catalog {

enum class NodeState : uint8_t {
  kJoining,  // connected, inventory not complete: nothing is placed or retired on it
  kReady,
  kAway,  // not connected: what it holds is still located, nothing is placed or retired on it
};

// An entry that nobody may see any more and whose bytes the node has not given back yet.
struct Retiring {
  uint64_t key_hash = 0;
  uint64_t footprint = 0;
  // The object of this very generation lives on another node: that it may show does not depend on this entry.
  bool beside_live = false;
};

struct Node {
  NodeId id;
  std::string address;
  NodeState state = NodeState::kJoining;
  uint32_t join_round = 0;  // counts joins: an object not vouched for in the current round is gone
  uint64_t capacity_bytes = 0;
  uint64_t unfinished_bytes = 0;
  uint64_t committed_bytes = 0;
  uint64_t retiring_bytes = 0;
  uint64_t held_bytes = 0;  // of entries that ended, as the node says: somebody still looks at them
  PointerIndex<ByGeneration> replicas;
  size_t unfinished_count = 0;              // those of `replicas` that are not placed
  Tickets tickets;                          // those of them for which this reign gave a ticket
  std::set<Generation> repairs;             // those of them that are on their way from another node
  std::map<Generation, Retiring> retiring;  // ends with the node's acknowledgement
  std::deque<Generation> to_retire;         // of `retiring`: not handed out since the node became ready
  std::vector<Generation> to_confirm;       // has all replicas that are unconfirmed, the newest last; and some are gone
  std::deque<Generation> to_repair;         // of `repairs`: not handed out yet
  uint64_t hard_bytes = 0;                  // of `committed_bytes`: pinned hard
  size_t hard_count = 0;
  size_t soft_count = 0;
  std::unique_ptr<EvictionPolicy> policy;       // over the committed objects that are not pinned
  std::unique_ptr<EvictionPolicy> soft_policy;  // over those that are pinned softly
  bool above_watermark = false;                 // from the high watermark down to the low one
  bool draining = false;                        // nothing is placed here, and what lies here goes elsewhere
  size_t drained_to = 0;                        // cursor of `replicas`: how far that came
  Replica* last_of_batch = nullptr;             // that the batch number `batch` dealt with; null: none, or it is gone
  uint64_t batch = 0;

  uint64_t used_bytes() const { return unfinished_bytes + committed_bytes + retiring_bytes + held_bytes; }
  uint64_t free_bytes() const { return capacity_bytes - used_bytes(); }
  // What no eviction frees.
  uint64_t unevictable_bytes() const { return hard_bytes + held_bytes; }
  // The bytes that are in use once every ordered retire is acknowledged.
  uint64_t lasting_bytes() const { return unfinished_bytes + committed_bytes + held_bytes; }
  // Replicas that are placed here.
  size_t committed_count() const { return replicas.size() - unfinished_count; }
  size_t evictable_count() const { return committed_count() - hard_count; }

  // Null: it has none of that object.
  Replica* replica(const Generation& generation) const {
    return replicas.find(generation, ByGeneration::hash_of(generation));
  }
  void confirm(Replica& replica);
};

class NodeTable {
 public:
  using Map = std::map<NodeId, Node>;

  Node* find(const NodeId& id);
  const Node* find(const NodeId& id) const;
  Node& insert(const NodeId& id);
  void erase(const NodeId& id) { map_.erase(id); }
  void clear() { map_.clear(); }
  size_t size() const { return map_.size(); }
  Map::iterator begin() { return map_.begin(); }
  Map::iterator end() { return map_.end(); }
  Map::const_iterator begin() const { return map_.begin(); }
  Map::const_iterator end() const { return map_.end(); }

  // Ready nodes that have `footprint` bytes free, each once: first those that are preferred, then the least full after
  // taking so much. As many as are asked for and as there are.
  std::vector<Node*> choose(uint64_t footprint, const Placement& placement);
  // Of the nodes for which `may` holds, the ready one that is least full after taking `footprint` bytes; null when none
  // has that much free.
  template <class May>
  Node* least_full(uint64_t footprint, May may) {
    Node* best = nullptr;
    for (auto& [id, node] : map_) {
      if (!takes(node, footprint) || !may(node)) continue;
      if (best == nullptr || emptier(node, *best, footprint)) best = &node;
    }
    return best;
  }
  // The ready node on which the fewest further bytes have to be evicted for `footprint`, open puts and hard pins
  // staying; null when none could ever be emptied far enough.
  Node* cheapest_to_clear(uint64_t footprint, const Placement& placement);
  // The ready node with the most objects that may be evicted; null when there is none.
  Node* most_objects();
  // Zero: there is no node, or the placement allows none.
  uint64_t largest_segment(bool ready_only, const Placement& placement) const;

 private:
  static bool takes(const Node& node, uint64_t footprint) {
    return node.state == NodeState::kReady && !node.draining && node.free_bytes() >= footprint;
  }
  static bool emptier(const Node& a, const Node& b, uint64_t footprint);

  Map map_;
};

}  // namespace moontide::catalog
