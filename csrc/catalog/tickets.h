// Open puts in the order in which they were granted. Single-threaded.
#pragma once

#include <cstddef>
#include <deque>

#include "base/id.h"

namespace moontide::catalog {

// A queue from which anything may be taken: most of it ends in about the order in which it came.
class Tickets {
 public:
  // Newer than any before.
  void insert(const Generation& generation);
  // Nothing happens where it is not in here.
  void erase(const Generation& generation);
  bool contains(const Generation& generation) const;
  bool empty() const { return queue_.empty(); }
  // There is one.
  const Generation& oldest() const { return queue_.front().generation; }

 private:
  struct Entry {
    Generation generation;
    bool over = false;
  };
  size_t place_of(const Generation& generation) const;

  std::deque<Entry> queue_;  // the first one is not over
  size_t over_ = 0;
};

}  // namespace moontide::catalog
