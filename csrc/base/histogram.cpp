#include "base/histogram.h"

#include <cmath>

namespace moontide {

void Histogram::merge(const Histogram& other) {
  for (size_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  sum_ += other.sum_;
  max_ = std::max(max_, other.max_);
}

uint64_t Histogram::quantile(double q) const {
  if (count_ == 0) return 0;
  const double share = std::clamp(q, 0.0, 1.0) * static_cast<double>(count_);
  const uint64_t rank = std::max<uint64_t>(static_cast<uint64_t>(std::ceil(share)), 1);
  uint64_t below = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    below += buckets_[i];
    if (below < rank) continue;
    if (i + 1 == kBuckets) return max_;  // it has no upper end
    return std::min(lower(i) + (lower(i + 1) - lower(i)) / 2, max_);
  }
  return max_;
}

}  // namespace moontide
