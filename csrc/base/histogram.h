// How often which value was seen: durations in nanoseconds, or any whole numbers. Log-linear buckets, eight to a power
// of two: what a bucket holds differs by less than an eighth, so that a quantile is off by at most 6.25 % of itself.
// Values up to 2^40 (18 minutes in nanoseconds); what is longer counts in the last bucket.
//
// Bounded (2.4 KiB), no allocation, a few nanoseconds per record. Thread: none of its own.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace moontide {

class Histogram {
 public:
  static constexpr int kSubBits = 3;  // 2^3 buckets to a power of two
  static constexpr int kTopBits = 40;
  static constexpr size_t kBuckets = (static_cast<size_t>(kTopBits - kSubBits) + 1) << kSubBits;

  void record(int64_t value) {
    const uint64_t seen = value > 0 ? static_cast<uint64_t>(value) : 0;
    ++buckets_[index(seen)];
    ++count_;
    sum_ += seen;
    max_ = std::max(max_, seen);
  }
  void merge(const Histogram& other);

  uint64_t count() const { return count_; }
  uint64_t sum() const { return sum_; }
  uint64_t max() const { return max_; }
  // The value that a share of `q` (from 0 to 1) is not above: the middle of its bucket, and never above max().
  // 0 where nothing was seen.
  uint64_t quantile(double q) const;

  // Bucket i holds values from lower(i) on and below lower(i + 1).
  std::span<const uint64_t> buckets() const { return buckets_; }
  static constexpr uint64_t lower(size_t i) {
    constexpr size_t kPart = size_t{1} << kSubBits;
    if (i < kPart) return i;
    const size_t octave = (i >> kSubBits) - 1;
    return static_cast<uint64_t>(kPart + (i & (kPart - 1))) << octave;
  }
  static constexpr size_t index(uint64_t value) {
    if (value < (uint64_t{1} << kSubBits)) return static_cast<size_t>(value);
    if (value >> kTopBits != 0) return kBuckets - 1;
    const int octave = std::bit_width(value) - 1 - kSubBits;
    return (static_cast<size_t>(octave) << kSubBits) + static_cast<size_t>(value >> octave);
  }

 private:
  std::array<uint64_t, kBuckets> buckets_{};
  uint64_t count_ = 0, sum_ = 0, max_ = 0;
};

}  // namespace moontide
