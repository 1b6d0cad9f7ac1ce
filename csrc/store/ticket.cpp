#include "store/ticket.h"

#include <algorithm>

namespace moontide::store {

uint64_t ticket_tag(const SipKey& secret, Generation generation, std::string_view key, uint64_t length) {
  struct Fixed {
    uint64_t term;
    uint64_t sequence;
    uint64_t length;
  } fixed{generation.term, generation.sequence, length};
  Bytes message(sizeof fixed + key.size());
  std::memcpy(message.data(), &fixed, sizeof fixed);
  std::memcpy(message.data() + sizeof fixed, key.data(), key.size());
  return siphash(secret, message);
}

void TicketGate::enter_term(uint32_t term) {
  if (term == term_) return;
  term_ = term;
  floor_ = {term, 0};
  refused_.clear();
}

void TicketGate::raise_floor(Generation floor) {
  floor_ = std::max(floor_, floor);
  refused_.erase(refused_.begin(), refused_.lower_bound(floor_));
}

void TicketGate::refuse(Generation generation) {
  if (generation < floor_) return;
  refused_.insert(generation);
  // Past the bound the oldest open puts are refused with it: they fail, nothing else does.
  if (refused_.size() > refused_max_) raise_floor({refused_.begin()->term, refused_.begin()->sequence + 1});
}

Result<> TicketGate::authentic(Generation generation, std::string_view key, uint64_t length, uint64_t tag) const {
  if (ticket_tag(secret_, generation, key, length) == tag) return {};
  return fail(Code::kDenied, "the ticket of generation " + generation.text() + " was not made for this");
}

Result<> TicketGate::open(Generation generation) const {
  if (generation.term == term_ && generation >= floor_ && !refused_.contains(generation)) return {};
  return fail(Code::kStale, "the put of generation " + generation.text() + " is over (term " + std::to_string(term_) +
                                ", floor " + floor_.text() + ")");
}

}  // namespace moontide::store
