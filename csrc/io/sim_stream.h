// One end of a simulated connection, and the way that bytes take in one direction.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "io/sim_network.h"

namespace moontide::io {

// Kernel buffers and wire from one end to the other; lives as long as anything is under way.
class SimWay final : public std::enable_shared_from_this<SimWay> {
 public:
  SimWay(SimFabric& fabric, std::string from, std::string to);

  // Room for the sender's next bytes; 0 when the window is full.
  size_t room() const { return held_ < window_ ? window_ - held_ : 0; }
  void send(Bytes bytes);
  // The sender's end is gone: the receiver learns it after the bytes that were sent before.
  void finish(int64_t after_ns = 0);
  // Tries again what a cut held up.
  void retry();

  SimStream* sender = nullptr;    // null once closed
  SimStream* receiver = nullptr;  // null once closed
  bool receiver_dark = false;     // its machine died: nobody answers for it

  const std::string from;
  const std::string to;

 private:
  friend class SimStream;
  struct Segment {
    Bytes bytes;
    bool last = false;
    int64_t arrives_ns = 0;
  };
  void travel(Segment segment);
  void schedule();
  void land();
  void answer_for_the_dead();
  void consumed(size_t count);
  void tell_sender();

  SimFabric& fabric_;
  std::deque<Segment> flight_;
  int64_t last_arrival_ns_ = 0;
  bool scheduled_ = false;
  bool ack_waits_ = false;
  size_t window_;
  size_t held_ = 0;  // sent and not yet read
  Bytes arrived_;
  size_t read_ = 0;
  bool over_ = false;  // the end has arrived
  bool finished_ = false;
};

class SimStream final : public Stream {
 public:
  SimStream(SimFabric& fabric, SimProcess& process, std::shared_ptr<SimNetwork::Registry> registry,
            std::shared_ptr<SimWay> outward, std::shared_ptr<SimWay> inward);
  ~SimStream() override;

  void start(StreamSink& sink) override;
  void resume() override;
  void write(ByteView bytes) override;
  void write_reference(ByteView bytes, Sent sent) override;
  Result<> write_with_fds(ByteView bytes, const std::vector<int>& fds) override;
  size_t pending() const override { return pending_; }
  void close() override;
  std::string local_address() const override { return "sim:" + outward_->from; }
  std::string peer_address() const override { return "sim:" + outward_->to; }
  Result<PeerCredentials> credentials() const override;

 private:
  friend class SimNetwork;
  friend class SimWay;
  struct Piece {
    Bytes owned;
    ByteView rest;
    Sent sent;
  };
  void readable();
  void read_some();
  void writable();
  void flush();
  void reset_by_peer();
  void end(Error cause);
  void process_died(bool dark);
  void unlink();

  SimFabric& fabric_;
  SimProcess& process_;
  std::shared_ptr<SimNetwork::Registry> registry_;
  uint64_t id_;
  std::shared_ptr<SimWay> outward_;
  std::shared_ptr<SimWay> inward_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  StreamSink* sink_ = nullptr;
  bool paused_ = false;
  bool reading_ = false;  // a turn that reads is on its way
  bool ended_ = false;
  std::deque<Piece> queue_;
  size_t pending_ = 0;
};

}  // namespace moontide::io
