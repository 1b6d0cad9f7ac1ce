#include "catalog/eviction.h"

namespace moontide::catalog {

void LruPolicy::inserted(Object& object) {
  MT_CHECK(!object.hook.linked, object.generation.text());
  link_hottest(object);
}

void LruPolicy::touched(Object& object) {
  if (&object == hottest_) return;
  unlink(object);
  link_hottest(object);
}

void LruPolicy::erased(Object& object) { unlink(object); }

bool LruPolicy::pick(size_t scan, const std::function<bool(Object&)>& offer) {
  Object* object = coldest_;
  for (; object != nullptr && scan > 0; object = object->hook.hotter, --scan) {
    if (!offer(*object)) return false;
  }
  return object == nullptr;
}

void LruPolicy::link_hottest(Object& object) {
  object.hook = {.colder = hottest_, .hotter = nullptr, .linked = true};
  (hottest_ != nullptr ? hottest_->hook.hotter : coldest_) = &object;
  hottest_ = &object;
}

void LruPolicy::unlink(Object& object) {
  MT_CHECK(object.hook.linked, object.generation.text());
  auto [colder, hotter, linked] = object.hook;
  (colder != nullptr ? colder->hook.hotter : coldest_) = hotter;
  (hotter != nullptr ? hotter->hook.colder : hottest_) = colder;
  object.hook = {};
}

}  // namespace moontide::catalog
