#include "catalog/key_order.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/status.h"
#include "catalog/object_table.h"

namespace moontide::catalog {
namespace {

constexpr size_t kLeafMost = 64;
constexpr size_t kBranchMost = 64;

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// In the order of what follows the first `skip` bytes, as far as four bytes tell.
uint32_t head_of(std::string_view key, size_t skip) {
  uint32_t head = 0;
  for (size_t i = skip; i < skip + sizeof head; ++i) head = head << 8 | (i < key.size() ? uint8_t(key[i]) : 0u);
  return head;
}

// The shortest string above `left` and not above `right`, which is above `left`.
std::string separator(std::string_view left, std::string_view right) {
  return std::string(right.substr(0, common_prefix(left, right) + 1));
}

}  // namespace

// What it is stands in front: it is looked at first.
struct KeyOrder::Node {
  const bool is_leaf;
  Leaf* leaf();
  Branch& branch();
  size_t size();
  size_t most() const { return is_leaf ? kLeafMost : kBranchMost; }
};

struct KeyOrder::Leaf : Node {
  Leaf() : Node{true} {}

  size_t count = 0;
  size_t skip = 0;  // bytes that all keys have in common, or fewer
  Leaf* next = nullptr;
  std::array<uint32_t, kLeafMost> heads;
  std::array<Object*, kLeafMost> objects;

  std::string_view key(size_t at) const { return objects[at]->key(); }

  // The place of the first key that is not below.
  size_t place_of(std::string_view wanted) const {
    if (count == 0) return 0;
    if (common_prefix(wanted, key(0)) < skip) return wanted < key(0) ? 0 : count;
    const auto [low, high] = std::equal_range(heads.begin(), heads.begin() + count, head_of(wanted, skip));
    const auto by_key = [](const Object* object) { return object->key(); };
    const auto alike =
        std::ranges::subrange(objects.begin() + (low - heads.begin()), objects.begin() + (high - heads.begin()));
    return static_cast<size_t>(std::ranges::lower_bound(alike, wanted, {}, by_key) - objects.begin());
  }

  void recount_heads() {
    skip = count == 0 ? 0 : common_prefix(key(0), key(count - 1));
    for (size_t i = 0; i < count; ++i) heads[i] = head_of(key(i), skip);
  }

  void insert_at(size_t at, Object& object) {
    const bool shares = count > 0 && common_prefix(object.key(), key(0)) >= skip;
    std::copy_backward(objects.begin() + at, objects.begin() + count, objects.begin() + count + 1);
    std::copy_backward(heads.begin() + at, heads.begin() + count, heads.begin() + count + 1);
    objects[at] = &object;
    heads[at] = head_of(object.key(), skip);
    ++count;
    if (!shares) recount_heads();
  }

  void erase_at(size_t at) {
    std::copy(objects.begin() + at + 1, objects.begin() + count, objects.begin() + at);
    std::copy(heads.begin() + at + 1, heads.begin() + count, heads.begin() + at);
    --count;
  }

  // Takes what `right`, its next one, has.
  void append(Leaf& right) {
    std::copy_n(right.objects.begin(), right.count, objects.begin() + count);
    count += right.count;
    next = right.next;
    recount_heads();
  }
};

struct KeyOrder::Branch : Node {
  Branch() : Node{false} {}

  std::vector<std::string> lowest;  // what lies below lowest[i] lies before children[i]; the first one says nothing
  std::vector<Owned> children;

