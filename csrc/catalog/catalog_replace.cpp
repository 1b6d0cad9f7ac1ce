// Replacing: an object gives way to another one of its key, and until then it is there.
//
// The replacement is an open put that hangs on the object it is to replace, its base. When it is committed the base
// retires, and nobody sees the new object before every node has let go of the base, as always. When the base ends
// otherwise (removed, evicted, lost), the replacement ends too: its client begins anew, and finds what there is then.
//
// A master that starts anew may hear of both. What was to replace an object has an odd sequence number, so it is told
// from other puts that were not finished: as long as nobody confirmed it, it waits beside the older object, which
// shows. That is right only if nobody saw it: so the nodes that have it have to answer, before it shows, that they
// heard of its commit. They are asked by an order to retire the base, whether they have it or not.
#include "catalog/catalog.h"

namespace moontide::catalog {

Object* Catalog::put_of(Object* live, const Generation& generation) {
  if (live == nullptr || live->generation == generation) return live;
  Object* next = live->replacement();
  return next != nullptr && next->generation == generation ? next : nullptr;
}

Object& Catalog::hang(Object& base, Object::Owner replacement) {
  MT_CHECK(base.replacement() == nullptr, base.generation.text());
  Object& object = *replacement;
  base.rare().replacement = std::move(replacement);
  object.open->base = &base;
  ++replacing_;
  return object;
}

Object::Owner Catalog::take_off(Object& replacement) {
  --replacing_;
  Object* base = std::exchange(replacement.open->base, nullptr);
  return std::move(base->rare().replacement);
}

void Catalog::supersede(Object& replacement) {
  Object& base = *replacement.open->base;
  const Generation over = base.generation;
  Object::Owner owner = take_off(replacement);
  retire(base, Ending::kReplaced);
  objects_.insert(std::move(owner));
  for (const Replica* replica : replacement.replicas()) {
    Node& node = *replica->node;
    if (replica->placed && !node.retiring.contains(over))
      add_retiring(node, over, {.key_hash = replacement.key_hash(), .footprint = 0});
  }
}

bool Catalog::take_beside(Node& node, const InventoryEntry& entry, Object& live) {
  const bool was_to_replace = entry.generation.is_replacement() && !entry.confirmed;
  if (was_to_replace && live.committed() && live.generation < entry.generation) {
    if (Object* other = live.replacement()) {
      if (other->generation > entry.generation) return false;
      retire(*other);
    }
    Object::Owner made = Object::make(entry.key);
    Object& object = *made;
    prepare_adopted(object, entry);
    open_put(object, ClientId{}, 0);
    hang(live, std::move(made));
    add_adopted(object, node, entry);
    return true;
  }
  const bool live_was_to_replace = !live.committed() && live.open->writer.empty() && live.generation.is_replacement();
  if (entry.confirmed && live_was_to_replace && entry.generation < live.generation) {
    Object::Owner waits = objects_.release(live);
    adopt(node, entry);
    hang(*objects_.find(entry.key), std::move(waits));
    return true;
  }
  return false;
}

}  // namespace moontide::catalog
