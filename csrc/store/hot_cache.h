// A node's hot cache: copies of objects that lie on other hosts and that processes of this host read again and again.
// They read it as any memory of a node (store/hot_reader.h): no message of theirs is awaited, and no lock or state of
// theirs lies in it. The node is its only writer.
//
// A copy is known by its object's generation, so it can never be of another put; whether that generation is still the
// key's is the master's word, which readers ask for. It is no replica: no inventory has it, the master counts none of
// its bytes, and it ends with the node.
//
// Thread: the reactor's.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>

#include "catalog/eviction/policy.h"
#include "catalog/eviction/tiny_lfu.h"
#include "engine/engine.h"
#include "store/entry_copy.h"
#include "store/hot_index.h"
#include "store/options.h"
#include "store/segment.h"
#include "store/views.h"
#include "wire/hot_messages.h"

namespace moontide::store {

struct HotCounters {
  uint64_t hits = 0;  // as readers told
  uint64_t hit_bytes = 0;
  uint64_t misses = 0;  // reads from afar that readers told of
  uint64_t pulls = 0;
  uint64_t pulled_bytes = 0;
  uint64_t pulls_failed = 0;
  uint64_t evicted = 0;
};

class HotCache {
 public:
  // Lends what the cache lies in to the readers of this host. `own`: the node's segment, of which nothing is copied.
  // `private_arena`: memory that other processes cannot map. Errors as Engine::add_region, NO_SPACE.
  static Result<std::unique_ptr<HotCache>> create(engine::Engine& engine, const InstanceId& node, const Segment& own,
                                                  const NodeOptions& options);
  ~HotCache();

  // What a process of this host has read (wire::HotReads). What is read from afar again comes in here, in the
  // background.
  void serve(const rpc::Incoming& request, rpc::Responder responder);

  // Pins of entries that processes of this host look at in place. One that is looked at is not evicted; one that a
  // newer generation of its key replaces ends, and its bytes stay.
  Views& views() { return views_; }

  wire::HotFacts facts() const;
  const Segment& segment() const { return segment_; }
  const HotCounters& counters() const { return counters_; }
  size_t pulls_under_way() const { return pulls_.size(); }

 private:
  struct Entry : catalog::Evictable {
    Generation generation;
    uint64_t bytes = 0;
  };
  struct Pull {
    std::shared_ptr<EntryCopy> copy;
    wire::RepairItem item;
    std::optional<uint64_t> offset;  // of an extent that is this pull's until it is an entry
  };

  HotCache(engine::Engine& engine, const Segment& own, const NodeOptions& options,
           std::shared_ptr<memory::Arena> entries, std::shared_ptr<memory::Arena> index);
  void read_here(const wire::HotHit& hit);
  void read_afar(wire::RepairItem item);
  bool is_wanted(const wire::RepairItem& item);
  void pull(wire::RepairItem item);
  void pulled(Generation generation, Code code);
  void publish(Pull& pull);
  // Room for it, if need be by ending entries that are colder.
  std::optional<uint64_t> make_room(uint64_t length);
  bool evict_one();
  void drop(Generation generation);

  engine::Engine& engine_;
  const Segment& own_;
  const NodeOptions& options_;
  Segment segment_;
  Views views_;
  std::shared_ptr<memory::Arena> index_arena_;
  HotIndex index_;
  memory::RegionRef entries_region_, index_region_;
  HeaderSlots headers_;
  ChecksumQueue checksums_;
  std::unique_ptr<catalog::EvictionPolicy> policy_;
  catalog::UseSketch reads_;  // from afar, by key
  std::map<Generation, std::unique_ptr<Entry>> entries_;
  std::unordered_map<uint64_t, Generation> by_key_;  // hash of the key → its one entry
  std::map<Generation, Pull> pulls_;
  HotCounters counters_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace moontide::store
