#include "catalog/object_table.h"

#include "base/hash.h"

namespace moontide::catalog {

Object* ObjectTable::find(std::string_view key) {
  auto it = map_.find(key);
  return it == map_.end() ? nullptr : &it->second;
}

const Object* ObjectTable::find(std::string_view key) const {
  auto it = map_.find(key);
  return it == map_.end() ? nullptr : &it->second;
}

Object& ObjectTable::insert(std::string_view key) {
  auto [it, fresh] = map_.try_emplace(std::string(key));
  MT_CHECK(fresh, "key is taken, hash " + std::to_string(hash64(as_bytes(key))));
  it->second.key = it->first;
  it->second.key_hash = hash64(as_bytes(key));
  return it->second;
}

void ObjectTable::erase(Object& object) {
  auto it = map_.find(object.key);
  MT_CHECK(it != map_.end() && &it->second == &object, "object is not in the table");
  map_.erase(it);
}

}  // namespace moontide::catalog
