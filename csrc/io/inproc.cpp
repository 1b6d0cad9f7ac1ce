#include "io/inproc.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "io/leave.h"

namespace moontide::io {
namespace {

// What one stream receives per turn before the others get theirs.
constexpr size_t kTurnBytes = 1u << 20;
constexpr size_t kGatherBytes = 64u << 10;

// What was written and not yet received waits at the receiver's end.
class InprocStream final : public Stream {
 public:
  InprocStream(Reactor& reactor, std::string local, std::string remote)
      : reactor_(reactor), local_(std::move(local)), remote_(std::move(remote)) {}
  ~InprocStream() override { close(); }

  static void join(InprocStream& a, InprocStream& b) {
    a.peer_ = &b;
    b.peer_ = &a;
  }

  void start(StreamSink& sink) override {
    sink_ = &sink;
    resume();
  }
  void resume() override {
    paused_ = false;
    schedule();
  }
  void write(ByteView bytes) override {
    if (peer_ == nullptr || bytes.empty()) return;
    auto& inbox = peer_->inbox_;
    if (!inbox.empty() && !inbox.back().reference && inbox.back().owned.size() + bytes.size() <= kGatherBytes) {
      inbox.back().owned.insert(inbox.back().owned.end(), bytes.begin(), bytes.end());
    } else {
      Piece piece;
      piece.owned = to_bytes(bytes);
      inbox.push_back(std::move(piece));
    }
    peer_->unread_ += bytes.size();
    peer_->schedule();
  }
  void write_reference(ByteView bytes, Sent sent) override {
    if (peer_ == nullptr) {
      return give_back(std::move(sent), fail(Code::kPeerLost, "closed by the peer"));
    }
    Piece piece;
    piece.view = bytes;
    piece.reference = true;
    piece.sent = std::move(sent);
    peer_->inbox_.push_back(std::move(piece));
    peer_->unread_ += bytes.size();
    peer_->schedule();
  }
  Result<> write_with_fds(ByteView, const std::vector<int>&) override {
    return fail(Code::kUnsupported, "descriptors travel over local sockets only");
  }
  size_t pending() const override { return peer_ == nullptr ? 0 : peer_->unread_; }

  void close() override {
    *alive_ = false;
    sink_ = nullptr;
    InprocStream* peer = std::exchange(peer_, nullptr);
    auto unread = std::exchange(inbox_, {});
    unread_ = 0;
    if (peer == nullptr) return;
    // Written copies still arrive; what only refers to the memory of this side goes nowhere, nor does what came after.
    auto& inbox = peer->inbox_;
    const auto first = std::find_if(inbox.begin(), inbox.end(), [](const Piece& piece) { return piece.reference; });
    std::deque<Piece> dropped(std::make_move_iterator(first), std::make_move_iterator(inbox.end()));
    inbox.erase(first, inbox.end());
    peer->peer_ = nullptr;
    for (Piece& piece : unread) {
      if (piece.sent) peer->give_back(std::move(piece.sent), fail(Code::kPeerLost, "closed by the peer"));
    }
    peer->schedule();
  }

  std::string local_address() const override { return local_; }
  std::string peer_address() const override { return remote_; }
  Result<PeerCredentials> credentials() const override {
    return fail(Code::kUnsupported, "the peer is in this process");
  }

 private:
  struct Piece {
    Bytes owned;
    ByteView view;  // the caller's memory, when `reference`
    size_t used = 0;
    bool reference = false;
    Sent sent;
    ByteView rest() const { return (reference ? view : ByteView(owned)).subspan(used); }
  };

  void give_back(Sent sent, Result<> outcome) {
    reactor_.post([alive = alive_, sent = std::move(sent), outcome = std::move(outcome)]() mutable {
      if (*alive) sent(std::move(outcome));
    });
  }

  void schedule() {
    if (scheduled_ || !*alive_) return;
    scheduled_ = true;
    reactor_.post([this, alive = alive_] {
      if (!*alive) return;
      scheduled_ = false;
      if (sink_ != nullptr && !paused_) receive_turn();
    });
  }

