#include "topology/parse.h"

#include <algorithm>
#include <charconv>

namespace moontide::topology {
namespace {

constexpr size_t kListMax = 65536;
constexpr int64_t kNumberMax = (1 << 20) - 1;

bool is_hex(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// "pci0000:15"
bool is_root(std::string_view part) {
  if (!part.starts_with("pci")) return false;
  const size_t colon = part.find(':');
  return colon != std::string_view::npos && is_hex(part.substr(3, colon - 3)) && is_hex(part.substr(colon + 1));
}

}  // namespace

std::optional<int64_t> parse_number(std::string_view text, int base) {
  if (base == 16 && text.starts_with("0x")) text.remove_prefix(2);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

std::optional<std::vector<int>> parse_list(std::string_view text) {
  std::vector<int> numbers;
  for (const std::string& part : split(text, ',')) {
    const size_t dash = part.find('-');
    const auto first = parse_number(std::string_view(part).substr(0, dash));
    const auto last = dash == std::string::npos ? first : parse_number(std::string_view(part).substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last > kNumberMax) return std::nullopt;
    if (numbers.size() + static_cast<size_t>(*last - *first) >= kListMax) return std::nullopt;
    for (int64_t number = *first; number <= *last; ++number) numbers.push_back(static_cast<int>(number));
  }
  return numbers;
}

bool is_pci_address(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon < 4 || text.size() != colon + 8) return false;
  const std::string_view rest = text.substr(colon);  // ":1b:00.0"
  return is_hex(text.substr(0, colon)) && is_hex(rest.substr(1, 2)) && rest[3] == ':' && is_hex(rest.substr(4, 2)) &&
         rest[6] == '.' && rest[7] >= '0' && rest[7] <= '7';
}

Place parse_place(std::string_view path) {
  Place place;
  for (const std::string& part : split(path, '/')) {
    if (place.root.empty() && is_root(part)) place.root = part;
    if (!is_pci_address(part)) continue;
    if (!place.pci.empty()) place.bridges.push_back(place.pci);
    place.pci = part;
  }
  return place;
}

std::string pci_folder(std::string_view path) {
  const std::string pci = parse_place(path).pci;
  return pci.empty() ? "" : std::string(path.substr(0, path.rfind("/" + pci) + 1 + pci.size()));
}

}  // namespace moontide::topology
