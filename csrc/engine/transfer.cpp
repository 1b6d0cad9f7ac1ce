#include "engine/transfer.h"

#include <algorithm>

#include "engine/engine.h"

namespace moontide::engine {
namespace {

constexpr uint32_t kAttemptsMax = 4;

bool worth_another_path(Code code) { return code == Code::kUnavailable || code == Code::kUnsupported; }

}  // namespace

Transfer::Transfer(Engine& engine, uint64_t number, TransferOptions options)
    : engine_(engine), number_(number), options_(std::move(options)) {}

Transfer::~Transfer() = default;

std::string Transfer::path() const {
  std::string out;
  for (std::string_view name : paths_) out.append(out.empty() ? "" : "+").append(name);
  return out;
}

void Transfer::launch(PlanRef plan) {
  submitted_ns_ = last_progress_ns_ = engine_.reactor().now_ns();
  plan_ = std::move(plan);
  error_ = plan_->error;
  take_parts();
  for (Part& part : parts_) route(part);
  if (!options_.caller_copies) run_in_reactor();
  finish_if_complete();
}

void Transfer::take_parts() {
  pins_.reserve(plan_->regions.size());
  for (const auto& weak : plan_->regions) {
    auto region = weak.lock();
    MT_CHECK(region != nullptr, "a plan that does not hold was launched");
    pins_.emplace_back(std::move(region), this);
  }
  parts_.resize(plan_->parts.size());
  live_slices_ = parts_.size();
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    part.planned = &plan_->parts[i];
    const Plan::Target& target = plan_->targets[part.planned->target];
    part.link = target.link.lock();
    MT_CHECK(part.link != nullptr, "a plan that does not hold was launched");
    part.local = pins_[part.planned->local].region().get();
    part.since_ns = submitted_ns_;
    part.slice.op = part.planned->op;
    part.slice.remote = target.region;
    part.slice.pieces = part.planned->pieces;
    part.slice.length = part.planned->length;
    part.slice.owner = this;
    part.slice.index = i;
    part.slice.urgent = options_.urgent;
  }
}

// --- paths ---

void Transfer::route(Part& part) {
  if (part.local->missing) {
    return settle(part, fail(Code::kDenied, "the memory of local region " + std::to_string(part.local->id) +
                                                " is not there any more"));
  }
  part.endpoint = part.link->open()
                      ? part.link->choose(*part.slice.remote, part.slice.op, *part.local, part.slice.attempts)
                      : nullptr;
  if (!part.endpoint) {
    Error why = part.link->open()
                    ? Error{Code::kUnsupported, "no path to region '" + part.slice.remote->name + "' of the peer"}
                    : Error{Code::kPeerLost, "the link to the peer is over"};
    return settle(part, std::unexpected(why));
  }
  part.copied = part.endpoint->synchronous();
  if (part.copied) {
    count_path(*part.endpoint);
    work_.push_back(&part);
    work_bytes_ += part.slice.length;
  } else {
    if (part.slice.op == transport::Op::kWrite) peer_bytes_ += part.slice.length;
    wait_for_path(part);
    part.link->scheduler().enqueue(*part.endpoint, shared_from_this());
  }
}

void Transfer::count_path(const transport::Endpoint& endpoint) {
  if (std::ranges::find(paths_, endpoint.name()) == paths_.end()) paths_.push_back(endpoint.name());
}

int64_t Transfer::progress_timeout_ns() const {
  return options_.progress_timeout_ns > 0 ? options_.progress_timeout_ns : engine_.options().progress_timeout_ns;
}

const Transfer::Queue* Transfer::find_queue(const Way& way) const {
  auto found = std::ranges::find(queues_, way, &Queue::way);
  return found == queues_.end() ? nullptr : &*found;
}

Transfer::Queue& Transfer::queue_of(const Way& way) {
  auto found = std::ranges::find(queues_, way, &Queue::way);
  return found == queues_.end() ? queues_.emplace_back(way) : *found;
}

void Transfer::wait_for_path(Part& part) {
  Queue& queue = queue_of({part.link.get(), part.endpoint->transport()});
  (queue.first == nullptr ? queue.first : queue.last->next_waiting) = &part;
  queue.last = &part;
  part.next_waiting = nullptr;
  waiting_bytes_ += part.slice.length;
}

uint64_t Transfer::next_bytes(const Way& way) const {
  const Queue* queue = find_queue(way);
  return queue == nullptr || queue->first == nullptr ? 0 : queue->first->slice.length;
}

bool Transfer::enter_queue(const Way& way) { return !std::exchange(queue_of(way).entered, true); }

