// The contents that simulated clients put: every byte follows from the number of the put, so that a reader can tell
// whose bytes it was given, and whether all of them are. The first bytes of contents are those of shorter ones.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace moontide::sim {

inline constexpr size_t kValueBytesMin = 8;

// `into.size()` >= kValueBytesMin.
void fill_value(MutableBytes into, uint64_t number);

// The number of the put whose bytes these are, all of them; 0 when they are nobody's.
uint64_t value_number(ByteView bytes);

}  // namespace moontide::sim
