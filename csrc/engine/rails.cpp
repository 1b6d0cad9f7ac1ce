#include "engine/rails.h"

#include "engine/engine.h"

namespace moontide::engine {

void connect_rail(Engine& engine, const LinkIdentity& link, uint32_t rail, int64_t timeout_ns, uint16_t type,
                  Bytes request, std::move_only_function<void(Result<Connection>)> done) {
  engine.network().connect_from(
      link.rail_from(rail), link.rail_to(rail), timeout_ns,
      [&engine, alive = engine.alive(), timeout_ns, type, request = std::move(request),
       done = std::move(done)](Result<std::unique_ptr<io::Stream>> stream) mutable {
        if (alive.expired()) return;
        if (!stream) return done(std::unexpected(stream.error()));
        auto owned = std::make_unique<rpc::Channel>(engine.reactor(), std::move(*stream));
        rpc::Channel& channel = *owned;
        uint64_t number = engine.keep_dialing(std::move(owned));
        channel.start({});
        channel.call(type, std::move(request), timeout_ns,
                     [&engine, alive, number, done = std::move(done)](Result<rpc::Reply> reply) mutable {
                       if (alive.expired()) return;
                       auto dialed = engine.take_dialing(number);
                       // it may be the caller: it goes in a later turn
                       std::shared_ptr<rpc::Channel> kept = std::move(dialed);
                       engine.reactor().post([kept] {});
                       if (!reply) return done(std::unexpected(reply.error()));
                       done(Connection{kept->detach(), std::move(reply->payload)});
                     });
      });
}

}  // namespace moontide::engine
