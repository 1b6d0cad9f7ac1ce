#include "base/id.h"

#include <charconv>
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

std::optional<Generation> Generation::parse(std::string_view text) {
  Generation parsed;
  const char* end = text.data() + text.size();
  const auto term = std::from_chars(text.data(), end, parsed.term);
  if (term.ec != std::errc() || term.ptr == end || *term.ptr != '.') return {};
  const auto sequence = std::from_chars(term.ptr + 1, end, parsed.sequence);
  if (sequence.ec != std::errc() || sequence.ptr != end) return {};
  return parsed;
}

}  // namespace moontide
