#include "memory/interval_index.h"

#include <algorithm>

#include "memory/region.h"

namespace moontide::memory {
namespace {

constexpr size_t kUses = 3;

uint64_t start_of(const Region& region) { return reinterpret_cast<uint64_t>(region.address); }
uint64_t end_of(const Region& region) { return start_of(region) + region.length; }

bool before(const Region& a, const Region& b) {
  return start_of(a) != start_of(b) ? start_of(a) < start_of(b) : a.id < b.id;
}

// Any function that spreads ids will do: the order of addresses is the users', that of priorities must not follow it.
uint64_t priority_of(const Region& region) {
  uint64_t mixed = (region.id + uint64_t{1}) * 0x9e3779b97f4a7c15;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  return mixed ^ (mixed >> 27);
}

}  // namespace

bool suits(const Region& region, Use use) {
  switch (use) {
    case Use::kAny:
      return true;
    case Use::kInto:
      return (region.access & kSource) == 0;
    case Use::kGranted:
      return (region.access & kReadable) != 0;
  }
  return false;
}

struct IntervalIndex::Node {
  explicit Node(RegionRef of) : region(std::move(of)), priority(priority_of(*region)) { update(); }

  void update() {
    for (size_t use = 0; use < kUses; ++use) {
      reach[use] = suits(*region, static_cast<Use>(use)) ? end_of(*region) : 0;
      for (const Link* below : {&left, &right}) {
        if (*below) reach[use] = std::max(reach[use], (*below)->reach[use]);
      }
    }
  }

  RegionRef region;
  uint64_t priority;
  uint64_t reach[kUses];  // the furthest end in this subtree of a region that suits the use
  Link left, right;
};

IntervalIndex::IntervalIndex() = default;
IntervalIndex::~IntervalIndex() = default;

void IntervalIndex::clear() { root_.reset(); }

void IntervalIndex::split(Link tree, const Region& at, Link& first, Link& rest) {
  if (!tree) {
    first.reset();
    rest.reset();
  } else if (before(*tree->region, at)) {
    Link right = std::move(tree->right);
    split(std::move(right), at, tree->right, rest);
    tree->update();
    first = std::move(tree);
  } else {
    Link left = std::move(tree->left);
    split(std::move(left), at, first, tree->left);
    tree->update();
    rest = std::move(tree);
  }
}

IntervalIndex::Link IntervalIndex::join(Link first, Link rest) {
  if (!first) return rest;
  if (!rest) return first;
  if (first->priority > rest->priority) {
    first->right = join(std::move(first->right), std::move(rest));
    first->update();
    return first;
  }
  rest->left = join(std::move(first), std::move(rest->left));
  rest->update();
  return rest;
}

void IntervalIndex::add(const RegionRef& region) {
  Link first, rest;
  split(std::move(root_), *region, first, rest);
  root_ = join(join(std::move(first), std::make_unique<Node>(region)), std::move(rest));
}

void IntervalIndex::remove(const Region& region) {
  Link first, rest, behind;
  split(std::move(root_), region, first, rest);
  // the region is the first of `rest`: cut there by the smallest key above its own
  Region next;
  next.address = region.address;
  next.id = region.id + 1;
  Link own;
  split(std::move(rest), next, own, behind);
  root_ = join(std::move(first), std::move(behind));
}

const IntervalIndex::Node* IntervalIndex::covering(const Node* node, uint64_t start, uint64_t end, size_t use) {
  if (node == nullptr || node->reach[use] < end) return nullptr;
  if (start_of(*node->region) > start) return covering(node->left.get(), start, end, use);
  // all on the left begin early enough, so that what reaches far enough there is an answer: no way is tried in vain but
  // the one along `start`
  if (const Node* found = covering(node->right.get(), start, end, use)) return found;
  if (suits(*node->region, static_cast<Use>(use)) && end_of(*node->region) >= end) return node;
  return covering(node->left.get(), start, end, use);
}

RegionRef IntervalIndex::covering(uint64_t start, uint64_t length, Use use) const {
  if (length > UINT64_MAX - start) return nullptr;
  const Node* found = covering(root_.get(), start, start + length, static_cast<size_t>(use));
  return found == nullptr ? nullptr : found->region;
}

bool IntervalIndex::touching(const Node* node, uint64_t start, uint64_t end,
                             const std::function<bool(const RegionRef&)>& visit) {
  if (node == nullptr || node->reach[static_cast<size_t>(Use::kAny)] <= start) return true;
  if (!touching(node->left.get(), start, end, visit)) return false;
  if (start_of(*node->region) >= end) return true;
  if (end_of(*node->region) > start && !visit(node->region)) return false;
  return touching(node->right.get(), start, end, visit);
}

void IntervalIndex::touching(uint64_t start, uint64_t length,
                             const std::function<bool(const RegionRef&)>& visit) const {
  if (length <= UINT64_MAX - start) touching(root_.get(), start, start + length, visit);
}

size_t IntervalIndex::depth(const Node* node) {
  return node == nullptr ? 0 : 1 + std::max(depth(node->left.get()), depth(node->right.get()));
}

size_t IntervalIndex::depth() const { return depth(root_.get()); }

}  // namespace moontide::memory
