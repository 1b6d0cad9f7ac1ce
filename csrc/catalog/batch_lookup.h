// Finds the objects of a batch of keys, one after the other. The tables are far larger than the caches: what the next
// few keys need is on its way while one is dealt with.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "catalog/object_table.h"

namespace moontide::catalog {

template <class Table>
class BatchLookup {
 public:
  // `key_of` gives the key of an item. The items stay where they are, and so does the table.
  template <class Items, class KeyOf>
  BatchLookup(Table& table, const Items& items, KeyOf key_of) : table_(table) {
    hashes_.reserve(items.size());
    for (const auto& item : items) hashes_.push_back(ObjectTable::hash_of(std::invoke(key_of, item)));
  }

  // The object of item `i`, which has this key. Best asked in order.
  auto* find(size_t i, std::string_view key) {
    if (i % kAhead == 0) table_.prefetch(std::span(hashes_).subspan(i, std::min(kAhead, hashes_.size() - i)));
    return table_.find(key, hashes_[i]);
  }

 private:
  static constexpr size_t kAhead = 32;

  Table& table_;
  std::vector<uint64_t> hashes_;
};

}  // namespace moontide::catalog
