// CRC-32C of memory, a bounded number of bytes per turn of the reactor.
//
// Thread: the reactor's. The memory stays valid until `done` ran, or until the queue is destroyed.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "io/reactor.h"

namespace moontide::store {

class ChecksumQueue {
 public:
  using Done = std::move_only_function<void(uint32_t crc)>;

  explicit ChecksumQueue(io::Reactor& reactor) : reactor_(reactor) {}

  // Over the spans one after the other. `done` runs inside this call when this turn has room for it, else in a later
  // one; in the order of adding.
  void add(std::vector<ByteView> spans, Done done);

 private:
  static constexpr size_t kBytesPerTurn = 2u << 20;

  struct Job {
    std::vector<ByteView> spans;
    size_t at = 0;  // of spans
    uint32_t crc = 0;
    Done done;
  };

  // True when the job is finished.
  bool advance(Job& job);
  void next_turn();
  void run();

  io::Reactor& reactor_;
  std::deque<Job> jobs_;
  size_t left_ = kBytesPerTurn;
  bool posted_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace moontide::store
