// Finds an object by its key: a hash table of pointers, beside whoever owns the objects. Single-threaded.
//
// Bounded steps: it grows a few slots per insert, and a key is looked for in a bounded number of places. Keys that were
// chosen to collide find no place in it; then the owner has to look by itself for what is not found here.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace moontide::catalog {

struct Object;

class ObjectIndex {
 public:
  // Null: it is not in here; where complete() it is nowhere.
  Object* find(std::string_view key, uint64_t key_hash) const;
  // The object's key and hash are set, and no other object in here has that key. The object stays where it is.
  void insert(Object& object);
  void erase(const Object& object);
  void clear();
  // Every object that was inserted found a place.
  bool complete() const { return left_out_ == 0; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  template <class T>
  using Array = std::unique_ptr<T[], Free>;

  struct Table {
    Array<uint32_t> tags;  // kEmpty, kGone, or what a hash says; the place follows from it
    Array<Object*> objects;
    size_t slots = 0;  // a power of two, or none
    size_t used = 0;   // slots that are not kEmpty

    explicit Table(size_t count = 0);
    Object* find(std::string_view key, uint32_t tag) const;
    bool insert(Object& object, uint32_t tag);
    bool erase(const Object& object, uint32_t tag);
  };
  void grow();
  void move_some();

  Table now_;
  Table before_;      // what it was before it grew, until all of it has moved
  size_t moved_ = 0;  // slots of `before_`
  size_t size_ = 0;
  size_t left_out_ = 0;
};

}  // namespace moontide::catalog
