// The queue of open puts, against a plain set.
#include <doctest/doctest.h>

#include <set>

#include "base/random.h"
#include "catalog/tickets.h"

using namespace moontide;
using namespace moontide::catalog;

TEST_CASE("tickets: the oldest that is open, whatever ended before") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SeededRandom random(seed);
    Tickets tickets;
    std::set<Generation> model;
    Generation last{1, 0};
    for (int step = 0; step < 5'000; ++step) {
      if (random.below(20) == 0) last = {last.term + 1, 0};
      const bool coming = random.below(10) < 5;
      if (coming) {
        last.sequence += 1 + random.below(3);
        tickets.insert(last);
        model.insert(last);
      } else if (!model.empty()) {
        auto it = model.begin();  // most often an old one, but the very oldest stays long in some seeds
        if (seed % 2 == 0 && model.size() > 1) ++it;
        if (random.below(4) == 0) it = std::prev(model.end());
        const Generation gone = *it;
        tickets.erase(gone);
        tickets.erase(gone);
        model.erase(it);
        CHECK_FALSE(tickets.contains(gone));
      }
      REQUIRE(tickets.empty() == model.empty());
      if (!model.empty()) {
        REQUIRE(tickets.oldest() == *model.begin());
        REQUIRE(tickets.contains(*model.rbegin()));
      }
      tickets.erase({last.term, last.sequence + 5});
    }
  }
}
