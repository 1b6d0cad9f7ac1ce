// What a transfer tells the observer, and how it looks from outside.
#include <algorithm>

#include "engine/engine.h"

namespace moontide::engine {
std::string Transfer::trace() const {
  return options_.trace.empty() ? make_trace(engine_.instance(), number_) : options_.trace;
}

int64_t Transfer::mark_posted(Part& part) {
  const int64_t now = engine_.reactor().now_ns();
  part.link->seen().path(part.endpoint->name()).timed(Stage::kQueue).record(now - part.since_ns);
  part.since_ns = now;
  part.posted = true;
  ++posted_;
  return now;
}

void Transfer::observe_over(const Part& part, const Result<>& outcome, bool again) {
  PathSeen& seen = part.link->seen().path(part.endpoint->name());
  if (!outcome) {
    ++count_of(seen.failures, outcome.error().code);
    if (again) ++seen.retries;
    return;
  }
  if (!part.copied) last_progress_ns_ = engine_.reactor().now_ns();  // a copy reported its bytes just now
  seen.timed(part.copied ? Stage::kCopy : Stage::kWire).record(last_progress_ns_ - part.since_ns);
  ++seen.slices;
  (part.slice.op == transport::Op::kRead ? seen.bytes_read : seen.bytes_written) += part.slice.length;
}

void Transfer::observe_done() {
  const int64_t now = error_.code == Code::kOk ? last_progress_ns_ : engine_.reactor().now_ns();
  engine_.observer().transfer_over(now - submitted_ns_, error_.code);
  if (slow_told_ || is_slow(now)) report_slow(now, true);
}

bool Transfer::is_slow(int64_t now_ns) const {
  return engine_.observer().is_slow(now_ns - submitted_ns_, now_ns - last_progress_ns_, bytes_moved_);
}

void Transfer::check_slow(int64_t now_ns) {
  if (done_ || slow_told_ || !is_slow(now_ns)) return;
  slow_told_ = true;
  report_slow(now_ns, false);
}

void Transfer::report_slow(int64_t now_ns, bool over) {
  SlowEvent event;
  size_t walk = 4096;
  TransferView seen = view(now_ns, walk);
  if (options_.served) event.kind = "pull";
  event.over = over;
  event.code = over ? error_.code : Code::kOk;
  event.number = number_;
  event.trace = seen.trace;
  event.age_ns = seen.age_ns;
  event.idle_ns = seen.idle_ns;
  event.bytes_moved = bytes_moved_;
  event.bytes_total = plan_->bytes;
  event.path = path();
  if (!parts_.empty()) event.peer = parts_.front().link->peer_address();
  // where the slice is that has been in one place for longest
  auto oldest = std::ranges::max_element(seen.slices, {}, &SlicesView::oldest_ns);
  if (oldest != seen.slices.end()) {
    event.peer = oldest->address;
    event.stage = stage_name(oldest->stage);
    if (!oldest->path.empty()) event.path = oldest->path;
  }
  engine_.observer().report(std::move(event));
}

}  // namespace moontide::engine
