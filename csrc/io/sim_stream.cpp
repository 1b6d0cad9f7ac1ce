#include "io/sim_stream.h"

#include <algorithm>
#include <cstring>

namespace moontide::io {
namespace {

constexpr uint64_t kSegmentMax = 16u << 10;
constexpr uint64_t kWindowLeast = 16u << 10;
constexpr uint64_t kWindowMost = 256u << 10;

// All of it half of the time, else any part.
size_t random_part(Random& random, size_t most) {
  return random.below(2) == 0 ? most : 1 + static_cast<size_t>(random.below(most));
}

}  // namespace

// --- SimWay ---

SimWay::SimWay(SimFabric& fabric, std::string from, std::string to)
    : from(std::move(from)),
      to(std::move(to)),
      fabric_(fabric),
      window_(kWindowLeast + fabric.world().random().below(kWindowMost - kWindowLeast)) {}

void SimWay::send(Bytes bytes) {
  held_ += bytes.size();
  Segment segment;
  segment.bytes = std::move(bytes);
  segment.arrives_ns = fabric_.world().time_ns() + fabric_.delay_ns(from, to);
  travel(std::move(segment));
}

void SimWay::finish(int64_t after_ns) {
  if (std::exchange(finished_, true)) return;
  Segment segment;
  segment.last = true;
  segment.arrives_ns = fabric_.world().time_ns() + after_ns + fabric_.delay_ns(from, to);
  travel(std::move(segment));
}

void SimWay::travel(Segment segment) {
  last_arrival_ns_ = segment.arrives_ns = std::max(segment.arrives_ns, last_arrival_ns_);
  flight_.push_back(std::move(segment));
  schedule();
}

void SimWay::schedule() {
  if (scheduled_ || flight_.empty() || fabric_.is_cut(from, to)) return;
  scheduled_ = true;
  fabric_.world().after(flight_.front().arrives_ns - fabric_.world().time_ns(), [self = shared_from_this()] {
    self->scheduled_ = false;
    self->land();
  });
}

void SimWay::retry() {
  schedule();
  if (ack_waits_) tell_sender();
}

void SimWay::land() {
  if (fabric_.is_cut(from, to)) return;
  Segment segment = std::move(flight_.front());
  flight_.pop_front();
  fabric_.world().note(segment.bytes.size());
  if (receiver == nullptr) {
    held_ -= segment.bytes.size();
    if (!segment.last) answer_for_the_dead();
  } else {
    arrived_.insert(arrived_.end(), segment.bytes.begin(), segment.bytes.end());
    over_ = over_ || segment.last;
    receiver->readable();
  }
  schedule();
}

// Bytes for an end that is gone: a live kernel answers with a reset, a dark machine not at all, until the sender's own
// kernel gives up.
void SimWay::answer_for_the_dead() {
  SimWorld& world = fabric_.world();
  int64_t after_ns = fabric_.delay_ns(to, from);
  if (receiver_dark && fabric_.dark_.contains(to)) {
    after_ns = 2 * kSecond + static_cast<int64_t>(world.random().below(8 * kSecond));
  }
  world.after(after_ns, [self = shared_from_this()] {
    if (self->sender != nullptr) self->sender->reset_by_peer();
  });
}

void SimWay::consumed(size_t count) {
  const bool full = room() == 0;
  held_ -= count;
  if (!full) return;
  fabric_.world().after(fabric_.delay_ns(to, from), [self = shared_from_this()] { self->tell_sender(); });
}

void SimWay::tell_sender() {
  ack_waits_ = fabric_.is_cut(to, from);
  if (!ack_waits_ && sender != nullptr) sender->writable();
}

// --- SimStream ---

SimStream::SimStream(SimFabric& fabric, SimProcess& process, std::shared_ptr<SimNetwork::Registry> registry,
                     std::shared_ptr<SimWay> outward, std::shared_ptr<SimWay> inward)
    : fabric_(fabric),
      process_(process),
      registry_(std::move(registry)),
      id_(registry_->next_id++),
      outward_(std::move(outward)),
      inward_(std::move(inward)) {
  outward_->sender = this;
  inward_->receiver = this;
  registry_->streams[id_] = this;
}

SimStream::~SimStream() { close(); }

void SimStream::unlink() {
  outward_->sender = nullptr;
  inward_->receiver = nullptr;
  registry_->streams.erase(id_);
}

void SimStream::close() {
  *alive_ = false;
  sink_ = nullptr;
  if (!std::exchange(ended_, true)) {
    unlink();
    // The kernel of a process that died has said so already, or died with it.
    if (process_.alive()) outward_->finish();
  }
  pending_ = 0;
  auto queue = std::exchange(queue_, {});
}

void SimStream::start(StreamSink& sink) {
  if (ended_) return;
  sink_ = &sink;
  resume();
}

void SimStream::resume() {
  paused_ = false;
  if (!ended_ && (inward_->read_ < inward_->arrived_.size() || inward_->over_)) readable();
}

void SimStream::readable() {
  if (std::exchange(reading_, true)) return;
  process_.deliver([this, alive = alive_] {
    if (!*alive) return;
    reading_ = false;
    if (sink_ != nullptr && !paused_ && !ended_) read_some();
  });
}

void SimStream::read_some() {
  SimWay& way = *inward_;
  const std::shared_ptr<bool> alive = alive_;
  const size_t left = way.arrived_.size() - way.read_;
  if (left > 0) {
    const MutableBytes room = sink_->want();
    if (!*alive) return;
    if (room.empty()) {
      paused_ = true;
      return;
    }
    const size_t count = random_part(fabric_.world().random(), std::min(room.size(), left));
    std::memcpy(room.data(), way.arrived_.data() + way.read_, count);
    way.read_ += count;
    if (way.read_ == way.arrived_.size()) {
      way.arrived_.clear();
      way.read_ = 0;
    }
    way.consumed(count);
    sink_->arrived(count);
    if (!*alive) return;
  } else if (way.over_) {
    return end({Code::kPeerLost, "closed by the peer"});
  }
  if (way.read_ < way.arrived_.size() || way.over_) readable();
}

void SimStream::write(ByteView bytes) {
  if (ended_ || bytes.empty()) return;
  Piece piece;
  piece.owned = to_bytes(bytes);
  piece.rest = piece.owned;
  pending_ += bytes.size();
  queue_.push_back(std::move(piece));
  flush();
}

void SimStream::write_reference(ByteView bytes, Sent sent) {
  if (ended_) {
    process_.post([alive = alive_, sent = std::move(sent)]() mutable {
      if (*alive) sent(fail(Code::kPeerLost, "closed by the peer"));
    });
    return;
  }
  Piece piece;
  piece.rest = bytes;
  piece.sent = std::move(sent);
  pending_ += bytes.size();
  queue_.push_back(std::move(piece));
  flush();
}

Result<> SimStream::write_with_fds(ByteView, const std::vector<int>&) {
  return fail(Code::kUnsupported, "descriptors travel over local sockets only");
}

Result<PeerCredentials> SimStream::credentials() const {
  return fail(Code::kUnsupported, "no kernel names the peer of a simulated connection");
}

void SimStream::writable() {
  process_.deliver([this, alive = alive_] {
    if (*alive && !ended_) flush();
  });
}

void SimStream::flush() {
  Random& random = fabric_.world().random();
  while (!queue_.empty()) {
    Piece& piece = queue_.front();
    if (!piece.rest.empty()) {
      const size_t room = std::min({outward_->room(), piece.rest.size(), static_cast<size_t>(kSegmentMax)});
      if (room == 0) return;
      const size_t count = random_part(random, room);
      outward_->send(to_bytes(piece.rest.first(count)));
      piece.rest = piece.rest.subspan(count);
      pending_ -= count;
    }
    if (!piece.rest.empty()) continue;
    Sent sent = std::move(piece.sent);
    queue_.pop_front();
    if (!sent) continue;
    process_.post([alive = alive_, sent = std::move(sent)]() mutable {
      if (*alive) sent({});
    });
  }
}

void SimStream::reset_by_peer() {
  process_.deliver([this, alive = alive_] {
    if (*alive && !ended_) end({Code::kPeerLost, "reset by the peer"});
  });
}

// In a turn of the process: the last thing this stream does.
void SimStream::end(Error cause) {
  const std::shared_ptr<bool> alive = alive_;
  ended_ = true;
  unlink();
  outward_->finish();
  pending_ = 0;
  for (Piece& piece : std::exchange(queue_, {})) {
    if (!piece.sent) continue;
    piece.sent(std::unexpected(cause));
    if (!*alive) return;
  }
  if (sink_ != nullptr) std::exchange(sink_, nullptr)->closed(std::move(cause));
}

void SimStream::process_died(bool dark) {
  if (std::exchange(ended_, true)) return;
  unlink();
  inward_->receiver_dark = dark;
  if (!dark) outward_->finish(static_cast<int64_t>(fabric_.world().random().below(5 * kMillisecond)));
}

}  // namespace moontide::io
