#include "catalog/last_ops.h"

#include <algorithm>

namespace moontide::catalog {

void LastOps::ended(uint64_t key_hash, Generation generation) {
  auto [it, fresh] = endings_.try_emplace(key_hash, generation);
  if (!fresh) {
    if (it->second >= generation) return;
    it->second = generation;
  }
  order_.emplace_back(key_hash, generation);
  while (order_.size() > max_keys_) {
    auto [oldest_hash, oldest] = order_.front();
    order_.pop_front();
    forgotten_ = std::max(forgotten_, oldest);
    auto old = endings_.find(oldest_hash);
    if (old != endings_.end() && old->second == oldest) endings_.erase(old);
  }
}

bool LastOps::newer(uint64_t key_hash, Generation generation) const {
  if (generation <= forgotten_) return false;
  auto it = endings_.find(key_hash);
  return it == endings_.end() || generation > it->second;
}

void LastOps::clear() {
  endings_.clear();
  order_.clear();
  forgotten_ = {};
}

}  // namespace moontide::catalog
