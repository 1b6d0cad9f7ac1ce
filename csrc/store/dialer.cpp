#include "store/dialer.h"

#include <algorithm>

namespace moontide::store {
namespace {

constexpr int64_t kPauseFirst = 20 * kMillisecond;
constexpr int64_t kPauseMost = kSecond;

}  // namespace

void Dialer::dial() {
  if (connecting_ || pause_.running()) return;
  if (attempts_ == 0 && last_error_.empty()) {
    ++attempts_;
    return attempt();  // the very first
  }
  int64_t most = std::min(kPauseMost, kPauseFirst << std::min<uint32_t>(attempts_, 10));
  ++attempts_;
  pause_.start(static_cast<int64_t>(reactor_.random().below(static_cast<uint64_t>(most))), [this] { attempt(); });
}

void Dialer::attempt() {
  connecting_ = true;
  network_.connect(address_, timeout_ns_,
                   [this, alive = std::weak_ptr(alive_)](Result<std::unique_ptr<io::Stream>> stream) {
                     if (alive.expired()) return;
                     connecting_ = false;
                     if (!stream) {
                       last_error_ = stream.error().text();
                       return dial();
                     }
                     last_error_ = "the connection was lost";
                     connected_(std::move(*stream));
                   });
}

}  // namespace moontide::store
