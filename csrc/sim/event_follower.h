// Keeps an index of a pool by the events of its masters alone, and compares it with what the catalog has.
#pragma once

#include <set>
#include <string>

#include "store/master.h"

namespace moontide::sim {

class EventFollower {
 public:
  // Takes in what there is; every other time only a part of it. An error: the index is not what the catalog has.
  Result<> follow(store::Master& master);

 private:
  void apply(const catalog::Event& event);

  std::set<std::string> keys_;
  uint64_t calls_ = 0;
};

}  // namespace moontide::sim
