#include "engine/observer.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace moontide::engine {
namespace {

// Spreads a counter over 64 bits (the finalizer of splitmix64).
uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

std::string make_trace(const InstanceId& maker, uint64_t number) {
  char digits[16];
  auto end = std::to_chars(digits, digits + sizeof digits, mix(maker.low + number), 16).ptr;
  return std::string(sizeof digits - static_cast<size_t>(end - digits), '0').append(digits, end);
}

bool is_trace(std::string_view name) {
  return name.size() <= kTraceBytesMax && std::ranges::all_of(name, [](char c) { return c > ' ' && c <= '~'; });
}

std::string_view stage_name(Stage stage) {
  static constexpr std::string_view kNames[] = {"queue", "wire", "copy", "fence"};
  return kNames[static_cast<size_t>(stage)];
}

void PathSeen::merge(const PathSeen& other) {
  for (size_t i = 0; i < kTimed; ++i) {
    if (other.stages[i]) timed(static_cast<Stage>(i)).merge(*other.stages[i]);
  }
  bytes_read += other.bytes_read;
  bytes_written += other.bytes_written;
  slices += other.slices;
  retries += other.retries;
  for (size_t i = 0; i < kCodes; ++i) failures[i] += other.failures[i];
}

PathSeen& PeerSeen::path(std::string_view name) {
  for (PathSeen& path : paths) {
    if (path.name == name) return path;
  }
  PathSeen& path = paths.emplace_back();
  path.name = name;
  return path;
}

void PeerSeen::merge(const PeerSeen& other) {
  links += other.links;
  for (const PathSeen& theirs : other.paths) path(theirs.name).merge(theirs);
}

PeerSeenRef Observer::peer(const InstanceId& id, const std::string& address) {
  auto found = peers_.find(id);
  PeerSeenRef record = found != peers_.end() ? found->second : nullptr;
  if (!record && (peers_.size() < kPeersMax || fold_one())) {
    record = peers_[id] = std::make_shared<PeerSeen>();
    record->id = id;
  }
  if (!record) record = other_;  // all of them have links
  if (record != other_) record->address = address;
  ++record->links;
  record->last_link = next_link_++;
  return record;
}

// The peer without a link whose last one is the longest ago.
bool Observer::fold_one() {
  auto oldest = peers_.end();
  for (auto at = peers_.begin(); at != peers_.end(); ++at) {
    bool linked = at->second.use_count() > 1;
    if (!linked && (oldest == peers_.end() || at->second->last_link < oldest->second->last_link)) oldest = at;
  }
  if (oldest == peers_.end()) return false;
  other_->merge(*oldest->second);
  peers_.erase(oldest);
  return true;
}

void Observer::connected(const std::string& address, Code code) {
  auto began = connecting_.extract(address);
  if (began.empty()) return;
  if (code == Code::kOk) {
    connect_ns_.record(reactor_.now_ns() - began.mapped());
  } else {
    ++count_of(connect_failures_, code);
  }
}

void Observer::watch_slow(int64_t slow_ns, std::function<void()> wake) {
  slow_ns_ = slow_ns;
  wake_ = std::move(wake);
}

void Observer::report(SlowEvent event) {
  ++slow_count_;
  if (events_.size() >= kEventsMax) {
    ++dropped_;
    return;
  }
  events_.push_back(std::move(event));
  if (wake_ && events_.size() == 1) wake_();
}

Observer::Events Observer::take_events() {
  Events taken;
  taken.events.assign(std::make_move_iterator(events_.begin()), std::make_move_iterator(events_.end()));
  taken.dropped = std::exchange(dropped_, 0);
  events_.clear();
  return taken;
}

}  // namespace moontide::engine
