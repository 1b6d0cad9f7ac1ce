// Notifications that peers sent, until the application takes them. Bounded: a sender is told when there is no room.
//
// Thread: under the engine's lock.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "base/bytes.h"
#include "base/id.h"
#include "base/status.h"

namespace moontide::engine {

struct Notification {
  InstanceId from;
  Bytes payload;
};

class Mailbox {
 public:
  static constexpr size_t kPayloadMax = 1u << 20;
  static constexpr size_t kCountMax = 65536;
  static constexpr size_t kBytesMax = 64u << 20;

  // TOO_LARGE, OVERLOADED.
  Result<> put(const InstanceId& from, Bytes payload);
  // All of them, oldest first.
  std::vector<Notification> take();
  // `arrived` runs once: now if something is there, else with the next one.
  void on_arrival(std::move_only_function<void()> arrived);

 private:
  std::deque<Notification> waiting_;
  size_t bytes_ = 0;
  std::vector<std::move_only_function<void()>> watchers_;
};

}  // namespace moontide::engine
