#include "catalog/object_index.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/status.h"
#include "catalog/object_table.h"

namespace moontide::catalog {
namespace {

constexpr uint32_t kEmpty = 0, kGone = 1, kFirstTag = 2;
constexpr size_t kSlotsMin = 64;
constexpr size_t kProbesMax = 128;   // of one key; with honest keys a handful
constexpr size_t kMovedPerStep = 8;  // slots; the new table takes longer to fill than the old one to move

uint32_t tag_of(uint64_t key_hash) {
  const auto tag = static_cast<uint32_t>(key_hash ^ key_hash >> 32);
  return tag < kFirstTag ? tag + kFirstTag : tag;
}

template <class T>
T* zeroed(size_t count) {
  // The pages come when they are touched: a table of millions costs nothing at once.
  void* memory = std::calloc(std::max<size_t>(count, 1), sizeof(T));
  MT_CHECK(memory != nullptr, "no memory for " + std::to_string(count) + " slots");
  return static_cast<T*>(memory);
}

}  // namespace

ObjectIndex::Table::Table(size_t count)
    : tags(zeroed<uint32_t>(count)), objects(zeroed<Object*>(count)), slots(count) {}

Object* ObjectIndex::Table::find(std::string_view key, uint32_t tag) const {
  for (size_t i = 0; i < std::min(kProbesMax, slots); ++i) {
    const size_t at = (tag + i) & (slots - 1);
    if (tags[at] == kEmpty) return nullptr;
    if (tags[at] == tag && objects[at]->key() == key) return objects[at];
  }
  return nullptr;
}

bool ObjectIndex::Table::insert(Object& object, uint32_t tag) {
  for (size_t i = 0; i < std::min(kProbesMax, slots); ++i) {
    const size_t at = (tag + i) & (slots - 1);
    if (tags[at] >= kFirstTag) continue;
    used += tags[at] == kEmpty;
    tags[at] = tag;
    objects[at] = &object;
    return true;
  }
  return false;
}

bool ObjectIndex::Table::erase(const Object& object, uint32_t tag) {
  for (size_t i = 0; i < std::min(kProbesMax, slots); ++i) {
    const size_t at = (tag + i) & (slots - 1);
    if (tags[at] == kEmpty) return false;
    if (tags[at] != tag || objects[at] != &object) continue;
    // Nobody's way leads over it where the next slot is free.
    const bool last = tags[(at + 1) & (slots - 1)] == kEmpty;
    tags[at] = last ? kEmpty : kGone;
    used -= last;
    return true;
  }
  return false;
}

Object* ObjectIndex::find(std::string_view key, uint64_t key_hash) const {
  const uint32_t tag = tag_of(key_hash);
  if (Object* found = now_.find(key, tag)) return found;
  return before_.slots == 0 ? nullptr : before_.find(key, tag);
}

void ObjectIndex::insert(Object& object) {
  ++size_;
  move_some();
  if ((now_.used + 1) * 4 > now_.slots * 3) grow();
  if (!now_.insert(object, tag_of(object.key_hash()))) ++left_out_;
}

void ObjectIndex::erase(const Object& object) {
  --size_;
  const uint32_t tag = tag_of(object.key_hash());
  if (!now_.erase(object, tag) && !before_.erase(object, tag)) --left_out_;
}

void ObjectIndex::clear() { *this = ObjectIndex(); }

// A table twice as large, or smaller where what filled it is gone; never so small that it is full before all has moved.
void ObjectIndex::grow() {
  while (before_.slots > 0) move_some();
  const size_t slots = std::max({kSlotsMin, std::bit_ceil(size_ * 2), now_.slots / 2});
  before_ = std::exchange(now_, Table(slots));
  moved_ = 0;
}

void ObjectIndex::move_some() {
  for (size_t i = 0; i < kMovedPerStep && moved_ < before_.slots; ++i, ++moved_) {
    const uint32_t tag = before_.tags[moved_];
    if (tag < kFirstTag) continue;
    if (!now_.insert(*before_.objects[moved_], tag)) ++left_out_;
    before_.tags[moved_] = kGone;
  }
  if (moved_ == before_.slots && moved_ > 0) {
    before_ = Table();
    moved_ = 0;
  }
}

}  // namespace moontide::catalog
