// Finds things by a key of theirs: a hash table of pointers, beside whoever owns the things. Single-threaded.
//
// Bounded steps: it grows a few slots per insert, and a key is looked for in a bounded number of places. Keys that were
// chosen to collide find no place in the table; those things go into a tree beside it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/status.h"

namespace moontide::catalog {

// `By` says what the key is: types Thing and Key, `Key key(const Thing&)`, `uint64_t hash(const Thing&)`.
template <class By>
class PointerIndex {
 public:
  using Thing = By::Thing;
  using Key = By::Key;

  // Null: it is not in here.
  Thing* find(Key key, uint64_t hash) const {
    const uint32_t tag = tag_of(hash);
    if (Thing* found = now_.find(key, tag)) return found;
    if (before_.slots > 0) {
      if (Thing* found = before_.find(key, tag)) return found;
    }
    if (beside_.empty()) return nullptr;
    auto it = beside_.find(key);
    return it == beside_.end() ? nullptr : *it;
  }

  // No other thing in here has that key. It stays where it is, and its key what it is.
  void insert(Thing& thing) {
    ++size_;
    move_some();
    if ((now_.used + 1) * 4 > now_.slots * 3) grow();
    place(thing, tag_of(By::hash(thing)));
  }

  void erase(const Thing& thing) {
    --size_;
    const uint32_t tag = tag_of(By::hash(thing));
    if (now_.erase(thing, tag) || before_.erase(thing, tag)) return;
    auto it = beside_.find(By::key(thing));
    MT_CHECK(it != beside_.end() && *it == &thing, "the thing is not in here");
    beside_.erase(it);
  }

  // Brings what `find` will look at into the caches, in two steps: what it looks at first, and the thing.
  void prefetch_slot(uint64_t hash) const {
    if (now_.slots > 0) now_.prefetch(tag_of(hash));
  }
  void prefetch_thing(uint64_t hash) const {
    if (const Thing* likely = now_.first_with(tag_of(hash))) {
      for (size_t at = 0; at < sizeof(Thing); at += 64) __builtin_prefetch(reinterpret_cast<const char*>(likely) + at);
    }
  }

  void clear() { *this = PointerIndex(); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // The next thing, in no order, as `cursor` goes up from 0; null at the end. While things come, some may be passed
  // over or met twice.
  Thing* next(size_t& cursor) const {
    while (cursor < now_.slots + before_.slots) {
      const bool is_now = cursor < now_.slots;
      const Table& table = is_now ? now_ : before_;
      const size_t at = is_now ? cursor : cursor - now_.slots;
      ++cursor;
      if (table.tags[at] >= kFirstTag) return table.things[at];
    }
    const size_t place = cursor - now_.slots - before_.slots;
    if (place >= beside_.size()) return nullptr;
    ++cursor;
    return *std::next(beside_.begin(), static_cast<ptrdiff_t>(place));
  }

 private:
  static constexpr uint32_t kEmpty = 0, kGone = 1, kFirstTag = 2;
  static constexpr size_t kSlotsMin = 64;
  static constexpr size_t kProbesMax = 512;    // of one key; with honest keys a handful
  static constexpr size_t kMovedPerStep = 16;  // slots; the new table takes longer to fill than the old one to move

  static uint32_t tag_of(uint64_t hash) {
    const auto tag = static_cast<uint32_t>(hash ^ hash >> 32);
    return tag < kFirstTag ? tag + kFirstTag : tag;
  }

  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  template <class T>
  using Array = std::unique_ptr<T[], Free>;
  template <class T>
  static Array<T> zeroed(size_t count) {
    // The pages come when they are touched: a table of millions costs nothing at once.
    void* memory = std::calloc(std::max<size_t>(count, 1), sizeof(T));
    MT_CHECK(memory != nullptr, "no memory for " + std::to_string(count) + " slots");
    return Array<T>(static_cast<T*>(memory));
  }

  struct Table {
    size_t slots = 0;
    size_t used = 0;       // slots that are not kEmpty
    Array<uint32_t> tags;  // kEmpty, kGone, or what a hash says; the place follows from it
    Array<Thing*> things;

    explicit Table(size_t count = 0) : slots(count), tags(zeroed<uint32_t>(count)), things(zeroed<Thing*>(count)) {}

    // Calls `look` with the slots of a tag one after the other, until it answers true.
    template <class Look>
    bool probe(uint32_t tag, Look look) const {
      if (slots == 0) return false;
      size_t at = tag % slots;
      for (size_t i = 0; i < std::min(kProbesMax, slots); ++i, at = at + 1 == slots ? 0 : at + 1) {
        if (look(at)) return true;
      }
      return false;
    }

    Thing* find(Key key, uint32_t tag) const {
      Thing* found = nullptr;
      probe(tag, [&](size_t at) {
        if (tags[at] == tag && By::key(*things[at]) == key) found = things[at];
        return found != nullptr || tags[at] == kEmpty;
      });
      return found;
    }
    void prefetch(uint32_t tag) const {
      __builtin_prefetch(&tags[tag % slots]);
      __builtin_prefetch(&things[tag % slots]);
    }
    Thing* first_with(uint32_t tag) const {
      Thing* found = nullptr;
      probe(tag, [&](size_t at) {
        if (tags[at] == tag) found = things[at];
        return found != nullptr || tags[at] == kEmpty;
      });
      return found;
    }
    bool insert(Thing& thing, uint32_t tag) {
      return probe(tag, [&](size_t at) {
        if (tags[at] >= kFirstTag) return false;
        used += tags[at] == kEmpty;
        tags[at] = tag;
        things[at] = &thing;
        return true;
      });
    }
    bool erase(const Thing& thing, uint32_t tag) {
      bool erased = false;
      probe(tag, [&](size_t at) {
        if (tags[at] == kEmpty) return true;
        if (tags[at] != tag || things[at] != &thing) return false;
        // Nobody's way leads over it where the next slot is free.
        const bool last = tags[at + 1 == slots ? 0 : at + 1] == kEmpty;
        tags[at] = last ? kEmpty : kGone;
        used -= last;
        return erased = true;
      });
      return erased;
    }
  };

  struct Less {
    using is_transparent = void;
    bool operator()(const Thing* a, const Thing* b) const { return By::key(*a) < By::key(*b); }
    bool operator()(const Thing* a, Key b) const { return By::key(*a) < b; }
    bool operator()(Key a, const Thing* b) const { return a < By::key(*b); }
  };

  void place(Thing& thing, uint32_t tag) {
    if (!now_.insert(thing, tag)) beside_.insert(&thing);
  }

  // A table with more room, or with less where what filled it is gone; never so small that it is full before all has
  // moved.
  void grow() {
    while (before_.slots > 0) move_some();
    before_ = std::exchange(now_, Table(std::max({kSlotsMin, size_ * 17 / 10, now_.slots / 2})));
    moved_ = 0;
  }

  void move_some() {
    for (size_t i = 0; i < kMovedPerStep && moved_ < before_.slots; ++i, ++moved_) {
      const uint32_t tag = before_.tags[moved_];
      if (tag < kFirstTag) continue;
      place(*before_.things[moved_], tag);
      before_.tags[moved_] = kGone;
    }
    if (moved_ == before_.slots && moved_ > 0) {
      before_ = Table();
      moved_ = 0;
    }
  }

  Table now_;
  Table before_;      // what it was before it grew, until all of it has moved
  size_t moved_ = 0;  // slots of `before_`
  std::set<Thing*, Less> beside_;
  size_t size_ = 0;
};

}  // namespace moontide::catalog
