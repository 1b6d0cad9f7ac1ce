#include "catalog/eviction/reuse_model.h"

#include <algorithm>

namespace moontide::catalog {
namespace {

constexpr double kTicksPerSecond = 1e9 / (1 << 24);
constexpr size_t kStepsPerAdvance = 256;
// A kind is judged by its own samples once it has more than so many; likewise a pool against the first guess.
constexpr float kOwnSamples = 12;
constexpr float kPoolSamples = 12;
// The first guess: the same chance in each age, that is a rate that falls with age, as LRU has it; after eight minutes
// next to none.
constexpr float kFirstGuess = 0.04F;
constexpr float kFirstGuessLate = 0.0004F;
constexpr size_t kLate = 18;
// Counts are halved at so many: what was seen long ago fades.
constexpr float kFade = 4000;

constexpr std::array<Ticks, ReuseModel::kAges> make_ends() {
  std::array<Ticks, ReuseModel::kAges> ends{};
  double seconds = 0.5;
  for (Ticks& end : ends) {
    end = static_cast<Ticks>(seconds * kTicksPerSecond);
    seconds *= 1.5;
  }
  return ends;
}

constexpr std::array<Ticks, ReuseModel::kAges> kEnds = make_ends();

}  // namespace

ReuseModel::ReuseModel(const std::array<uint8_t, kKinds>& pools) : pools_(pools), index_(kSamples, kNone) {}

size_t ReuseModel::age_of(Ticks ticks) {
  size_t age = static_cast<size_t>(std::ranges::upper_bound(kEnds, ticks) - kEnds.begin());
  return std::min(age, kAges - 1);
}

Ticks ReuseModel::age_end(size_t age) { return age + 1 < kAges ? kEnds[age] : UINT32_MAX; }

void ReuseModel::follow(uint64_t key_hash, Kind kind, Ticks now) {
  if (!sampled(key_hash)) return;
  if (uint32_t place = find(key_hash); place != kNone) close(place);  // it counts from now
  if (end_ - begin_ == kSamples) make_room(now);
  uint32_t place = end_++ & (kSamples - 1);
  if (place >= ring_.size()) ring_.resize(place + 1);
  ring_[place] = {.key_hash = key_hash, .time = now, .next = chain_of(key_hash), .kind = kind, .open = true};
  chain_of(key_hash) = place;
}

// The oldest goes. If it is too young to have taught what there is to learn, fewer keys are followed from now on.
void ReuseModel::make_room(Ticks now) {
  Record& oldest = record(begin_);
  if (now - oldest.time < kEnds[kAges - 3]) {
    sample_mask_ = sample_mask_ << 1 | 1;
    for (uint32_t number = begin_; number != end_; ++number) {
      if (record(number).open && !sampled(record(number).key_hash)) close(number & (kSamples - 1));
    }
  } else if (now - oldest.time > 4 * kEnds[kAges - 3]) {
    sample_mask_ >>= 1;
  }
  if (oldest.open) close(begin_ & (kSamples - 1));
  ++begin_;
}

void ReuseModel::close(uint32_t place) {
  uint32_t* link = &chain_of(ring_[place].key_hash);
  while (*link != place) link = &ring_[*link].next;
  *link = ring_[place].next;
  ring_[place].open = false;
}

void ReuseModel::used(uint64_t key_hash, Ticks now) {
  if (!sampled(key_hash)) return;
  uint32_t place = find(key_hash);
  if (place == kNone) return;
  count(ring_[place].kind, age_of(now - ring_[place].time), true);
  close(place);
}

uint32_t ReuseModel::find(uint64_t key_hash) {
  uint32_t place = chain_of(key_hash);
  while (place != kNone && ring_[place].key_hash != key_hash) place = ring_[place].next;
  return place;
}

void ReuseModel::advance(Ticks now) {
  size_t steps = kStepsPerAdvance;
  for (size_t age = 0; age + 1 < kAges; ++age) {
    uint32_t& at = passed_[age];
    if (static_cast<int32_t>(at - begin_) < 0) at = begin_;
    for (; at != end_ && steps > 0; ++at, --steps) {
      const Record& passing = record(at);
      if (now - passing.time < kEnds[age]) break;
      if (passing.open) count(passing.kind, age, false);
    }
  }
}

void ReuseModel::count(Kind kind, size_t age, bool was_used) {
  Counts& counts = counts_[kind][age];
  (was_used ? counts.used : counts.unused) += 1;
  if (counts.used + counts.unused < kFade) return;
  counts.used /= 2;
  counts.unused /= 2;
}

void ReuseModel::worth(Worth& out) const {
  std::array<std::array<Counts, kAges>, kKinds> pooled{};
  for (size_t kind = 0; kind < kKinds; ++kind) {
    for (size_t age = 0; age < kAges; ++age) {
      Counts& pool = pooled[pools_[kind]][age];
      pool.used += counts_[kind][age].used;
      pool.unused += counts_[kind][age].unused;
    }
  }
  for (size_t kind = 0; kind < kKinds; ++kind) {
    std::array<float, kAges> chance{};
    for (size_t age = 0; age < kAges; ++age) {
      const Counts& pool = pooled[pools_[kind]][age];
      const Counts& own = counts_[kind][age];
      float guess = age < kLate ? kFirstGuess : kFirstGuessLate;
      guess = (pool.used + kPoolSamples * guess) / (pool.used + pool.unused + kPoolSamples);
      chance[age] = (own.used + kOwnSamples * guess) / (own.used + own.unused + kOwnSamples);
    }
    // Gittins' index: over all times to give up, the best ratio of expected uses to expected time held.
    for (size_t from = 0; from < kAges; ++from) {
      double left = 1, uses = 0, seconds = 0, best = 0;
      for (size_t age = from; age < kAges; ++age) {
        double width = (kEnds[age] - (age == 0 ? 0 : kEnds[age - 1])) / kTicksPerSecond;
        uses += left * chance[age];
        seconds += left * width * (1 - chance[age] / 2);
        left *= 1 - chance[age];
        best = std::max(best, uses / seconds);
      }
      out[kind][from] = static_cast<float>(best);
    }
  }
}

}  // namespace moontide::catalog
