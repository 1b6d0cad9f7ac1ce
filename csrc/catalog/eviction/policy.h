// Which entries of a bounded store go first: the interface, and the policies by name.
//
// A policy is pure: no clock (time is an argument), no threads, no random, no I/O. It owns neither entries nor bytes,
// never sees a key (only its hash), and is told of an entry only when that entry is used: lookups that miss and
// existence checks cost it nothing. Single-threaded, as the catalog is.
//
// An entry may have a parent, the entry before it in a prefix: without it, it is worthless. A parent is told when the
// child is used, in the order from the first to the last of a request's entries.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

namespace moontide::catalog {

using Slot = uint32_t;
inline constexpr Slot kNoSlot = UINT32_MAX;

// What the owner keeps in an entry for the policy. Its address is stable while a policy knows it.
struct Evictable {
  uint64_t key_hash = 0;
  Slot slot = kNoSlot;  // the policy's
};

struct Use {
  int64_t now_ns = 0;                 // never goes back
  uint64_t bytes = 1;                 // that the entry takes; the same at each use
  const Evictable* parent = nullptr;  // used just before in the same request, or none
};

enum class Verdict : uint8_t {
  kKeep,      // not this one now (pinned, leased): and so none of the prefix before it, where the policy knows it
  kTake,      // a victim; more are wanted
  kTakeLast,  // a victim; enough
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // The entry was stored (it has no slot yet) or read.
  virtual void used(Evictable& entry, const Use& use) = 0;
  // The entry is leaving, whoever decided it.
  virtual void erased(Evictable& entry) = 0;
  // Offers entries, the first to go first, until the answer is kTakeLast or `scan` entries were looked at. The policy
  // may reorder itself but forgets none: the caller erases what it took, or not. Whoever takes all gets all, each once.
  // True when there was nothing more to offer.
  virtual bool pick(size_t scan, int64_t now_ns, const std::function<Verdict(Evictable&)>& offer) = 0;
};

using MakePolicy = std::function<std::unique_ptr<EvictionPolicy>()>;

inline constexpr std::string_view kDefaultPolicy = "prefix";

// Names for `policy_maker`.
std::span<const std::string_view> policy_names();
// Empty for a name that is none.
MakePolicy policy_maker(std::string_view name);

}  // namespace moontide::catalog
