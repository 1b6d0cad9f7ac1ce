#include "sim/event_follower.h"

namespace moontide::sim {
namespace {

constexpr size_t kPart = 3;
constexpr size_t kObjectsMost = 1 << 20;

Result<> wrong(const std::string& what) { return fail(Code::kInternal, "an index of events: " + what); }

}  // namespace

Result<> EventFollower::follow(store::Master& master) {
  const catalog::Catalog& catalog = master.catalog();
  const bool part = ++calls_ % 2 == 0;
  do {
    for (const catalog::Event& event : master.take_events(kPart)) apply(event);
  } while (!part && !catalog.events().empty());
  if (!catalog.events().empty()) return {};
  if (keys_.size() != catalog.stats().committed) {
    return wrong(std::to_string(keys_.size()) + " objects, the catalog has " +
                 std::to_string(catalog.stats().committed));
  }
  for (const catalog::Listed& item : catalog.list("", "", kObjectsMost).items) {
    if (!keys_.contains(item.key)) return wrong("lacks " + item.key);
  }
  return {};
}

void EventFollower::apply(const catalog::Event& event) {
  switch (event.kind) {
    case catalog::EventKind::kStored:
      keys_.insert(event.key);
      break;
    case catalog::EventKind::kRemoved:
      keys_.erase(event.key);
      break;
    case catalog::EventKind::kCleared:
      keys_.clear();
      break;
  }
}

}  // namespace moontide::sim
