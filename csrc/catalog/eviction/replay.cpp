#include "catalog/eviction/replay.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>

namespace moontide::catalog {
namespace {

uint64_t mixed(uint64_t value) {  // splitmix64
  value += 0x9E3779B97F4A7C15u;
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
  value = (value ^ value >> 27) * 0x94D049BB133111EBu;
  return value ^ value >> 31;
}

}  // namespace

Result<Trace> make_trace(std::vector<int64_t> times_ns, std::span<const size_t> lengths,
                         std::span<const uint64_t> block_ids) {
  if (times_ns.size() != lengths.size()) return fail(Code::kInvalid, "not one time per request");
  if (!std::ranges::is_sorted(times_ns))
    return fail(Code::kInvalid, "the requests are not in the order of their times");
  if (block_ids.size() >= kNoSlot) return fail(Code::kInvalid, "too many blocks");
  Trace trace;
  trace.times_ns = std::move(times_ns);
  size_t end = 0;
  for (size_t length : lengths) {
    if (length > block_ids.size() - end) return fail(Code::kInvalid, "the requests have more blocks than there are");
    trace.ends.push_back(end += length);
  }
  if (end != block_ids.size()) return fail(Code::kInvalid, "there are more blocks than the requests have");
  std::unordered_map<uint64_t, uint32_t> numbers;
  trace.blocks.reserve(block_ids.size());
  for (uint64_t id : block_ids) {
    trace.blocks.push_back(numbers.try_emplace(id, static_cast<uint32_t>(numbers.size())).first->second);
  }
  trace.unique_blocks = static_cast<uint32_t>(numbers.size());
  return trace;
}

uint64_t replay(const Trace& trace, size_t capacity, EvictionPolicy& policy) {
  std::vector<Evictable> entries(trace.unique_blocks);
  for (uint32_t i = 0; i < trace.unique_blocks; ++i) entries[i].key_hash = mixed(i);
  uint64_t hits = 0;
  size_t stored = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    const Evictable* parent = nullptr;
    bool found = true;
    for (uint32_t block : trace.request(i)) {
      Evictable& entry = entries[block];
      bool there = entry.slot != kNoSlot;
      found = found && there;
      if (found) ++hits;
      if (!there) ++stored;
      policy.used(entry, {.now_ns = trace.times_ns[i], .parent = parent});
      parent = &entry;
    }
    while (stored > capacity) {
      Evictable* victim = nullptr;
      policy.pick(SIZE_MAX, trace.times_ns[i], [&](Evictable& entry) {
        victim = &entry;
        return Verdict::kTakeLast;
      });
      MT_CHECK(victim != nullptr, "no victim among " + std::to_string(stored));
      policy.erased(*victim);
      --stored;
    }
  }
  for (Evictable& entry : entries) {
    if (entry.slot != kNoSlot) policy.erased(entry);
  }
  return hits;
}

uint64_t replay_optimum(const Trace& trace, size_t capacity) {
  // next[k]: the request that uses the block at place k again.
  constexpr uint32_t kNever = UINT32_MAX;
  std::vector<uint32_t> next(trace.blocks.size()), seen(trace.unique_blocks, kNever);
  size_t place = trace.blocks.size();
  for (size_t i = trace.size(); i-- > 0;) {
    size_t begin = place - trace.request(i).size();
    for (size_t k = begin; k < place; ++k) next[k] = std::exchange(seen[trace.blocks[k]], static_cast<uint32_t>(i));
    place = begin;
  }
  using Rank = std::tuple<uint32_t, uint32_t, uint32_t>;  // next use, depth, block
  std::set<Rank> ranks;
  std::vector<Rank> rank_of(trace.unique_blocks);
  std::vector<bool> there(trace.unique_blocks);
  uint64_t hits = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    bool found = true;
    uint32_t depth = 0;
    for (uint32_t block : trace.request(i)) {
      found = found && there[block];
      if (found) ++hits;
      if (there[block]) ranks.erase(rank_of[block]);
      there[block] = true;
      ranks.insert(rank_of[block] = {next[place++], depth++, block});
    }
    while (ranks.size() > capacity) {
      there[std::get<2>(*ranks.rbegin())] = false;
      ranks.erase(std::prev(ranks.end()));
    }
  }
  return hits;
}

}  // namespace moontide::catalog
