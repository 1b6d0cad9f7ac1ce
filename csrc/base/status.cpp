#include "base/status.h"

#include <cstdio>
#include <cstdlib>

namespace moontide {

std::string_view code_name(Code code) {
  static constexpr std::string_view kNames[] = {
      "OK",           "INVALID",     "NOT_FOUND",   "ALREADY_EXISTS", "STALE",     "EXPIRED",  "NO_SPACE",
      "TOO_LARGE",    "DENIED",      "UNAVAILABLE", "PEER_LOST",      "TIMED_OUT", "CANCELED", "CORRUPT",
      "INCOMPATIBLE", "UNSUPPORTED", "OVERLOADED",  "CLOSED",         "INTERNAL"};
  auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "UNKNOWN";
}

std::string Error::text() const {
  std::string out(code_name(code));
  if (!message.empty()) out.append(": ").append(message);
  return out;
}

void check_failed(const char* file, int line, const char* condition, const std::string& operands) {
  std::fprintf(stderr, "%s:%d: check failed: %s (%s)\n", file, line, condition, operands.c_str());
  std::abort();
}

}  // namespace moontide
