// Tickets: the master's word to a node that a put was granted. And the gate at the node that decides which are
// honoured.
#pragma once

#include <set>
#include <string_view>

#include "base/id.h"
#include "base/siphash.h"
#include "base/status.h"

namespace moontide::store {

// Both sides compute it from the secret that the node chose and told the master when it joined.
uint64_t ticket_tag(const SipKey& secret, Generation generation, std::string_view key, uint64_t length);

// Which generations may still become entries. A ticket whose put ended must never be honoured, however late it comes:
// its bytes count as free. No clock decides that: the master names the generations that ended, and a floor below which
// none is open, under which nothing has to be remembered.
class TicketGate {
 public:
  TicketGate(const SipKey& secret, size_t refused_max) : secret_(secret), refused_max_(refused_max) {}

  // A new term: every ticket of an earlier one is over.
  void enter_term(uint32_t term);
  void raise_floor(Generation floor);
  void refuse(Generation generation);

  // DENIED: not made by the master for this key and length.
  Result<> authentic(Generation generation, std::string_view key, uint64_t length, uint64_t tag) const;
  // STALE: the put is over.
  Result<> open(Generation generation) const;

  uint32_t term() const { return term_; }
  size_t remembered() const { return refused_.size(); }

 private:
  SipKey secret_;
  size_t refused_max_;
  uint32_t term_ = 0;
  Generation floor_;
  std::set<Generation> refused_;  // at or above the floor
};

}  // namespace moontide::store
