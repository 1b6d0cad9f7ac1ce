#include "engine/scheduler.h"

#include <algorithm>

#include "engine/engine.h"

namespace moontide::engine {
namespace {

// In flight on one of several paths: what it delivers in this time, within bounds. Enough to keep it busy, little
// enough that the others need not wait for it at the end.
constexpr double kWindowNs = 20.0 * kMillisecond;
constexpr double kWindowLeast = 256u << 10;
constexpr double kWindowMost = 64u << 20;
constexpr double kWindowUnknown = 4u << 20;
constexpr double kRateUnknown = 1.0;  // bytes/ns

// A rate is learned from at least so much, in at least so long.
constexpr uint64_t kSampleBytes = 256u << 10;
constexpr int64_t kSampleNs = kMillisecond;
constexpr double kSampleWeight = 0.25;

constexpr int64_t kWatchNs = 50 * kMillisecond;
constexpr int64_t kStalledNs = 250 * kMillisecond;
constexpr int64_t kProbeNs = kSecond;

}  // namespace

Scheduler::Scheduler(Link& link) : link_(link), watch_(link.reactor()) {}

Path& Scheduler::add(std::shared_ptr<transport::Endpoint> endpoint) {
  Path& path = paths_.emplace_back();
  path.endpoint = std::move(endpoint);
  groups_[path.endpoint->transport()].paths.push_back(&path);
  return path;
}

Path* Scheduler::find(const transport::Endpoint& endpoint) {
  auto found = std::ranges::find_if(paths_, [&](const Path& path) { return path.endpoint.get() == &endpoint; });
  return found == paths_.end() ? nullptr : &*found;
}

// --- posting ---

void Scheduler::enqueue(const transport::Endpoint& endpoint, const std::shared_ptr<Transfer>& transfer) {
  Group& group = groups_[endpoint.transport()];
  if (transfer->enter_queue({&link_, endpoint.transport()}))
    (transfer->urgent() ? group.urgent : group.bulk).push_back(transfer);
  if (!link_.reactor().turn_is_near()) return pump(group);
  // what is submitted before that turn leaves with it, and the submitter does not pay for the system call
  if (std::exchange(group.deferred, true)) return;
  link_.reactor().post([this, &group, weak = link_.weak_from_this()] {
    auto self = weak.lock();
    if (!self) return;
    group.deferred = false;
    pump(group);
  });
}

// The first one that still has something to post.
std::shared_ptr<Transfer> Scheduler::front(Queue& queue, std::string_view transport) {
  const Transfer::Way way{&link_, transport};
  while (!queue.empty()) {
    auto transfer = queue.front().lock();
    if (transfer && transfer->next_bytes(way) > 0) return transfer;
    if (transfer) transfer->leave_queue(way);
    queue.pop_front();
  }
  return nullptr;
}

void Scheduler::pump(Group& group) {
  if (std::exchange(group.pumping, true)) return;  // posting completed a slice: the loop below goes on
  auto self = link_.shared_from_this();
  const std::string_view transport = group.paths.front()->endpoint->transport();
  const Transfer::Way way{&link_, transport};
  while (true) {
    auto transfer = front(group.urgent, transport);
    const bool urgent = transfer != nullptr;
    if (!urgent) transfer = front(group.bulk, transport);
    if (!transfer) break;
    Path* path = pick(group, transfer->next_bytes(way), urgent);
    if (path == nullptr) break;
    Queue& queue = urgent ? group.urgent : group.bulk;
    queue.pop_front();
    if (transfer->post_next(way, path->endpoint)) {
      queue.push_back(transfer);
    } else {
      transfer->leave_queue(way);
    }
  }
  group.pumping = false;
}

double Scheduler::rate(const Group& group, const Path& path) const {
  if (path.bytes_per_ns > 0) return path.bytes_per_ns;
  double known = 0;
  for (const Path* other : group.paths) known = std::max(known, other->bytes_per_ns);
  return known > 0 ? known : kRateUnknown;
}

Path* Scheduler::pick(const Group& group, uint64_t bytes, bool urgent) const {
  Path* best = nullptr;
  double best_ns = 0;
  for (Path* path : group.paths) {
    if (!path->usable() || path->endpoint->room(urgent) == 0) continue;
    if (group.paths.size() == 1) return path;
    double window =
        path->bytes_per_ns > 0 ? std::clamp(path->bytes_per_ns * kWindowNs, kWindowLeast, kWindowMost) : kWindowUnknown;
    double after = static_cast<double>(path->posted_bytes + bytes);
    if (!urgent && path->posted > 0 && after > window) continue;
    double ns = after / rate(group, *path);
    if (best == nullptr || ns < best_ns) best = path, best_ns = ns;
  }
  if (best != nullptr && !urgent && others_are_sooner(group, *best, best_ns)) return nullptr;
  return best;
}

// Would some busy path have all that waits done before `path` had one slice of it?
bool Scheduler::others_are_sooner(const Group& group, const Path& path, double by_ns) const {
  double waiting = -1;
  for (const Path* other : group.paths) {
    if (other == &path || !other->usable() || other->posted == 0) continue;
    if (waiting < 0) waiting = static_cast<double>(waiting_bytes(group));
    if ((static_cast<double>(other->posted_bytes) + waiting) / rate(group, *other) < by_ns) return true;
  }
  return false;
}

uint64_t Scheduler::waiting_bytes(const Group& group) {
  uint64_t sum = 0;
  for (const Queue* queue : {&group.urgent, &group.bulk}) {
    for (const auto& waiting : *queue) {
      if (auto transfer = waiting.lock()) sum += transfer->waiting_bytes();
    }
  }
  return sum;
}

// --- what the slices show ---

void Scheduler::posted(const transport::Endpoint& endpoint, uint64_t bytes) {
  Path* path = find(endpoint);
  if (path == nullptr) return;
  if (path->posted++ == 0) {
    path->counted_from_ns = path->progress_ns = link_.reactor().now_ns();
    path->counted_bytes = 0;
    watch_soon();
  }
  path->posted_bytes += bytes;
}

void Scheduler::progressed(const transport::Endpoint& endpoint) {
  if (Path* path = find(endpoint)) path->progress_ns = link_.reactor().now_ns();
}

void Scheduler::over(const transport::Endpoint& endpoint, uint64_t bytes, bool delivered) {
  Path* path = find(endpoint);
  if (path == nullptr) return;
  --path->posted;
  path->posted_bytes -= bytes;
  if (delivered) {
    const int64_t now_ns = link_.reactor().now_ns();
    path->progress_ns = now_ns;
    path->counted_bytes += bytes;
    learn(*path, now_ns);
  }
  pump(groups_[endpoint.transport()]);
}

void Scheduler::learn(Path& path, int64_t now_ns) {
  const int64_t took_ns = now_ns - path.counted_from_ns;
  if (path.counted_bytes < kSampleBytes || took_ns < kSampleNs) return;
  const double sample = static_cast<double>(path.counted_bytes) / static_cast<double>(took_ns);
  path.bytes_per_ns += path.bytes_per_ns > 0 ? (sample - path.bytes_per_ns) * kSampleWeight : sample;
  path.counted_bytes = 0;
  path.counted_from_ns = now_ns;
}

bool Scheduler::moves(std::string_view transport, int64_t since_ns) const {
  return std::ranges::any_of(paths_, [&](const Path& path) {
    return path.usable() && path.endpoint->transport() == transport &&
           (path.posted == 0 || path.progress_ns > since_ns);
  });
}

std::shared_ptr<const std::byte> Scheduler::view(const transport::RemoteRegion& remote) const {
  for (const Path& path : paths_) {
    if (!path.usable()) continue;
    if (auto memory = path.endpoint->view(remote)) return memory;
  }
  return nullptr;
}

double Scheduler::bytes_per_ns(std::string_view transport) const {
  double best = 0;
  for (const Path& path : paths_) {
    if (path.endpoint->transport() == transport) best = std::max(best, path.bytes_per_ns);
  }
  return best;
}

// --- paths that fail ---

void Scheduler::watch_soon() {
  if (watch_.running()) return;
  bool several = std::ranges::any_of(groups_, [](const auto& group) { return group.second.paths.size() > 1; });
  if (several) watch_.start(kWatchNs, [this] { watch(); });
}

void Scheduler::watch() {
  const int64_t now_ns = link_.reactor().now_ns();
  bool busy = false;
  for (Path& path : paths_) {
    if (path.posted == 0 || path.quarantined) continue;
    busy = true;
    if (groups_[path.endpoint->transport()].paths.size() == 1 || now_ns - path.progress_ns < kStalledNs) continue;
    // silent alone is not failed: the peer may be stopped
    if (link_.alive_since(path.progress_ns + kStalledNs / 2)) quarantine(path);
  }
  if (busy) watch_soon();
}

void Scheduler::quarantine(Path& path) {
  auto self = link_.shared_from_this();
  path.quarantined = true;
  link_.count_path_failure();
  path.endpoint->reset({Code::kUnavailable, "nothing moves on path " + std::string(path.endpoint->name())});
  pump(groups_[path.endpoint->transport()]);
  probe(path);
}

void Scheduler::probe(Path& path) {
  if (std::exchange(path.probing, true)) return;
  link_.reactor().call_after(kProbeNs, [this, &path, weak = link_.weak_from_this()] {
    auto self = weak.lock();
    if (!self || !link_.open()) return;
    path.probing = false;
    path.endpoint->revive([this, &path, weak](Result<> working) {
      auto alive = weak.lock();
      if (!alive || !link_.open()) return;
      if (!working) return probe(path);
      path.quarantined = false;
      pump(groups_[path.endpoint->transport()]);
    });
    if (path.quarantined) probe(path);
  });
}

}  // namespace moontide::engine
