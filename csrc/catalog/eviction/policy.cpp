#include "catalog/eviction/policy.h"

#include <array>

#include "catalog/eviction/lru.h"
#include "catalog/eviction/prefix.h"
#include "catalog/eviction/s3_fifo.h"
#include "catalog/eviction/tiny_lfu.h"

namespace moontide::catalog {
namespace {

constexpr auto kNames = std::to_array<std::string_view>({"prefix", "lru", "s3fifo", "tinylfu"});

}  // namespace

std::span<const std::string_view> policy_names() { return kNames; }

MakePolicy policy_maker(std::string_view name) {
  if (name == "lru") return [] { return std::make_unique<LruPolicy>(); };
  if (name == "s3fifo") return [] { return std::make_unique<S3FifoPolicy>(); };
  if (name == "tinylfu") return [] { return std::make_unique<TinyLfuPolicy>(); };
  if (name == "prefix") return [] { return std::make_unique<PrefixPolicy>(); };
  return {};
}

}  // namespace moontide::catalog
