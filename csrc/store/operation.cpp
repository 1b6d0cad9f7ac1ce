#include "store/operation.h"

namespace moontide::store {

Operation::Operation(io::Reactor& reactor, size_t items, OperationOptions options)
    : reactor_(reactor),
      options_(std::move(options)),
      results_(items, Result<uint64_t>(0)),
      settled_(items, false),
      left_(items) {
  deadline_timer_.emplace(reactor);
  retry_timer_.emplace(reactor);
}

void Operation::begin(int64_t timeout_ns) {
  began_ns_ = reactor_.now_ns();
  deadline_ns_ = began_ns_ + timeout_ns;
  if (left_ == 0) return finish({});
  deadline_timer_->start(timeout_ns, [this] { end({Code::kTimedOut, "the operation's deadline has passed"}); });
}

void Operation::settle(size_t item, Result<uint64_t> result) {
  if (settled_[item]) return;
  settled_[item] = true;
  results_[item] = std::move(result);
  if (--left_ == 0) finish({});
}

void Operation::end(const Error& cause) {
  if (done()) return;
  std::vector<size_t> unfinished;
  for (size_t i = 0; i < settled_.size(); ++i) {
    if (settled_[i]) continue;
    settled_[i] = true;
    results_[i] = std::unexpected(why(i, cause));
    unfinished.push_back(i);
  }
  left_ = 0;
  finish(unfinished);
}

void Operation::finish(const std::vector<size_t>& unfinished) {
  auto self = shared_from_this();
  deadline_timer_->stop();
  retry_timer_->stop();
  hold();  // ended() may release the last one, and quiet comes after the outcome
  ended(unfinished);
  if (options_.on_done) reactor_.post(std::move(options_.on_done));
  release();
}

void Operation::release() {
  --holds_;
  if (done()) tell_quiet();
}

void Operation::tell_quiet() {
  if (holds_ > 0 || std::exchange(quiet_told_, true)) return;
  if (options_.on_quiet) reactor_.post(std::move(options_.on_quiet));
}

}  // namespace moontide::store
