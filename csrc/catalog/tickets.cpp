#include "catalog/tickets.h"

#include <algorithm>

#include "base/status.h"

namespace moontide::catalog {

void Tickets::insert(const Generation& generation) {
  MT_CHECK(queue_.empty() || queue_.back().generation < generation, generation.text());
  queue_.push_back({generation});
}

size_t Tickets::place_of(const Generation& generation) const {
  return static_cast<size_t>(std::ranges::lower_bound(queue_, generation, {}, &Entry::generation) - queue_.begin());
}

bool Tickets::contains(const Generation& generation) const {
  const size_t place = place_of(generation);
  return place < queue_.size() && queue_[place].generation == generation && !queue_[place].over;
}

void Tickets::erase(const Generation& generation) {
  const size_t place = place_of(generation);
  if (place == queue_.size() || queue_[place].generation != generation || queue_[place].over) return;
  queue_[place].over = true;
  ++over_;
  while (!queue_.empty() && queue_.front().over) {
    queue_.pop_front();
    --over_;
  }
  // One old put does not keep all that ended after it.
  if (over_ > 64 && over_ > queue_.size() / 2) {
    std::erase_if(queue_, [](const Entry& entry) { return entry.over; });
    over_ = 0;
  }
}

}  // namespace moontide::catalog
