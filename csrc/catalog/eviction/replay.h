// Replays a trace of requests against a policy, and against the clairvoyant optimum.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "catalog/eviction/policy.h"

namespace moontide::catalog {

// Requests in the order of their times; the blocks of request i are blocks[ends[i-1], ends[i]), numbered from 0 without
// gaps. A block stands for its whole prefix: it follows the same block in each request.
struct Trace {
  std::vector<int64_t> times_ns;
  std::vector<size_t> ends;
  std::vector<uint32_t> blocks;
  uint32_t unique_blocks = 0;

  size_t size() const { return ends.size(); }
  std::span<const uint32_t> request(size_t i) const {
    size_t begin = i == 0 ? 0 : ends[i - 1];
    return {blocks.data() + begin, ends[i] - begin};
  }
};

// Checks the lengths and numbers the blocks, whatever their ids are. kInvalid says what does not fit.
Result<Trace> make_trace(std::vector<int64_t> times_ns, std::span<const size_t> lengths,
                         std::span<const uint64_t> block_ids);

// Blocks that were found: a block counts only while the whole prefix before it was found. What was missed is stored,
// a victim going for each block when `capacity` are stored; a request's own blocks stay until it is over.
uint64_t replay(const Trace& trace, size_t capacity, EvictionPolicy& policy);

// The same for a policy that knows the future: of all blocks, the one whose next use is farthest goes, of one prefix
// the last. A prefix is used no later than what follows it, so leaves go first by themselves.
uint64_t replay_optimum(const Trace& trace, size_t capacity);

}  // namespace moontide::catalog