void Transfer::leave_queue(const Way& way) { queue_of(way).entered = false; }

bool Transfer::post_next(const Way& way, const std::shared_ptr<transport::Endpoint>& endpoint) {
  auto self = shared_from_this();
  Queue& queue = queue_of(way);
  Part* part = queue.first;
  if (part == nullptr) return false;
  queue.first = std::exchange(part->next_waiting, nullptr);
  waiting_bytes_ -= part->slice.length;
  part->endpoint = endpoint;
  count_path(*endpoint);
  const bool first = posted_ == 0;
  const int64_t now = mark_posted(*part);
  if (first) last_progress_ns_ = now;  // its time begins with its turn
  part->link->scheduler().posted(*endpoint, part->slice.length);
  endpoint->post(part->slice);  // may complete inside, and wait again
  return next_bytes(way) > 0;
}

std::string Transfer::describe_use(const memory::Region& region) const {
  const auto start = reinterpret_cast<uint64_t>(region.address);
  std::string peer, stage;
  for (const Part& part : parts_) {
    const auto first = reinterpret_cast<uint64_t>(part.local->address);
    if (part.over || first >= start + region.length || first + part.local->length <= start) continue;
    peer = part.link->peer_address();
    if (part.posted) {
      stage = "posted on " + std::string(part.endpoint->name());
      break;
    }
    stage = part.endpoint ? "waiting for room on " + std::string(part.endpoint->name()) : "waiting for a path";
  }
  std::string out = "transfer " + std::to_string(number_) + " with " + (peer.empty() ? "nobody any more" : peer) + ", ";
  if (done_) out += "over with " + std::string(code_name(error_.code)) + " and not quiet: ";
  out += stage.empty() ? "ending" : stage;
  return out + ", " + std::to_string(bytes_moved_) + " of " + std::to_string(plan_->bytes) + " bytes moved";
}

std::optional<Transfer::Work> Transfer::take_work() {
  auto self = shared_from_this();
  while (has_work()) {
    Part* part = work_[work_next_++];
    work_bytes_ -= part->slice.length;
    if (!part->link->open()) {
      settle(*part, fail(Code::kPeerLost, "the link to the peer is over"));
      finish_if_complete();
      continue;
    }
    const transport::RemoteRegion& remote = *part->slice.remote;
    if (part->slice.op == transport::Op::kWrite && !part->endpoint->reaches(remote, part->slice.op)) {
      settle(*part, fail(Code::kStale, "the peer unregistered region " + std::to_string(remote.id)));
      finish_if_complete();
      continue;
    }
    mark_posted(*part);
    return Work{&part->slice, part->endpoint, remote.leave};
  }
  return std::nullopt;
}

Result<> Transfer::Work::run() const { return endpoint->copy(*slice->remote, slice->op, slice->pieces); }

void Transfer::finish_work(const Work& work, Result<> outcome) {
  if (outcome) progressed(*work.slice, work.slice->length);
  completed(*work.slice, std::move(outcome));
}

void Transfer::run_in_reactor() {
  if (reactor_running_ || claims_ > 0 || !has_work()) return;
  reactor_running_ = true;
  engine_.reactor().post([self = shared_from_this()] {
    self->reactor_running_ = false;
    if (self->claims_ > 0) return;
    auto work = self->take_work();
    if (!work) return;
    self->finish_work(*work, work->run());
    self->run_in_reactor();
  });
}

void Transfer::unclaim_work() {
  if (--claims_ == 0) run_in_reactor();
}

// --- outcomes ---

void Transfer::progressed(transport::Slice& slice, uint64_t bytes) {
  last_progress_ns_ = engine_.reactor().now_ns();
  Part& part = parts_[slice.index];
  part.moved += bytes;
  if (!part.endpoint->synchronous()) part.link->scheduler().progressed(*part.endpoint);
  if (!done_) bytes_moved_ += bytes;
}

void Transfer::completed(transport::Slice& slice, Result<> outcome) {
  auto self = shared_from_this();
  Part& part = parts_[slice.index];
  part.posted = false;
  --posted_;
  slice.endpoint = nullptr;
  auto endpoint = part.endpoint;
  if (!part.copied && slice.op == transport::Op::kWrite) peer_bytes_ -= slice.length;
  const bool delivered = outcome.has_value();
  bool again = !outcome && !done_ && worth_another_path(outcome.error().code) && slice.attempts + 1 < kAttemptsMax;
  observe_over(part, outcome, again);
  if (again) {
    part.since_ns = engine_.reactor().now_ns();
    ++slice.attempts;
    ++engine_.mutable_counters().retries;
    bytes_moved_ -= std::exchange(part.moved, 0);
    route(part);
    run_in_reactor();
  } else {
    settle(part, outcome);
  }
  finish_if_complete();
  if (!endpoint->synchronous()) part.link->scheduler().over(*endpoint, slice.length, delivered);
}

