#include "engine/unclaimed.h"

namespace moontide::engine {
namespace {

constexpr int64_t kGraceNs = 2 * kMillisecond;

}  // namespace

void Unclaimed::add(const TransferRef& transfer) {
  leave_to_reactor();
  waiting_.push_back(transfer);
  if (timed_) return;
  timed_ = true;
  timer_.start(kGraceNs, [this] {
    timed_ = false;
    leave_to_reactor();
  });
}

void Unclaimed::leave_to_reactor() {
  for (const auto& one : std::exchange(waiting_, {})) {
    if (auto transfer = one.lock()) transfer->run_in_reactor();
  }
}

}  // namespace moontide::engine
