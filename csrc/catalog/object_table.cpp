#include "catalog/object_table.h"

#include <utility>

#include "base/hash.h"

namespace moontide::catalog {

const Object* ObjectTable::find(std::string_view key) const {
  const Object* object = index_.find(key, hash64(as_bytes(key)));
  if (object != nullptr || index_.complete()) return object;
  auto it = map_.find(key);
  return it == map_.end() ? nullptr : &it->second;
}

Object* ObjectTable::find(std::string_view key) { return const_cast<Object*>(std::as_const(*this).find(key)); }

Object& ObjectTable::insert(std::string_view key) {
  auto [it, fresh] = map_.try_emplace(std::string(key));
  MT_CHECK(fresh, "key is taken, hash " + std::to_string(hash64(as_bytes(key))));
  it->second.key = it->first;
  it->second.key_hash = hash64(as_bytes(key));
  index_.insert(it->second);
  return it->second;
}

void ObjectTable::erase(Object& object) {
  auto it = map_.find(object.key);
  MT_CHECK(it != map_.end() && &it->second == &object, "object is not in the table");
  index_.erase(object);
  map_.erase(it);
}

}  // namespace moontide::catalog
