// One connected socket.
#pragma once

#include <sys/uio.h>

#include <deque>
#include <memory>
#include <vector>

#include "io/epoll_reactor.h"
#include "io/network.h"
#include "io/socket.h"

namespace moontide::io {

class SocketStream final : public Stream, private FdHandler, private PutOff {
 public:
  // `accepted` counts the streams of a listener; null for connected ones.
  SocketStream(EpollReactor& reactor, std::shared_ptr<SocketShared> shared, Fd fd, bool local,
               std::shared_ptr<size_t> accepted);
  ~SocketStream() override;

  void start(StreamSink& sink) override;
  void resume() override;
  void write(ByteView bytes) override;
  void write_reference(ByteView bytes, Sent sent) override {
    write_references({}, std::span(&bytes, 1), std::move(sent));
  }
  void write_references(ByteView head, std::span<const ByteView> parts, Sent sent) override;
  Result<> write_with_fds(ByteView bytes, const std::vector<int>& fds) override;
  size_t pending() const override { return pending_; }
  void close() override;
  std::string local_address() const override;
  std::string peer_address() const override;
  Result<PeerCredentials> credentials() const override;

  static constexpr size_t kFdsMax = 16;

 private:
  struct Piece {
    Bytes owned;
    ByteView rest;  // into `owned` or into the caller's memory
    bool reference = false;
    Sent sent;
    std::vector<Fd> fds;
  };
  // True while this stream lives and has not been closed; what callbacks and later turns check.
  using Alive = std::shared_ptr<bool>;

  void ready(uint32_t events) override;
  void now() override;
  void post_pump();
  void read_turn();
  bool deliver(ByteView bytes, size_t& used);
  size_t gather(MutableBytes first, iovec* pieces, int& count);
  ssize_t receive(iovec* pieces, int count, std::vector<Fd>& fds);
  void read_while_idle();
  void end(Error cause);

  void queue_piece(Piece piece);
  void flush();
  void send_last();
  ssize_t send_some(size_t& asked);
  void advance(size_t count);
  void write_failed(int cause);
  void complete(Sent sent, Result<> outcome);
  void run_completed();
  void update_interest();

  EpollReactor& reactor_;
  std::shared_ptr<SocketShared> shared_;
  Fd fd_;
  const bool local_;
  std::shared_ptr<size_t> accepted_;
  Alive alive_ = std::make_shared<bool>(true);
  WatchId watch_ = 0;

  StreamSink* sink_ = nullptr;
  bool paused_ = false;
  bool hung_up_ = false;  // the kernel reports the end again and again; not watched until it is wanted
  Bytes leftover_;        // arrived while the sink had no room
  size_t leftover_used_ = 0;

  std::deque<Piece> queue_;
  size_t pending_ = 0;
  bool put_off_ = false;  // what is queued goes at the end of this event
  bool write_over_ = false;
  Error write_error_;
  std::vector<std::pair<Sent, Result<>>> completed_;
};

}  // namespace moontide::io
