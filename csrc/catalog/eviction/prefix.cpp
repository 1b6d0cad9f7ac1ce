#include "catalog/eviction/prefix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <queue>

namespace moontide::catalog {
namespace {

constexpr uint8_t kForksOfShared = 4;
constexpr uint8_t kCountMax = 15;
constexpr size_t kGhostsMin = 4096;
constexpr Ticks kSecond = 60;
constexpr std::array<Ticks, 2> kPaces = {20 * kSecond, 300 * kSecond};
constexpr uint32_t kFreshOfTurn = 8;        // who brings more at once begins something new on an old prefix
constexpr Ticks kOneRequest = kSecond / 2;  // uses within this time are one: of a lookup, a read and a put
constexpr uint32_t kWalkMax = 64;           // steps up a prefix, where a request goes on from it
constexpr Ticks kRankingInterval = 2 * kSecond;
constexpr uint32_t kRankingPaths = 16;
constexpr size_t kListsPerRefresh = 16;
constexpr size_t kMovesPerRefresh = 32;

// Kinds: shared prefixes by pace; then, each without and with the tail bit: first turns by length, old prefixes with
// something new by its length, later turns by their number and pace.
constexpr Kind kSharedKinds = 8;
constexpr size_t kFirstKinds = 6;
constexpr size_t kGrownKinds = 2;
constexpr size_t kPaceKinds = kPaces.size() + 1;
constexpr size_t kTurnKinds = 6;
static_assert(kSharedKinds + 2 * (kFirstKinds + kGrownKinds + kPaceKinds * kTurnKinds) == ReuseModel::kKinds);

constexpr std::array<uint8_t, ReuseModel::kKinds> make_pools() {
  std::array<uint8_t, ReuseModel::kKinds> pools{};
  for (size_t kind = kSharedKinds; kind < pools.size(); ++kind) {
    size_t tail = (kind - kSharedKinds) % 2, which = (kind - kSharedKinds) / 2;
    size_t group = 0;
    if (which >= kFirstKinds) group = 1;
    if (which >= kFirstKinds + kGrownKinds) group = 2 + (which - kFirstKinds - kGrownKinds) % kPaceKinds;
    pools[kind] = static_cast<uint8_t>(1 + 2 * group + tail);
  }
  return pools;
}

// How long it is between uses, on a scale that fits: eight times the logarithm of ticks.
uint8_t pace_of(Ticks gap) { return static_cast<uint8_t>(std::min(8 * std::log2(gap + 1.0), 255.0)); }

Ticks gap_of(uint8_t pace) { return static_cast<Ticks>(std::exp2(pace / 8.0)); }

}  // namespace

PrefixPolicy::PrefixPolicy() : model_(make_pools()), lists_(kLists), rank_of_(kLists), list_at_(kLists) {
  rank_lists();
}

bool PrefixPolicy::shared(const Node& node) { return node.forks >= kForksOfShared; }

Kind PrefixPolicy::kind_of(const Path& path, bool tail) {
  size_t which = 0;
  if (path.turns == 1) {
    which = std::clamp<size_t>(std::bit_width(path.length), 2, kFirstKinds + 1) - 2;
  } else if (path.fresh > kFreshOfTurn) {
    which = kFirstKinds + (path.fresh > 2 * kFreshOfTurn);
  } else {
    size_t turns = path.turns <= 5 ? path.turns - 2 : path.turns <= 7 ? 4 : 5;
    size_t pace = static_cast<size_t>(std::ranges::upper_bound(kPaces, path.gap) - kPaces.begin());
    which = kFirstKinds + kGrownKinds + turns * kPaceKinds + pace;
  }
  return static_cast<Kind>(kSharedKinds + 2 * which + tail);
}

Kind PrefixPolicy::kind_of(const Node& node) {
  if (!shared(node)) return node.kind;
  // From a quarter of a second to six minutes and more.
  return static_cast<Kind>(std::clamp((node.pace - 32) / 12, 0, kSharedKinds - 1));
}

void PrefixPolicy::used(Evictable& entry, const Use& use) {
  Ticks now = now_ = ticks_of(use.now_ns);
  Slot parent = use.parent == nullptr ? kNoSlot : use.parent->slot;
  if (path_.last == kNoSlot || parent != path_.last) {
    end_path();
    advance(now);
    if (parent != kNoSlot) go_on_from(parent);
  }
  bool stored = entry.slot == kNoSlot;
  if (stored) store(entry, parent);
  Slot slot = entry.slot;
  Node& node = slots_[slot];
  if (node.listed) unlist(slot);
  bool new_use = stored || now - node.used_at >= kOneRequest;
  if (new_use) model_.used(entry.key_hash, now);
  if (new_use && (!stored || node.again)) {  // known, here or as a ghost
    Ticks gap = now - node.used_at;
    int pace = pace_of(gap);
    node.pace = static_cast<uint8_t>(node.pace != 0 ? node.pace + (pace - node.pace) / 4 : pace);
    node.again = 1;
    pass_known(slot, node.turns + 1, gap);
  } else if (stored) {
    node.turns = path_.turns;
    ++path_.fresh;
  } else if (node.again) {
    pass_known(slot, node.turns, gap_of(node.pace));
  } else {
    path_.turns = node.turns;
    ++path_.fresh;
  }
  node.used_at = now;
  path_.last = slot;
  ++path_.length;
  // Until the request is over it counts as its end.
  node.kind = kind_of(path_, !node.again);
  if (node.children == 0) list(slot, false);
}

void PrefixPolicy::pass_known(Slot slot, int turns, Ticks gap) {
  path_.fresh = 0;
  if (shared(slots_[slot])) {
    path_.turns = 1;
    path_.shared = slot;
  } else {
    path_.turns = static_cast<uint8_t>(std::min<int>(turns, kCountMax));
    path_.gap = gap;
  }
}

void PrefixPolicy::go_on_from(Slot parent) {
  for (Slot slot = parent; slot != kNoSlot && path_.length < kWalkMax; slot = slots_[slot].parent) ++path_.length;
  const Node& node = slots_[parent];
  pass_known(parent, node.again ? node.turns + 1 : node.turns, gap_of(node.pace));
}

void PrefixPolicy::store(Evictable& entry, Slot parent) {
  ++count_;
  entry.slot = slots_.take();
  Node& node = slots_[entry.slot];
  node.entry = &entry;
  node.parent = parent;
  auto ghost = ghosts_.take(entry.key_hash);
  if (ghost) {
    node.again = 1;
    node.used_at = ghost->stamp;
    node.turns = ghost->note & 15;
    node.forks = ghost->note >> 4;
  }
  if (parent == kNoSlot) return;
  Node& before = slots_[parent];
  if (before.listed) unlist(parent);
  ++before.children;
  if (!ghost && before.forks < kCountMax) before.forks = before.forks + 1;
}

void PrefixPolicy::end_path() {
  if (path_.last == kNoSlot) return;
  Slot last = path_.last;
  Node& tail = slots_[last];
  follow(last, kind_of(tail));
  if (tail.parent != kNoSlot && slots_[tail.parent].entry != nullptr && slots_[tail.parent].used_at == tail.used_at) {
    Node& before = slots_[tail.parent];
    before.kind = kind_of(path_, false);
    if (!shared(before)) {
      if (!tail.again) before.turns = path_.fresh > kFreshOfTurn ? 1 : path_.turns;
      follow(tail.parent, before.kind);
    }
  }
  if (path_.shared != kNoSlot && path_.shared != last) follow(path_.shared, kind_of(slots_[path_.shared]));
  path_ = {};
  ++paths_since_ranking_;
}

void PrefixPolicy::follow(Slot slot, Kind kind) {
  const Node& node = slots_[slot];
  model_.follow(node.entry->key_hash, kind, node.used_at);
}

void PrefixPolicy::erased(Evictable& entry) {
  Slot slot = entry.slot;
  if (slot == path_.last || slot == path_.shared) end_path();
  Node& node = slots_[slot];
  ghosts_.reserve(std::max(kGhostsMin, count_));
  ghosts_.insert(entry.key_hash, std::max(node.used_at, Ticks{1}), static_cast<uint8_t>(node.forks << 4 | node.turns));
  --count_;
  node.entry = nullptr;
  entry.slot = kNoSlot;
  if (node.listed) unlist(slot);
  if (node.children == 0) drop_child(slot);
}

void PrefixPolicy::drop_child(Slot child) {
  while (true) {
    Slot parent = slots_[child].parent;
    if (parent == kNoSlot) return slots_.give_back(child);
    Node& node = slots_[parent];
    bool last = --node.children == 0;
    if (last && node.entry != nullptr) {
      bequeath(slots_[child], node);
      list(parent, true);
    }
    slots_.give_back(child);
    if (!last || node.entry != nullptr) return;
    child = parent;
  }
}

void PrefixPolicy::bequeath(const Node& child, Node& parent) {
  if (child.used_at != parent.used_at) return;
  parent.kind = static_cast<Kind>(child.kind - (child.kind - kSharedKinds) % 2);
  if (!shared(child) || shared(parent)) return;
  parent.forks = child.forks;
  parent.pace = child.pace;
}

void PrefixPolicy::list(Slot slot, bool coldest) {
  Node& node = slots_[slot];
  if (node.listed) return;
  node.age = static_cast<uint8_t>(ReuseModel::age_of(now_ - node.used_at));
  size_t number = kind_of(node) * ReuseModel::kAges + node.age;
  if (coldest) {
    lists_[number].push_coldest(slots_, slot);
  } else {
    lists_[number].push_hottest(slots_, slot);
  }
  node.listed = 1;
  filled_.set(rank_of_[number]);
}

void PrefixPolicy::unlist(Slot slot) {
  Node& node = slots_[slot];
  size_t number = kind_of(node) * ReuseModel::kAges + node.age;
  lists_[number].remove(slots_, slot);
  node.listed = 0;
  if (lists_[number].empty()) filled_.reset(rank_of_[number]);
}

void PrefixPolicy::advance(Ticks now) {
  now_ = now;
  model_.advance(now);
  if (now - ranked_at_ >= kRankingInterval && paths_since_ranking_ >= kRankingPaths) rank_lists();
  if (std::exchange(swept_at_, now) != now) unswept_ = filled_.count();
  // Lists in turn, from the coldest end.
  size_t moves = kMovesPerRefresh;
  for (size_t i = 0; i < kListsPerRefresh && moves > 0 && unswept_ > 0; ++i, --unswept_) {
    size_t rank = filled_._Find_next(cursor_);
    if (rank >= kLists) rank = filled_._Find_first();
    if (rank >= kLists) return;
    cursor_ = rank;
    SlotList<Node>& list_now = lists_[list_at_[rank]];
    for (Slot slot = list_now.coldest(); slot != kNoSlot && moves > 0; slot = list_now.coldest(), --moves) {
      if (now - slots_[slot].used_at < ReuseModel::age_end(slots_[slot].age)) break;
      unlist(slot);
      list(slot, false);
    }
  }
  if (moves == 0) unswept_ = filled_.count();
}

void PrefixPolicy::rank_lists() {
  ranked_at_ = now_;
  paths_since_ranking_ = 0;
  model_.worth(worth_);
  std::iota(list_at_.begin(), list_at_.end(), uint16_t{0});
  auto worth_of = [&](uint16_t number) { return worth_[number / ReuseModel::kAges][number % ReuseModel::kAges]; };
  std::ranges::stable_sort(list_at_, {}, worth_of);
  filled_.reset();
  for (size_t rank = 0; rank < kLists; ++rank) {
    rank_of_[list_at_[rank]] = static_cast<uint16_t>(rank);
    if (!lists_[list_at_[rank]].empty()) filled_.set(rank);
  }
}

bool PrefixPolicy::pick(size_t scan, int64_t now_ns, const std::function<Verdict(Evictable&)>& offer) {
  advance(ticks_of(now_ns));
  // Prefixes whose last child was taken just now, by rank; what was taken counts as gone until the end.
  using Exposed = std::pair<size_t, Slot>;
  std::priority_queue<Exposed, std::vector<Exposed>, std::greater<>> exposed;
  std::vector<Slot> taken;
  bool enough = false;
  auto offer_one = [&](Slot slot) {
    --scan;
    Verdict verdict = offer(*slots_[slot].entry);
    enough = verdict == Verdict::kTakeLast;
    if (verdict != Verdict::kTake) return;
    taken.push_back(slot);
    Slot child = slot, parent = slots_[slot].parent;
    while (parent != kNoSlot && --slots_[parent].children == 0 && slots_[parent].entry == nullptr) {
      child = parent;
      parent = slots_[child].parent;
    }
    if (parent == kNoSlot || slots_[parent].children > 0) return;
    Node as_left = slots_[parent];
    bequeath(slots_[child], as_left);
    size_t number = kind_of(as_left) * ReuseModel::kAges + ReuseModel::age_of(now_ - as_left.used_at);
    exposed.emplace(rank_of_[number], parent);
  };
  auto offer_exposed = [&](size_t rank) {
    while (!enough && scan > 0 && !exposed.empty() && exposed.top().first <= rank) {
      Slot slot = exposed.top().second;
      exposed.pop();
      offer_one(slot);
    }
  };
  for (size_t rank = filled_._Find_first(); rank < kLists && !enough && scan > 0; rank = filled_._Find_next(rank)) {
    Slot slot = lists_[list_at_[rank]].coldest();
    for (; slot != kNoSlot; slot = slots_[slot].hotter) {
      offer_exposed(rank);
      if (enough || scan == 0) break;
      offer_one(slot);
    }
  }
  offer_exposed(kLists);
  for (Slot slot : taken) {
    for (Slot parent = slots_[slot].parent; parent != kNoSlot; parent = slots_[parent].parent) {
      if (slots_[parent].children++ > 0 || slots_[parent].entry != nullptr) break;
    }
  }
  return !enough && scan > 0;
}

}  // namespace moontide::catalog
