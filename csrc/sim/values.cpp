#include "sim/values.h"

#include <vector>

#include "base/random.h"

namespace moontide::sim {

void fill_value(MutableBytes into, uint64_t number) {
  SeededRandom random(number);
  random.fill(into);
  std::memcpy(into.data(), &number, sizeof number);
}

uint64_t value_number(ByteView bytes) {
  if (bytes.size() < kValueBytesMin) return 0;
  uint64_t number;
  std::memcpy(&number, bytes.data(), sizeof number);
  Bytes expected(bytes.size());
  fill_value(expected, number);
  return std::memcmp(expected.data(), bytes.data(), bytes.size()) == 0 ? number : 0;
}

}  // namespace moontide::sim
