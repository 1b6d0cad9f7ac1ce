// Learns when entries of a kind are used again: the chance by age, from samples that it follows whether or not the
// store still has them. So it does not mistake its own evictions for a lack of interest.
//
// Plain counters and a bounded ring of samples (half a megabyte at most); nothing depends on what the store can hold.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace moontide::catalog {

using Kind = uint8_t;

// A tick is about 17 ms. The count wraps after two years; differences do not care.
using Ticks = uint32_t;
constexpr Ticks ticks_of(int64_t ns) { return static_cast<Ticks>(ns >> 24); }

class ReuseModel {
 public:
  static constexpr size_t kKinds = 60;
  static constexpr size_t kAges = 24;  // each lasts half as long again as the one before it, the first half a second
  static constexpr uint32_t kSamples = 16384;

  // Kinds of one pool lend each other experience.
  explicit ReuseModel(const std::array<uint8_t, kKinds>& pools);

  static size_t age_of(Ticks ticks);
  static Ticks age_end(size_t age);  // the first tick of the next one

  // Follows this key until it is used again, if it is one of the sample.
  void follow(uint64_t key_hash, Kind kind, Ticks now);
  void used(uint64_t key_hash, Ticks now);
  // Counts what came of age, in bounded steps.
  void advance(Ticks now);
  // For each kind and age: the most uses per second that holding such an entry for some while is expected to give.
  using Worth = std::array<std::array<float, kAges>, kKinds>;
  void worth(Worth& out) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Record {
    uint64_t key_hash = 0;
    Ticks time = 0;
    uint32_t next = kNone;  // place of the next one of its chain in `index_`
    Kind kind = 0;
    bool open = false;
  };
  struct Counts {
    float used = 0;
    float unused = 0;
  };

  static uint64_t mixed(uint64_t key_hash) { return key_hash * 0x9E3779B97F4A7C15u; }
  bool sampled(uint64_t key_hash) const { return (mixed(key_hash) & sample_mask_) == 0; }
  uint32_t& chain_of(uint64_t key_hash) { return index_[mixed(key_hash) >> 32 & (kSamples - 1)]; }
  Record& record(uint32_t number) { return ring_[number & (kSamples - 1)]; }
  uint32_t find(uint64_t key_hash);  // its place in the ring
  void make_room(Ticks now);
  void close(uint32_t place);
  void count(Kind kind, size_t age, bool was_used);

  std::array<uint8_t, kKinds> pools_;
  std::vector<Record> ring_;
  std::vector<uint32_t> index_;
  uint32_t begin_ = 0, end_ = 0;          // numbers of records; they grow and may wrap
  std::array<uint32_t, kAges> passed_{};  // records before this number have left the age behind
  uint64_t sample_mask_ = 0;              // all, every other key, every fourth ...
  std::array<std::array<Counts, kAges>, kKinds> counts_{};
};

}  // namespace moontide::catalog
