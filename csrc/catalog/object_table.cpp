#include "catalog/object_table.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/hash.h"
#include "catalog/node_table.h"

namespace moontide::catalog {

// ---- an object

Object::Owner Object::make(std::string_view key) {
  MT_CHECK(key.size() <= kMaxKeyBytes, std::to_string(key.size()) + " bytes");
  void* memory = ::operator new(sizeof(Object) + key.size());
  Owner object(new (memory) Object());
  object->key_bytes = static_cast<uint16_t>(key.size());
  std::ranges::copy(key, reinterpret_cast<char*>(object.get() + 1));
  object->first.key_hash = hash64(as_bytes(key));
  object->first.object = object.get();
  return object;
}

void Object::Free::operator()(Object* object) const {
  object->~Object();
  ::operator delete(object);
}

size_t Object::placed_count() const {
  return static_cast<size_t>(std::ranges::count_if(replicas(), [](const Replica* one) { return one->placed; }));
}

Replica* Object::on(const NodeId& node) {
  for (Replica* one : replicas()) {
    if (one->node->id == node) return one;
  }
  return nullptr;
}

Replica& Object::add_replica() {
  if (first.node == nullptr) return first;
  if (further == nullptr) further = std::make_unique<Further>();
  MT_CHECK(1 + further->replicas.size() < kMaxReplicas, generation.text());
  Replica& added = *further->replicas.emplace_back(std::make_unique<Replica>());
  added.key_hash = key_hash();
  added.object = this;
  return added;
}

void Object::remove_replica(Replica& replica) {
  if (&replica == &first) {
    const uint64_t hash = key_hash();
    first = {};
    first.key_hash = hash;
    first.object = this;
    return;
  }
  std::erase_if(further->replicas, [&](const auto& one) { return one.get() == &replica; });
}

void Object::leaves(const NodeId& node) {
  if (further == nullptr) further = std::make_unique<Further>();
  if (std::ranges::find(further->leaving, node) == further->leaving.end()) further->leaving.push_back(node);
}

void Object::avoid(const std::vector<NodeId>& nodes) {
  if (further == nullptr) further = std::make_unique<Further>();
  further->avoid = nodes;
}

// ---- the table

uint64_t ObjectTable::hash_of(std::string_view key) { return hash64(as_bytes(key)); }

Object* ObjectTable::find(std::string_view key, uint64_t hash) { return index_.find(key, hash); }

const Object* ObjectTable::find(std::string_view key, uint64_t hash) const { return index_.find(key, hash); }

void ObjectTable::prefetch(std::span<const uint64_t> hashes) const {
  for (const uint64_t hash : hashes) index_.prefetch_slot(hash);
  for (const uint64_t hash : hashes) index_.prefetch_thing(hash);
}

Object& ObjectTable::insert(std::string_view key) {
  Object& object = *Object::make(key).release();
  order_.insert(object);
  index_.insert(object);
  return object;
}

void ObjectTable::erase(Object& object) {
  index_.erase(object);
  order_.erase(object);
  Object::Free{}(&object);
}

void ObjectTable::clear() {
  for (auto it = order_.begin(); it != order_.end();) {
    const Object& object = *it;
    ++it;
    Object::Free{}(const_cast<Object*>(&object));
  }
  order_.clear();
  index_.clear();
}

}  // namespace moontide::catalog
