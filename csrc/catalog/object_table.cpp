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

Object::Rare& Object::rare() {
  if (further == nullptr) further = std::make_unique<Rare>();
  return *further;
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
  rare();
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
  if (std::ranges::find(rare().leaving, node) == rare().leaving.end()) rare().leaving.push_back(node);
}

void Object::avoid(const std::vector<NodeId>& nodes) { rare().avoid = nodes; }

// ---- the table

uint64_t ObjectTable::hash_of(std::string_view key) { return hash64(as_bytes(key)); }

Object* ObjectTable::find(std::string_view key, uint64_t hash) { return index_.find(key, hash); }

const Object* ObjectTable::find(std::string_view key, uint64_t hash) const { return index_.find(key, hash); }

void ObjectTable::prefetch(std::span<const uint64_t> hashes) const {
  for (const uint64_t hash : hashes) index_.prefetch_slot(hash);
  for (const uint64_t hash : hashes) index_.prefetch_thing(hash);
}

Object& ObjectTable::insert(Object::Owner owner) {
  Object& object = *owner.release();
  order_.insert(object);
  index_.insert(object);
  return object;
}

Object::Owner ObjectTable::release(Object& object) {
  index_.erase(object);
  order_.erase(object);
  return Object::Owner(&object);
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
