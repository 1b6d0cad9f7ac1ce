// The replay of traces, against replays written as simply as can be.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "base/random.h"
#include "catalog/eviction/replay.h"

using namespace moontide;
using namespace moontide::catalog;

namespace {

Trace random_trace(uint64_t seed) {
  SeededRandom random(seed);
  std::vector<int64_t> times;
  std::vector<size_t> lengths;
  std::vector<uint64_t> ids;
  for (int i = 0; i < 200; ++i) {
    times.push_back(int64_t{i} * 1'000'000'000);
    std::vector<uint64_t> path;
    for (uint64_t node = random.below(60) + 1; node > 0; node /= 2) path.insert(path.begin(), node);
    lengths.push_back(path.size());
    ids.insert(ids.end(), path.begin(), path.end());
  }
  return *make_trace(times, lengths, ids);
}

// One list, the coldest first; a request's blocks are touched from the last to the first.
uint64_t naive_lru(const Trace& trace, size_t capacity) {
  std::vector<uint32_t> list;
  uint64_t hits = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    auto request = trace.request(i);
    for (uint32_t block : request) {
      if (std::ranges::find(list, block) == list.end()) break;
      ++hits;
    }
    for (size_t k = request.size(); k-- > 0;) {
      std::erase(list, request[k]);
      list.push_back(request[k]);
    }
    while (list.size() > capacity) list.erase(list.begin());
  }
  return hits;
}

uint64_t naive_optimum(const Trace& trace, size_t capacity) {
  std::set<uint32_t> stored;
  uint64_t hits = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    auto request = trace.request(i);
    for (uint32_t block : request) {
      if (!stored.contains(block)) break;
      ++hits;
    }
    stored.insert(request.begin(), request.end());
    auto next_use = [&](uint32_t block) {
      for (size_t later = i + 1; later < trace.size(); ++later) {
        if (std::ranges::find(trace.request(later), block) != trace.request(later).end()) return later;
      }
      return SIZE_MAX;
    };
    auto depth = [&](uint32_t block) {
      for (size_t any = 0;; ++any) {
        auto found = std::ranges::find(trace.request(any), block);
        if (found != trace.request(any).end()) return found - trace.request(any).begin();
      }
    };
    while (stored.size() > capacity) {
      stored.erase(std::ranges::max(stored, {},
                                    [&](uint32_t block) { return std::tuple(next_use(block), depth(block), block); }));
    }
  }
  return hits;
}

}  // namespace

TEST_CASE("replays agree with naive ones, and nobody beats the optimum") {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Trace trace = random_trace(seed);
    for (size_t capacity : {1, 3, 8, 20, 60}) {
      CAPTURE(seed);
      CAPTURE(capacity);
      uint64_t optimum = replay_optimum(trace, capacity);
      CHECK(optimum == naive_optimum(trace, capacity));
      CHECK(replay(trace, capacity, *policy_maker("lru")()) == naive_lru(trace, capacity));
      for (std::string_view name : policy_names()) {
        CHECK(replay(trace, capacity, *policy_maker(name)()) <= optimum);
        // Everything fits: all policies find what there is to find.
        CHECK(replay(trace, 1000, *policy_maker(name)()) == replay_optimum(trace, 1000));
      }
    }
  }
}

TEST_CASE("a block counts only with its whole prefix") {
  std::vector<uint64_t> ids = {1, 2, 3, 9, 2, 3, 1, 2, 3};
  std::vector<size_t> lengths = {3, 3, 3};
  Trace trace = *make_trace({0, 1, 2}, lengths, ids);
  CHECK(trace.unique_blocks == 4);
  CHECK(replay(trace, 10, *policy_maker("lru")()) == 3);  // of the second request none: its first block is new
}

TEST_CASE("a trace that does not fit together is refused") {
  std::vector<uint64_t> ids = {1, 2, 3};
  auto made = [&](std::vector<int64_t> times, std::vector<size_t> lengths) { return make_trace(times, lengths, ids); };
  CHECK(made({0, 1}, {1, 2}).has_value());
  CHECK(made({0, 1}, {1, 1}).error().code == Code::kInvalid);
  CHECK(made({0, 1}, {1, 3}).error().code == Code::kInvalid);
  CHECK(made({0, 1}, {SIZE_MAX, 4}).error().code == Code::kInvalid);
  CHECK(made({1, 0}, {1, 2}).error().code == Code::kInvalid);
  CHECK(made({0}, {1, 2}).error().code == Code::kInvalid);
}
