// Histogram against the sorted values themselves.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/histogram.h"
#include "base/random.h"

namespace moontide {
namespace {

uint64_t exact_quantile(std::vector<uint64_t> values, double q) {
  std::ranges::sort(values);
  auto rank = static_cast<size_t>(std::max(std::ceil(q * static_cast<double>(values.size())), 1.0));
  return values[rank - 1];
}

TEST_CASE("histogram: every value lies in its bucket, buckets join without gaps") {
  for (size_t i = 0; i + 1 < Histogram::kBuckets; ++i) {
    REQUIRE(Histogram::lower(i) < Histogram::lower(i + 1));
    REQUIRE(Histogram::index(Histogram::lower(i)) == i);
    REQUIRE(Histogram::index(Histogram::lower(i + 1) - 1) == i);
  }
  SeededRandom random(7);
  for (int n = 0; n < 20'000; ++n) {
    uint64_t value = random.next() >> random.below(64);
    size_t i = Histogram::index(value);
    REQUIRE(i < Histogram::kBuckets);
    REQUIRE(Histogram::lower(i) <= value);
    if (i + 1 < Histogram::kBuckets) REQUIRE(value < Histogram::lower(i + 1));
  }
  CHECK(Histogram::index(UINT64_MAX) == Histogram::kBuckets - 1);
}

TEST_CASE("histogram: quantiles are within a sixteenth of the exact ones") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    SeededRandom random(seed);
    std::vector<uint64_t> values(1 + random.below(400));
    const auto spread = static_cast<int>(25 + random.below(38));
    Histogram histogram;
    uint64_t sum = 0;
    for (uint64_t& value : values) {
      value = random.next() >> spread >> random.below(8);
      histogram.record(static_cast<int64_t>(value));
      sum += value;
    }
    CHECK(histogram.count() == values.size());
    CHECK(histogram.sum() == sum);
    CHECK(histogram.max() == std::ranges::max(values));
    for (double q : {0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0}) {
      CAPTURE(q);
      const auto exact = static_cast<double>(exact_quantile(values, q));
      const auto seen = static_cast<double>(histogram.quantile(q));
      CHECK(seen >= exact * (1 - 1.0 / 16));
      CHECK(seen <= exact * (1 + 1.0 / 16));
    }
  }
}

TEST_CASE("histogram: merging two is seeing the values of both") {
  SeededRandom random(3);
  Histogram one, other, both;
  for (int n = 0; n < 1000; ++n) {
    auto value = static_cast<int64_t>(random.next() >> (24 + random.below(30)));
    (n % 3 == 0 ? one : other).record(value);
    both.record(value);
  }
  one.merge(other);
  CHECK(std::ranges::equal(one.buckets(), both.buckets()));
  CHECK(one.count() == both.count());
  CHECK(one.sum() == both.sum());
  CHECK(one.max() == both.max());
}

TEST_CASE("histogram: nothing, nonsense, and what is too long") {
  Histogram histogram;
  CHECK(histogram.quantile(0.5) == 0);
  histogram.record(-5);
  CHECK(histogram.quantile(1.0) == 0);
  histogram.record(INT64_MAX);
  CHECK(histogram.count() == 2);
  CHECK(histogram.quantile(1.0) == static_cast<uint64_t>(INT64_MAX));
}

}  // namespace
}  // namespace moontide
