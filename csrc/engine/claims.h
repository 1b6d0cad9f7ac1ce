// The claiming side of holds: claims, renews by heartbeats while it reads, releases.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/status.h"
#include "engine/link.h"

namespace moontide::engine {

class Claims {
 public:
  explicit Claims(io::Reactor& reactor) : reactor_(reactor) {}

  using Claimed = std::move_only_function<void(Result<Bytes> payload)>;
  using Released = std::move_only_function<void(Result<>)>;

  // `claimed` runs once with the hold's payload; NOT_FOUND, DENIED, EXPIRED as the holder says, TIMED_OUT, PEER_LOST.
  // From then on the hold is renewed until release() or the end of the link.
  void claim(const LinkRef& link, Bytes id, int64_t timeout_ns, Claimed claimed);

  // Success means "held until now": what was read before the call is what the holder kept. Anything else means that the
  // bytes must not be used.
  void release(const LinkRef& link, Bytes id, int64_t timeout_ns, Released released);

  void link_closed(const Link& link);
  size_t size() const { return renewals_.size(); }

 private:
  using Key = std::pair<uint64_t, std::string>;  // link, hold id
  void renew(Key key, std::weak_ptr<Link> link, int64_t period_ns);

  io::Reactor& reactor_;
  std::map<Key, std::unique_ptr<io::Timer>> renewals_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace moontide::engine
