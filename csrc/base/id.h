// Identity is a random 128-bit number, never an address, a port, a pid or a host name.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

namespace moontide {

class Random;

struct InstanceId {
  uint64_t high = 0;
  uint64_t low = 0;

  static InstanceId make(Random& random);
  bool empty() const { return high == 0 && low == 0; }
  std::string text() const;  // 32 hexadecimal digits
  auto operator<=>(const InstanceId&) const = default;
  auto fields() { return std::tie(high, low); }
};

// (term, sequence): terms only grow, sequences start anew in each term. Ordered; {0, 0} is "none". Puts that are to
// replace an object have odd sequences.
struct Generation {
  uint32_t term = 0;
  uint64_t sequence = 0;

  bool empty() const { return term == 0 && sequence == 0; }
  bool is_replacement() const { return sequence % 2 == 1; }
  std::string text() const;  // "3.17"
  static std::optional<Generation> parse(std::string_view text);
  auto operator<=>(const Generation&) const = default;
  auto fields() { return std::tie(term, sequence); }
};

}  // namespace moontide

template <>
struct std::hash<moontide::InstanceId> {
  size_t operator()(const moontide::InstanceId& id) const noexcept { return id.high ^ id.low; }
};
