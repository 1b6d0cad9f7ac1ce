// What happened to objects, in order, for whoever keeps an index of them: stored, removed, and cleared, after which
// there is none. The index that follows them has exactly the committed objects.
//
// Bounded: where nobody takes them, they are dropped, and all is told anew: cleared, then each object that there is. So
// it goes as well when somebody asks for it. Single-threaded.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "catalog/object_table.h"

namespace moontide::catalog {

enum class EventKind : uint8_t { kStored, kRemoved, kCleared };

// Why an object is not there any more.
enum class Ending : uint8_t { kRemoved, kEvicted, kExpired, kLost, kReplaced };

struct Event {
  EventKind kind = EventKind::kCleared;
  Ending why = Ending::kRemoved;
  std::string key{};
  uint64_t length = 0;
  bool operator==(const Event&) const = default;
};

class EventLog {
 public:
  // Notes from now on, at most `max` > 0 at a time. Off before, and free.
  void start(size_t max);
  bool on() const { return max_ > 0; }

  void stored(const Object& object);
  void removed(const Object& object, Ending why);
  void cleared();

  // What was noted is dropped: cleared comes next, then every object of the table.
  void tell_anew();
  // The next events, at most `max`, also none. Visits at most 4 × max objects.
  std::vector<Event> take(size_t max, const ObjectTable& objects);
  // Nothing to take.
  bool empty() const { return noted_.empty() && !telling_; }

 private:
  void note(Event event);

  size_t max_ = 0;
  std::deque<Event> noted_;
  bool telling_ = false;  // the objects behind `told_` are still to be told
  std::string told_;      // the last key
};

}  // namespace moontide::catalog
