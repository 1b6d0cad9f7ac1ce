#include "store/hot_cache.h"

#include <algorithm>

#include "base/hash.h"

namespace moontide::store {
namespace {

constexpr size_t kPullsMax = 16;       // under way
constexpr uint32_t kReadsToPull = 2;   // from afar, lately
constexpr uint64_t kLargestShare = 4;  // an entry takes at most this part of the cache
constexpr size_t kEvictionsMax = 256;  // for one entry
constexpr size_t kScan = 64;
constexpr uint64_t kBytesPerSlot = 4096;
constexpr size_t kBucketsMin = 64;
constexpr const char* kPolicy = "s3fifo";

uint64_t key_hash(std::string_view key) { return hash64(as_bytes(key)); }

}  // namespace

HotCache::HotCache(engine::Engine& engine, const Segment& own, const NodeOptions& options,
                   std::shared_ptr<memory::Arena> entries, std::shared_ptr<memory::Arena> index)
    : engine_(engine),
      own_(own),
      options_(options),
      segment_(std::move(entries)),
      views_(engine, segment_, options, [] {}),
      index_arena_(std::move(index)),
      index_({index_arena_->data(), index_arena_->size() / kHotBucketBytes * kHotBucketBytes}),
      headers_(engine),
      checksums_(engine.reactor()),
      policy_(catalog::policy_maker(kPolicy)()) {
  reads_.reserve(index_.buckets() * kHotSlots);
}

Result<std::unique_ptr<HotCache>> HotCache::create(engine::Engine& engine, const InstanceId& node, const Segment& own,
                                                   const NodeOptions& options) {
  auto make = [&](uint64_t bytes) {
    return options.hot_private ? memory::Arena::create_private(bytes) : memory::Arena::create(bytes, "moontide-hot");
  };
  const uint64_t buckets = std::max<uint64_t>(options.hot_bytes / kBytesPerSlot / kHotSlots, kBucketsMin);
  TRY(auto entries, make(options.hot_bytes));
  TRY(auto index, make(buckets * kHotBucketBytes));
  std::unique_ptr<HotCache> cache(new HotCache(engine, own, options, entries, index));
  TRY(cache->entries_region_,
      engine.add_region(entries->data(), entries->size(), memory::kReadable, wire::hot_region_name(node), entries));
  TRY(cache->index_region_,
      engine.add_region(index->data(), index->size(), memory::kReadable, wire::hot_index_name(node), index));
  return cache;
}

HotCache::~HotCache() {
  alive_.reset();
  pulls_.clear();
  for (const memory::RegionRef& region : {entries_region_, index_region_}) {
    if (!region) continue;
    [[maybe_unused]] auto removed = engine_.remove_region(region->id, {});  // the registry keeps the arena
  }
}

wire::HotFacts HotCache::facts() const {
  return {.capacity_bytes = segment_.extents().size(),
          .used_bytes = segment_.extents().used(),
          .entries = entries_.size(),
          .hits = counters_.hits,
          .hit_bytes = counters_.hit_bytes,
          .misses = counters_.misses};
}

// ---- what readers tell

void HotCache::serve(const rpc::Incoming& request, rpc::Responder responder) {
  auto message = wire::decode<wire::HotReads>(request.payload);
  if (!message) return responder.refuse(message.error());
  if (message->hits.size() + message->afar.size() > wire::kStoreItemsMax) {
    return responder.refuse({Code::kInvalid, "too many reads in one message"});
  }
  for (const wire::HotHit& hit : message->hits) read_here(hit);
  for (wire::RepairItem& item : message->afar) read_afar(std::move(item));
  responder.reply(Bytes{});
}

void HotCache::read_here(const wire::HotHit& hit) {
  ++counters_.hits;
  counters_.hit_bytes += hit.bytes;
  auto found = entries_.find(hit.generation);
  if (found == entries_.end()) return;
  policy_->used(*found->second, {.now_ns = engine_.reactor().now_ns(), .bytes = found->second->bytes});
}

void HotCache::read_afar(wire::RepairItem item) {
  ++counters_.misses;
  const uint64_t hash = key_hash(item.key);
  reads_.count(hash);
  if (reads_.uses(hash) < kReadsToPull || !is_wanted(item)) return;
  pull(std::move(item));
}

bool HotCache::is_wanted(const wire::RepairItem& item) {
  if (!catalog::key_valid(item.key) || item.length > catalog::kMaxObjectBytes) return false;
  if (catalog::entry_footprint(item.length) > segment_.extents().size() / kLargestShare) return false;
  if (pulls_.size() >= kPullsMax || pulls_.contains(item.generation)) return false;
  if (own_.find(item.generation) != nullptr) return false;
  // A key has one entry, the newest that was read.
  auto known = by_key_.find(key_hash(item.key));
  return known == by_key_.end() || known->second < item.generation;
}

// ---- entries

void HotCache::pull(wire::RepairItem item) {
  const Generation generation = item.generation;
  const auto offset = make_room(item.length);
  if (!offset) {
    ++counters_.pulls_failed;
    return;
  }
  Pull& pull = pulls_[generation];
  pull.offset = offset;
  pull.item = std::move(item);
  pull.copy = std::make_shared<EntryCopy>(engine_, headers_, checksums_, pull.item,
                                          segment_.payload(*offset, pull.item.length));
  auto done = [this, alive = std::weak_ptr(alive_), generation](Code code) {
    if (!alive.expired()) pulled(generation, code);
  };
  auto quiet = [this, alive = std::weak_ptr(alive_), generation] {
    if (alive.expired()) return;
    auto over = pulls_.extract(generation);
    if (over.mapped().offset) segment_.discard(*over.mapped().offset);
  };
  const auto copy = pull.copy;
  copy->start(options_.connect_timeout_ns, std::move(done), std::move(quiet));
}

void HotCache::pulled(Generation generation, Code code) {
  Pull& pull = pulls_.at(generation);
  if (code == Code::kOk) return publish(pull);
  ++counters_.pulls_failed;
}

void HotCache::publish(Pull& pull) {
  const wire::RepairItem& item = pull.item;
  const uint64_t hash = key_hash(item.key);
  if (auto older = by_key_.find(hash); older != by_key_.end()) {
    if (!(older->second < item.generation)) return;  // a newer one came in meanwhile
    drop(older->second);
  }
  auto entry = std::make_unique<Entry>();
  entry->key_hash = hash;
  entry->generation = item.generation;
  entry->bytes = catalog::entry_footprint(item.length);
  segment_.publish(item.generation, item.key, item.length, *pull.offset, item.crc);
  while (auto crowded = index_.add(item.generation, *pull.offset)) drop(*crowded);
  policy_->used(*entry, {.now_ns = engine_.reactor().now_ns(), .bytes = entry->bytes});
  entries_.emplace(item.generation, std::move(entry));
  by_key_[hash] = item.generation;
  pull.offset.reset();  // it is the entry's
  ++counters_.pulls;
  counters_.pulled_bytes += item.length;
}

std::optional<uint64_t> HotCache::make_room(uint64_t length) {
  auto offset = segment_.allocate(length);
  for (size_t tries = 0; !offset && tries < kEvictionsMax && evict_one(); ++tries) offset = segment_.allocate(length);
  return offset;
}

bool HotCache::evict_one() {
  std::optional<Generation> coldest;
  policy_->pick(kScan, engine_.reactor().now_ns(), [&](catalog::Evictable& one) {
    const Generation generation = static_cast<Entry&>(one).generation;
    if (segment_.find(generation)->pins > 0) return catalog::Verdict::kKeep;
    coldest = generation;
    return catalog::Verdict::kTakeLast;
  });
  if (!coldest) return false;
  drop(*coldest);
  ++counters_.evicted;
  return true;
}

void HotCache::drop(Generation generation) {
  auto over = entries_.extract(generation);
  MT_CHECK(!over.empty(), "no hot entry " + generation.text());
  index_.remove(generation);
  segment_.retire(generation);  // a reader under way fails its proof
  policy_->erased(*over.mapped());
  by_key_.erase(over.mapped()->key_hash);
}

}  // namespace moontide::store
