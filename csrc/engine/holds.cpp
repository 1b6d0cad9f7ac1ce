#include "engine/holds.h"

#include <algorithm>

namespace moontide::engine {

Result<> Holds::add(Bytes id, Bytes payload, int64_t ttl_ns) {
  if (id.empty() || id.size() > kIdBytesMax)
    return fail(Code::kInvalid, "hold id of " + std::to_string(id.size()) + " bytes");
  if (ttl_ns <= 0) return fail(Code::kInvalid, "hold ttl of " + std::to_string(ttl_ns) + " ns");
  if (holds_.size() + ended_.size() >= count_max_) {
    return fail(Code::kNoSpace, std::to_string(holds_.size()) + " holds and " + std::to_string(ended_.size()) +
                                    " ended ones not drained");
  }
  auto [hold, added] = holds_.try_emplace(std::string(as_text(id)), Hold{std::move(payload), ttl_ns});
  if (!added) return fail(Code::kAlreadyExists, "the hold id is in use");
  hold->second.due = due_.end();
  set_deadline(hold);
  arm();
  return {};
}

Result<> Holds::end(ByteView id) {
  auto hold = find(id);
  if (hold == holds_.end()) return fail(Code::kNotFound, "no such hold");
  finish(hold, HoldEnd::kEnded);
  return {};
}

std::vector<std::pair<Bytes, HoldEnd>> Holds::drain() {
  expire();
  std::vector<std::pair<Bytes, HoldEnd>> out(std::make_move_iterator(ended_.begin()),
                                             std::make_move_iterator(ended_.end()));
  ended_.clear();
  return out;
}

Result<Holds::Claimed> Holds::claim(ByteView id, uint64_t link) {
  expire();  // the timer may be late (a stopped process), the deadline is not
  auto hold = find(id);
  if (hold == holds_.end()) return fail(Code::kNotFound, "no such hold");
  if (hold->second.claimed_by != 0 && hold->second.claimed_by != link)
    return fail(Code::kDenied, "another peer claimed the hold");
  hold->second.claimed_by = link;
  set_deadline(hold);
  return Claimed{&hold->second.payload, hold->second.ttl_ns};
}

void Holds::renew(ByteView id, uint64_t link) {
  expire();
  auto hold = find(id);
  if (hold != holds_.end() && hold->second.claimed_by == link) set_deadline(hold);
}

Result<> Holds::release(ByteView id, uint64_t link) {
  expire();
  auto hold = find(id);
  if (hold == holds_.end()) return fail(Code::kExpired, "the hold is over: it expired or was ended before its release");
  if (hold->second.claimed_by != link) return fail(Code::kDenied, "the hold was not claimed on this link");
  finish(hold, HoldEnd::kReleased);
  return {};
}

void Holds::link_closed(uint64_t link) {
  for (auto hold = holds_.begin(); hold != holds_.end();) {
    auto next = std::next(hold);
    if (hold->second.claimed_by == link) finish(hold, HoldEnd::kPeerLost);
    hold = next;
  }
}

Holds::Map::iterator Holds::find(ByteView id) { return holds_.find(as_text(id)); }

void Holds::set_deadline(Map::iterator hold) {
  const int64_t now = reactor_.now_ns();
  const int64_t ttl = hold->second.ttl_ns;
  if (hold->second.due != due_.end()) due_.erase(hold->second.due);
  hold->second.due = due_.emplace(ttl > INT64_MAX - now ? INT64_MAX : now + ttl, hold);
}

void Holds::finish(Map::iterator hold, HoldEnd how) {
  ended_.emplace_back(to_bytes(as_bytes(hold->first)), how);
  due_.erase(hold->second.due);
  holds_.erase(hold);
}

void Holds::arm() {
  if (due_.empty()) return;
  const int64_t next = due_.begin()->first;
  if (sweep_.running() && sweep_ns_ <= next) return;
  sweep_ns_ = next;
  sweep_.start(std::max(next - reactor_.now_ns(), kMillisecond), [this] { expire(), arm(); });
}

void Holds::expire() {
  const int64_t now = reactor_.now_ns();
  while (!due_.empty() && due_.begin()->first <= now) finish(due_.begin()->second, HoldEnd::kExpired);
}

}  // namespace moontide::engine
