// The default: worth by kind and age, learnt as it goes, and leaves before the prefixes that they need.
//
// Only entries without a stored child are candidates; a prefix becomes one when its last child left, and is then judged
// as the child was. What a candidate is worth is the rate of uses that holding it promises, and that depends on its age
// (nobody asks again within seconds of an answer, few after ten minutes) and on its kind: how many turns its
// conversation had, how long it is, how fast it went so far, whether it is the last block of a request, which the next
// turn rewrites, or a prefix that several conversations share. See ReuseModel for how that is learnt.
#pragma once

#include <array>
#include <bitset>

#include "catalog/eviction/ghosts.h"
#include "catalog/eviction/reuse_model.h"
#include "catalog/eviction/slots.h"

namespace moontide::catalog {

class PrefixPolicy final : public EvictionPolicy {
 public:
  PrefixPolicy();
  void used(Evictable& entry, const Use& use) override;
  void erased(Evictable& entry) override;
  bool pick(size_t scan, int64_t now_ns, const std::function<Verdict(Evictable&)>& offer) override;

 private:
  static constexpr size_t kLists = ReuseModel::kKinds * ReuseModel::kAges;

  struct Node {
    Evictable* entry = nullptr;  // null: left before its children, which still name it
    Slot parent = kNoSlot;
    Slot colder = kNoSlot;
    Slot hotter = kNoSlot;
    uint32_t children = 0;
    Ticks used_at = 0;
    Kind kind = 0;           // as the end of the last request that used it, see `bequeath`
    uint8_t age : 5 = 0;     // of the list that it is in
    uint8_t listed : 1 = 0;  // a candidate: it has no children
    uint8_t again : 1 = 0;   // used after it was stored for the first time
    uint8_t turns : 4 = 0;   // of its conversation, when it was stored or last continued
    uint8_t forks : 4 = 0;   // how often a child was stored for the first time
    uint8_t pace = 0;        // between its uses, smoothed; see pace_of
  };
  static_assert(sizeof(Node) == 32 && ReuseModel::kAges <= 32);

  // The request that is being told entry by entry.
  struct Path {
    Slot last = kNoSlot;
    Slot shared = kNoSlot;  // the last one that several conversations share
    uint32_t length = 0;
    uint32_t fresh = 0;  // entries at its end that nobody used before
    uint8_t turns = 1;
    Ticks gap = 0;  // since the turn before
  };

  static bool shared(const Node& node);
  static Kind kind_of(const Path& path, bool tail);
  static Kind kind_of(const Node& node);
  void end_path();
  // The path passes what was there before its request, in the given turn of its conversation.
  void pass_known(Slot slot, int turns, Ticks gap);
  // The path begins below an entry that an earlier call dealt with.
  void go_on_from(Slot parent);
  void follow(Slot slot, Kind kind);
  void list(Slot slot, bool coldest);
  void unlist(Slot slot);
  void store(Evictable& entry, Slot parent);
  // The node goes, and those above it that only waited for that.
  void drop_child(Slot child);
  // A parent whose last child left is judged as the child was, if the same request used both last.
  static void bequeath(const Node& child, Node& parent);
  // Entries come of age, in bounded steps.
  void advance(Ticks now);
  void rank_lists();

  Slots<Node> slots_;
  Path path_;
  ReuseModel model_;
  Ghosts ghosts_;
  size_t count_ = 0;
  ReuseModel::Worth worth_;
  std::vector<SlotList<Node>> lists_;        // by kind and age
  std::vector<uint16_t> rank_of_, list_at_;  // the worst first
  std::bitset<kLists> filled_;               // by rank
  size_t cursor_ = 0;
  Ticks swept_at_ = 0;
  size_t unswept_ = 0;  // lists that may have entries that came of age by then
  Ticks now_ = 0;
  Ticks ranked_at_ = 0;
  uint32_t paths_since_ranking_ = 0;
};

}  // namespace moontide::catalog
