#include "store/checksums.h"

#include <algorithm>

#include "base/crc32c.h"

namespace moontide::store {

void ChecksumQueue::add(std::vector<ByteView> spans, Done done) {
  Job job{std::move(spans), 0, 0, std::move(done)};
  if (jobs_.empty() && advance(job)) {
    next_turn();
    return job.done(job.crc);
  }
  jobs_.push_back(std::move(job));
  next_turn();
}

bool ChecksumQueue::advance(Job& job) {
  for (; job.at < job.spans.size(); ++job.at) {
    ByteView& span = job.spans[job.at];
    size_t now = std::min(span.size(), left_);
    job.crc = crc32c(span.first(now), job.crc);
    left_ -= now;
    span = span.subspan(now);
    if (!span.empty()) return false;
  }
  return true;
}

void ChecksumQueue::next_turn() {
  if (std::exchange(posted_, true)) return;
  reactor_.post([this, alive = std::weak_ptr(alive_)] {
    if (!alive.expired()) run();
  });
}

void ChecksumQueue::run() {
  posted_ = false;
  left_ = kBytesPerTurn;
  std::weak_ptr alive = alive_;
  while (!jobs_.empty() && advance(jobs_.front())) {
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    job.done(job.crc);
    if (alive.expired()) return;
  }
  if (!jobs_.empty()) next_turn();
}

}  // namespace moontide::store