  size_t child_of(std::string_view key) const {
    return static_cast<size_t>(std::upper_bound(lowest.begin() + 1, lowest.end(), key) - lowest.begin()) - 1;
  }
  void insert_at(size_t at, Split split) {
    lowest.insert(lowest.begin() + static_cast<ptrdiff_t>(at), std::move(split.lowest));
    children.insert(children.begin() + static_cast<ptrdiff_t>(at), std::move(split.right));
  }
};

KeyOrder::Leaf* KeyOrder::Node::leaf() { return is_leaf ? static_cast<Leaf*>(this) : nullptr; }

KeyOrder::Branch& KeyOrder::Node::branch() { return static_cast<Branch&>(*this); }

size_t KeyOrder::Node::size() { return is_leaf ? leaf()->count : branch().children.size(); }

void KeyOrder::Delete::operator()(Node* node) const {
  if (node->is_leaf) {
    delete node->leaf();
  } else {
    delete &node->branch();
  }
}

KeyOrder::KeyOrder() : root_(new Leaf) {}

KeyOrder::~KeyOrder() = default;

void KeyOrder::clear() {
  root_ = Owned(new Leaf);
  size_ = 0;
}

// ---- insert

void KeyOrder::insert(Object& object) {
  ++size_;
  auto split = insert(*root_, object);
  if (!split) return;
  auto* above = new Branch;
  above->lowest.emplace_back();
  above->children.push_back(std::exchange(root_, Owned(above)));
  above->insert_at(1, std::move(*split));
}

std::optional<KeyOrder::Split> KeyOrder::insert(Node& node, Object& object) {
  if (node.leaf() != nullptr) return insert(*node.leaf(), object);
  Branch& branch = node.branch();
  const size_t at = branch.child_of(object.key());
  auto split = insert(*branch.children[at], object);
  if (!split) return {};
  branch.insert_at(at + 1, std::move(*split));
  if (branch.children.size() <= kBranchMost) return {};
  const auto half = static_cast<ptrdiff_t>(branch.children.size() / 2);
  auto* right = new Branch;
  Split gives{branch.lowest[static_cast<size_t>(half)], Owned(right)};
  right->lowest.assign(std::move_iterator(branch.lowest.begin() + half), std::move_iterator(branch.lowest.end()));
  right->children.assign(std::move_iterator(branch.children.begin() + half), std::move_iterator(branch.children.end()));
  branch.lowest.resize(static_cast<size_t>(half));
  branch.children.resize(static_cast<size_t>(half));
  return gives;
}

std::optional<KeyOrder::Split> KeyOrder::insert(Leaf& leaf, Object& object) {
  const size_t place = leaf.place_of(object.key());
  if (leaf.count < kLeafMost) {
    leaf.insert_at(place, object);
    return {};
  }
  // What comes in order leaves full leaves behind.
  const size_t kept = place == kLeafMost && leaf.next == nullptr ? kLeafMost : kLeafMost / 2;
  auto* made = new Leaf;
  Owned owned(made);
  Leaf& right = *made;
  std::copy(leaf.objects.begin() + kept, leaf.objects.end(), right.objects.begin());
  right.count = kLeafMost - kept;
  leaf.count = kept;
  leaf.recount_heads();
  right.recount_heads();
  right.next = std::exchange(leaf.next, &right);
  if (place < kept) {
    leaf.insert_at(place, object);
  } else {
    right.insert_at(place - kept, object);
  }
  return Split{separator(leaf.key(leaf.count - 1), right.key(0)), std::move(owned)};
}

// ---- erase

void KeyOrder::erase(const Object& object) {
  --size_;
  erase(*root_, object);
  while (root_->leaf() == nullptr && root_->size() == 1)
    root_ = std::exchange(root_->branch().children.front(), nullptr);
}

void KeyOrder::erase(Node& node, const Object& object) {
  if (Leaf* leaf = node.leaf()) {
    const size_t place = leaf->place_of(object.key());
    MT_CHECK(place < leaf->count && leaf->objects[place] == &object, "object is not in the order");
    return leaf->erase_at(place);
  }
  const size_t at = node.branch().child_of(object.key());
  erase(*node.branch().children[at], object);
  merge_if_small(node.branch(), at);
}

// A child that has little left goes together with the one beside it, where both leave room for more.
void KeyOrder::merge_if_small(Branch& branch, size_t at) {
  const size_t most = branch.children[at]->most();
  if (branch.children[at]->size() * 4 > most || branch.children.size() == 1) return;
  const size_t left = at + 1 < branch.children.size() ? at : at - 1;
  Node& taker = *branch.children[left];
  Node& giver = *branch.children[left + 1];
  if (branch.children[at]->size() > 0 && (taker.size() + giver.size()) * 4 > most * 3) return;
  if (taker.leaf() != nullptr) {
    taker.leaf()->append(*giver.leaf());
  } else {
    Branch& from = giver.branch();
    from.lowest.front() = std::move(branch.lowest[left + 1]);
    std::ranges::move(from.lowest, std::back_inserter(taker.branch().lowest));
    std::ranges::move(from.children, std::back_inserter(taker.branch().children));
  }
  branch.lowest.erase(branch.lowest.begin() + static_cast<ptrdiff_t>(left) + 1);
  branch.children.erase(branch.children.begin() + static_cast<ptrdiff_t>(left) + 1);
}

// ---- look

const KeyOrder::Leaf& KeyOrder::leaf_of(std::string_view key) const {
  Node* node = root_.get();
  while (node->leaf() == nullptr) node = node->branch().children[node->branch().child_of(key)].get();
  return *node->leaf();
}

KeyOrder::Iterator KeyOrder::from(std::string_view key) const {
  const Leaf& leaf = leaf_of(key);
  return {&leaf, leaf.place_of(key)};
}

KeyOrder::Iterator KeyOrder::after(std::string_view key) const {
  Iterator it = from(key);
  if (it != end() && it->key() == key) ++it;
  return it;
}

KeyOrder::Iterator KeyOrder::begin() const { return from(""); }

KeyOrder::Iterator KeyOrder::end() const { return {nullptr, 0}; }

KeyOrder::Iterator::Iterator(const Leaf* leaf, size_t at) : leaf_(leaf), at_(at) {
  while (leaf_ != nullptr && at_ >= leaf_->count) {
    leaf_ = leaf_->next;
    at_ = 0;
  }
}

const Object& KeyOrder::Iterator::operator*() const { return *leaf_->objects[at_]; }

}  // namespace moontide::catalog
