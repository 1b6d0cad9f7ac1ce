// Further connections of a link, over the pair of devices of the caller's choice.
#pragma once

#include <functional>

#include "base/bytes.h"
#include "engine/identity.h"

namespace moontide::engine {

class Engine;

// A connection whose first request was answered; it carries no messages from then on.
struct Connection {
  std::unique_ptr<io::Stream> stream;
  Bytes reply;
};

// Connects over `rail` and sends one request of `type`. `done` runs once in a later turn; UNAVAILABLE, TIMED_OUT, or
// what the peer refused with.
void connect_rail(Engine& engine, const LinkIdentity& link, uint32_t rail, int64_t timeout_ns, uint16_t type,
                  Bytes request, std::move_only_function<void(Result<Connection>)> done);

}  // namespace moontide::engine
