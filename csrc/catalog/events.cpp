#include "catalog/events.h"

namespace moontide::catalog {

void EventLog::start(size_t max) {
  max_ = max;
  tell_anew();
}

void EventLog::stored(const Object& object) {
  if (on()) note({EventKind::kStored, {}, std::string(object.key()), object.length});
}

void EventLog::removed(const Object& object, Ending why) {
  if (on()) note({EventKind::kRemoved, why, std::string(object.key()), object.length});
}

void EventLog::cleared() {
  noted_.clear();
  telling_ = false;
  if (on()) noted_.push_back({});
}

void EventLog::tell_anew() {
  cleared();
  told_.clear();
  telling_ = on();
}

void EventLog::note(Event event) {
  if (noted_.size() >= max_) return tell_anew();
  noted_.push_back(std::move(event));
}

std::vector<Event> EventLog::take(size_t max, const ObjectTable& objects) {
  std::vector<Event> taken;
  while (!noted_.empty() && taken.size() < max) {
    taken.push_back(std::move(noted_.front()));
    noted_.pop_front();
  }
  if (!telling_ || taken.size() == max) return taken;
  // What was noted is out: the table as it is now comes next.
  auto it = objects.ordered().after(told_);
  const auto end = objects.ordered().end();
  for (size_t visits = 4 * max; it != end && taken.size() < max && visits > 0; ++it, --visits) {
    told_ = it->key();
    if (it->committed()) taken.push_back({EventKind::kStored, {}, told_, it->length});
  }
  telling_ = it != end;
  return taken;
}

}  // namespace moontide::catalog