  void receive_turn() {
    const std::shared_ptr<bool> alive = alive_;
    size_t moved = 0;
    while (!inbox_.empty() && moved < kTurnBytes) {
      if (!inbox_.front().rest().empty()) {
        const MutableBytes room = sink_->want();
        if (!*alive) return;
        if (room.empty()) {
          paused_ = true;
          return;
        }
        // Asked for only now: a callback may have appended to it.
        const ByteView rest = inbox_.front().rest();
        const size_t count = std::min(room.size(), rest.size());
        std::memcpy(room.data(), rest.data(), count);
        inbox_.front().used += count;
        unread_ -= count;
        moved += count;
        sink_->arrived(count);
        if (!*alive) return;
      }
      if (!inbox_.empty() && inbox_.front().rest().empty()) {
        Piece done = std::move(inbox_.front());
        inbox_.pop_front();
        if (done.sent && peer_ != nullptr) peer_->give_back(std::move(done.sent), {});
      }
    }
    if (!inbox_.empty()) return schedule();
    if (peer_ == nullptr) std::exchange(sink_, nullptr)->closed({Code::kPeerLost, "closed by the peer"});
  }

  Reactor& reactor_;
  const std::string local_;
  const std::string remote_;
  InprocStream* peer_ = nullptr;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  StreamSink* sink_ = nullptr;
  bool paused_ = false;
  bool scheduled_ = false;
  std::deque<Piece> inbox_;
  size_t unread_ = 0;
};

}  // namespace

class InprocListener final : public Listener {
 public:
  InprocListener(std::shared_ptr<InprocNetwork::Listeners> listeners, std::string address, Network::Accepted accepted)
      : listeners_(std::move(listeners)), address_(std::move(address)), accepted_(std::move(accepted)) {
    listeners_->emplace(address_, this);
  }
  ~InprocListener() override { listeners_->erase(address_); }
  std::string address() const override { return address_; }

  void accept(std::unique_ptr<Stream> stream) {
    const std::shared_ptr<bool> alive = alive_;
    Network::Accepted accepted = std::move(accepted_);
    accepted(std::move(stream));
    if (alive.use_count() > 1) accepted_ = std::move(accepted);
  }

 private:
  std::shared_ptr<InprocNetwork::Listeners> listeners_;
  const std::string address_;
  Network::Accepted accepted_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

InprocNetwork::InprocNetwork(Reactor& reactor) : reactor_(reactor), listeners_(std::make_shared<Listeners>()) {}

Result<std::unique_ptr<Listener>> InprocNetwork::listen(const std::string& address, Accepted accepted) {
  if (!names(address) || address.size() == 7)
    return fail(Code::kInvalid, "address '" + address + "' is not inproc:NAME");
  if (listeners_->contains(address)) return fail(Code::kUnavailable, "cannot listen on " + address + ": in use");
  return std::unique_ptr<Listener>(std::make_unique<InprocListener>(listeners_, address, std::move(accepted)));
}

void InprocNetwork::connect(const std::string& address, int64_t, Connected connected) {
  reactor_.post([&reactor = reactor_, listeners = listeners_, address, connected = std::move(connected)]() mutable {
    if (!names(address)) return connected(fail(Code::kInvalid, "address '" + address + "' is not inproc:NAME"));
    const auto found = listeners->find(address);
    if (found == listeners->end()) {
      return connected(fail(Code::kUnavailable, "cannot connect to " + address + ": nobody listens"));
    }
    auto client = std::make_unique<InprocStream>(reactor, "inproc:", address);
    auto server = std::make_unique<InprocStream>(reactor, address, "inproc:");
    InprocStream::join(*client, *server);
    found->second->accept(std::move(server));
    connected(std::unique_ptr<Stream>(std::move(client)));
  });
}

Result<NewLeave> RoutedNetwork::give_leave(const PeerCredentials& holder, Task over) {
  return others_.give_leave(holder, std::move(over));
}

}  // namespace moontide::io
