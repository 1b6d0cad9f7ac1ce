#include "engine/claims.h"

namespace moontide::engine {

void Claims::claim(const LinkRef& link, Bytes id, int64_t timeout_ns, Claimed claimed) {
  auto answered = [this, alive = std::weak_ptr<bool>(alive_), weak = std::weak_ptr<Link>(link), id,
                   claimed = std::move(claimed)](Result<rpc::Reply> reply) mutable {
    if (alive.expired()) return;
    if (!reply) return claimed(std::unexpected(reply.error()));
    auto hold = wire::decode<wire::HoldClaimed>(reply->payload);
    if (!hold) return claimed(std::unexpected(hold.error()));
    auto live = weak.lock();
    if (live && live->open()) {
      Key key{live->number(), std::string(as_text(id))};
      renewals_[key] = std::make_unique<io::Timer>(reactor_);
      renew(key, weak, std::max<int64_t>(static_cast<int64_t>(hold->ttl_ns / 3), kMillisecond));
    }
    claimed(std::move(hold->payload));
  };
  link->call(wire::kHoldClaim, wire::encode(wire::HoldId{std::move(id)}), timeout_ns, std::move(answered));
}

void Claims::renew(Key key, std::weak_ptr<Link> link, int64_t period_ns) {
  auto found = renewals_.find(key);
  if (found == renewals_.end()) return;
  found->second->start(period_ns, [this, key, link, period_ns] {
    auto live = link.lock();
    if (!live || !live->open()) return;
    live->channel()->notify(wire::kHoldRenew, wire::encode(wire::HoldId{to_bytes(as_bytes(key.second))}));
    renew(key, link, period_ns);
  });
}

void Claims::release(const LinkRef& link, Bytes id, int64_t timeout_ns, Released released) {
  renewals_.erase({link->number(), std::string(as_text(id))});
  link->call(wire::kHoldRelease, wire::encode(wire::HoldId{std::move(id)}), timeout_ns,
             [released = std::move(released)](Result<rpc::Reply> reply) mutable {
               if (!reply) return released(std::unexpected(reply.error()));
               released({});
             });
}

void Claims::link_closed(const Link& link) {
  auto at = renewals_.lower_bound({link.number(), {}});
  while (at != renewals_.end() && at->first.first == link.number()) at = renewals_.erase(at);
}

}  // namespace moontide::engine