void Transfer::settle(Part& part, const Result<>& outcome) {
  if (std::exchange(part.over, true)) return;
  --live_slices_;
  if (outcome) {
    auto& counters = engine_.mutable_counters();
    (part.slice.op == transport::Op::kRead ? counters.bytes_read : counters.bytes_written) += part.slice.length;
    counters.count_path(part.endpoint->name(), part.slice.length);
  } else if (!done_) {
    fail_records(part, outcome.error());
  }
}

void Transfer::fail_records(const Part& part, const Error& error) {
  if (error_.code == Code::kOk) error_ = error;
  if (results_.empty()) results_ = plan_->results;
  for (const Plan::Range& range : part.planned->records) {
    for (uint32_t i = 0; i < range.count; ++i) {
      Code& result = results_[range.first + i];
      if (result == Code::kOk) result = error.code;
    }
  }
}

void Transfer::finish_if_complete() {
  if (live_slices_ > 0 || (!done_ && tell_peers())) return;
  if (!done_) set_done();
  if (std::exchange(quiet_told_, true)) return;
  const TransferRef kept = engine_.transfer_quiet(number_);
  pins_.clear();
  if (options_.quiet) std::exchange(options_.quiet, {})();
}

// True while the notification is under way.
bool Transfer::tell_peers() {
  if (telling_ > 0) return true;
  if (!options_.notify || error_.code != Code::kOk) return false;
  std::vector<std::shared_ptr<Link>> links;
  for (Part& part : parts_) {
    if (std::ranges::find(links, part.link) == links.end()) links.push_back(part.link);
  }
  last_progress_ns_ = engine_.reactor().now_ns();
  telling_ = links.size();
  Bytes message = wire::encode(wire::Notify{*std::exchange(options_.notify, {})});
  for (auto& link : links) {
    link->call(wire::kNotify, message, progress_timeout_ns(), [self = shared_from_this()](Result<rpc::Reply> reply) {
      --self->telling_;
      if (!reply && self->error_.code == Code::kOk) {
        self->error_ = {reply.error().code, "the bytes are there, the peer was not notified: " + reply.error().message};
      }
      self->finish_if_complete();
    });
  }
  return telling_ > 0;
}

void Transfer::set_done() {
  done_ = true;
  auto& counters = engine_.mutable_counters();
  ++counters.transfers;
  if (error_.code != Code::kOk) ++counters.transfers_failed;
  observe_done();
  if (options_.done) std::exchange(options_.done, {})();
}

void Transfer::cancel() { end_early({Code::kCanceled, "canceled by the caller"}); }

void Transfer::end_early(const Error& error) {
  if (done_) return;
  auto self = shared_from_this();
  for (Part& part : parts_) {
    if (!part.over) fail_records(part, error);
  }
  work_.clear();
  work_next_ = 0;
  work_bytes_ = 0;
  for (Queue& queue : queues_) queue.first = nullptr;
  waiting_bytes_ = 0;
  set_done();  // the outcome comes first; what is under way ends behind it
  for (Part& part : parts_) {
    if (part.over) continue;
    if (!part.posted) {
      settle(part, std::unexpected(error));
    } else if (part.slice.endpoint != nullptr) {
      part.endpoint->cancel(part.slice);
    }
  }
  finish_if_complete();
}

void Transfer::check_deadline(int64_t now_ns) {
  if (done_) return;
  int64_t timeout = progress_timeout_ns();
  auto is_served = [now_ns, timeout](const Queue& queue) {
    return queue.first != nullptr && queue.first->link->scheduler().moves(queue.way.transport, now_ns - timeout);
  };
  // Others are before it, whose deadlines count; but what is over and not quiet may hold the path for ever.
  if (posted_ == 0 && std::ranges::any_of(queues_, is_served)) return;
  if (now_ns - last_progress_ns_ < timeout) return;
  std::vector<std::shared_ptr<Link>> links;
  for (Part& part : parts_) {
    if (!part.over && std::ranges::find(links, part.link) == links.end()) links.push_back(part.link);
  }
  end_early({Code::kTimedOut, "no progress for " + std::to_string(timeout / kMillisecond) + " ms"});
  for (auto& link : links) link->suspect(timeout);
}

void Transfer::abandon() { end_early({Code::kClosed, "the engine was closed"}); }

}  // namespace moontide::engine
