#include "store/locations.h"

namespace moontide::store {

void LocationCache::put(const std::string& key, const Location& location, int64_t expires_ns) {
  drop(key);
  if (max_ == 0) return;
  if (entries_.size() >= max_) drop(ages_.front());
  entries_.emplace(key, Entry{location, expires_ns, ages_.insert(ages_.end(), key)});
}

std::optional<Location> LocationCache::get(std::string_view key, int64_t now_ns) {
  auto it = entries_.find(key);
  if (it == entries_.end()) return std::nullopt;
  if (now_ns < it->second.expires_ns) return it->second.location;
  drop(key);
  return std::nullopt;
}

void LocationCache::drop(std::string_view key) {
  auto it = entries_.find(key);
  if (it == entries_.end()) return;
  auto age = it->second.age;
  entries_.erase(it);  // first: `key` may lie in the list
  ages_.erase(age);
}

}  // namespace moontide::store
