#include "base/id.h"

#include <cstdio>

#include "base/random.h"

namespace moontide {

InstanceId InstanceId::make(Random& random) { return {random.next(), random.next() | 1}; }

std::string InstanceId::text() const {
  char buffer[33];
  std::snprintf(buffer, sizeof buffer, "%016llx%016llx", static_cast<unsigned long long>(high),
                static_cast<unsigned long long>(low));
  return buffer;
}

std::string Generation::text() const { return std::to_string(term) + "." + std::to_string(sequence); }

}  // namespace moontide
