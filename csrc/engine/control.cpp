#include "engine/control.h"

#include "engine/engine.h"

namespace moontide::engine {
namespace {

constexpr int64_t kBeatNs = 150 * kMillisecond;
constexpr int64_t kSilenceNs = 250 * kMillisecond;
constexpr int64_t kAgainNs = 50 * kMillisecond;
constexpr size_t kKeptBytesMax = 64u << 20;

}  // namespace

Control::Control(Engine& engine, Link& link, rpc::Channel& channel, const LinkIdentity& identity)
    : engine_(engine),
      link_(link),
      channel_(channel),
      identity_(identity),
      timer_(engine.reactor()),
      alive_ns_(engine.reactor().now_ns()) {
  channel_.keep_for_resume(kKeptBytesMax);
  if (identity_.initiator) timer_.start(kBeatNs, [this] { beat(); });
}

void Control::heard() { alive_ns_ = engine_.reactor().now_ns(); }

void Control::resumed(std::unique_ptr<io::Stream> stream, uint64_t peer_received) {
  heard();
  channel_.resume(std::move(stream), peer_received);
}

void Control::beat() {
  link_.call(wire::kPing, {}, kSilenceNs, [this, weak = link_.weak_from_this()](Result<rpc::Reply> reply) {
    auto link = weak.lock();
    if (!link || !link->open()) return;
    if (reply) {
      heard();
      timer_.start(kBeatNs, [this] { beat(); });
    } else {
      move();
    }
  });
}

void Control::move() {
  channel_.suspend();
  ++engine_.mutable_counters().control_moves;
  move_until_ns_ = engine_.reactor().now_ns() + engine_.options().progress_timeout_ns;
  try_next();
}

void Control::try_next() {
  rail_ = (rail_ + 1) % identity_.rail_count();
  wire::Resume request{identity_.token, channel_.received()};
  connect_rail(engine_, identity_, rail_, kSilenceNs, wire::kResume, wire::encode(request),
               [this, weak = link_.weak_from_this()](Result<Connection> connection) {
                 auto link = weak.lock();
                 if (link && link->open()) tried(std::move(connection));
               });
}

void Control::tried(Result<Connection> connection) {
  Error why = connection ? Error{} : connection.error();
  if (connection) {
    auto answer = wire::decode<wire::Resumed>(connection->reply);
    if (answer) {
      resumed(std::move(connection->stream), answer->received);
      return beat();
    }
    why = answer.error();
  }
  // the peer lives and knows nothing of this link, or nobody has answered on any rail
  if (why.code == Code::kNotFound) return link_.close({Code::kPeerLost, "the peer gave the link up"});
  if (engine_.reactor().now_ns() >= move_until_ns_) {
    return link_.give_up({Code::kPeerLost, "no sign of life on any rail; the last one: " + why.text()});
  }
  timer_.start(kAgainNs, [this] { try_next(); });
}

}  // namespace moontide::engine
