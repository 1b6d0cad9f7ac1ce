// What a host's hot cache, its readers and the master say to each other; spoken from kProtocolHotCache on.
#pragma once

#include "wire/store_messages.h"

namespace moontide::wire {

enum HotMessage : uint16_t {
  kHotCaches = 370,    // client → master
  kHotFacts = 371,     // node → master, notice
  kHotReads = 372,     // client → node
  kHotViewOpen = 373,  // as kViewOpen and kViewClose, of the cache's entries
  kHotViewClose = 374,
};

// What a node keeps its cache in: regions of these names. The second has the index, see store/hot_index.h.
inline std::string hot_region_name(const InstanceId& node) { return "hot:" + node.text(); }
inline std::string hot_index_name(const InstanceId& node) { return "hot-index:" + node.text(); }

// Nodes that keep a hot cache.
struct HotCachesReply {
  std::vector<NodeRef> nodes;
  auto fields() { return std::tie(nodes); }
};

// A node's cache, again and again. Its counters begin anew with the node.
struct HotFacts {
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t entries = 0;
  uint64_t hits = 0;  // as readers told
  uint64_t hit_bytes = 0;
  uint64_t misses = 0;
  auto fields() { return std::tie(capacity_bytes, used_bytes, entries, hits, hit_bytes, misses); }
};

struct HotHit {
  Generation generation;
  uint64_t bytes = 0;
  auto fields() { return std::tie(generation, bytes); }
};

// What a process of the host has read since it told last: from the cache, and from afar (where that lies, as the master
// named it).
struct HotReads {
  std::vector<HotHit> hits;
  std::vector<RepairItem> afar;
  auto fields() { return std::tie(hits, afar); }
};

}  // namespace moontide::wire
