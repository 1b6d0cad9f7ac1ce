// Objects in the order of their keys (bytes): a B+ tree of pointers, beside whoever owns the objects. Single-threaded.
//
// A leaf keeps four bytes of each key, those behind what all its keys have in common: so a step down the tree seldom
// looks at an object, which would be a miss of the cache. Branches are told apart by the shortest strings that do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace moontide::catalog {

struct Object;

class KeyOrder {
 public:
  class Iterator;

  KeyOrder();
  ~KeyOrder();
  KeyOrder(const KeyOrder&) = delete;
  KeyOrder& operator=(const KeyOrder&) = delete;

  // No other object in here has that key. The object stays where it is, and its key what it is.
  void insert(Object& object);
  void erase(const Object& object);
  void clear();
  size_t size() const { return size_; }

  // The first object whose key is not below, or is above.
  Iterator from(std::string_view key) const;
  Iterator after(std::string_view key) const;
  Iterator begin() const;
  Iterator end() const;

 private:
  struct Node;
  struct Leaf;
  struct Branch;
  struct Delete {
    void operator()(Node* node) const;
  };
  using Owned = std::unique_ptr<Node, Delete>;
  struct Split {  // what a full node gave away
    std::string lowest;
    Owned right;
  };
  static std::optional<Split> insert(Node& node, Object& object);
  static std::optional<Split> insert(Leaf& leaf, Object& object);
  static void erase(Node& node, const Object& object);
  static void merge_if_small(Branch& branch, size_t at);

  const Leaf& leaf_of(std::string_view key) const;

  Owned root_;
  size_t size_ = 0;
};

// Valid until the order changes.
class KeyOrder::Iterator {
 public:
  const Object& operator*() const;
  const Object* operator->() const { return &**this; }
  Iterator& operator++() { return *this = Iterator(leaf_, at_ + 1); }
  bool operator==(const Iterator&) const = default;

 private:
  friend class KeyOrder;
  Iterator(const Leaf* leaf, size_t at);

  const Leaf* leaf_;  // null: the end
  size_t at_;
};

}  // namespace moontide::catalog
