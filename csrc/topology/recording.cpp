// A sysfs as text, one line each:
//     moontide-sysfs 1
//     # a comment
//     class/net/eth0 -> devices/pci0000:00/0000:00:03.0/net/eth0      a link, from the root
//     devices/pci0000:00/0000:00:03.0/numa_node = 0                   a file; \n, \\ and \xHH stand for other bytes
#include <algorithm>
#include <array>
#include <set>

#include "topology/tree.h"

namespace moontide::topology {
namespace {

constexpr std::string_view kHeader = "moontide-sysfs 1";
constexpr size_t kTextMax = 16 << 20;
constexpr int kLinksMax = 40;  // as the kernel has it
constexpr std::string_view kHex = "0123456789abcdef";

std::string escaped(std::string_view value) {
  std::string text;
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      text += "\\n";
    } else if (c == '\\') {
      text += "\\\\";
    } else if (byte < 0x20 || byte >= 0x7f) {
      text += "\\x";
      text += kHex[byte >> 4];
      text += kHex[byte & 15];
    } else {
      text += c;
    }
  }
  return text;
}

std::optional<std::string> unescaped(std::string_view text) {
  std::string value;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      value += text[i];
      continue;
    }
    if (++i == text.size()) return std::nullopt;
    if (text[i] == 'n' || text[i] == '\\') {
      value += text[i] == 'n' ? '\n' : '\\';
      continue;
    }
    if (text[i] != 'x' || i + 2 >= text.size()) return std::nullopt;
    const size_t high = kHex.find(text[i + 1]);
    const size_t low = kHex.find(text[i + 2]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    value += static_cast<char>(high << 4 | low);
    i += 2;
  }
  return value;
}

class Recording : public Tree {
 public:
  Result<void> add(std::string_view line) {
    const size_t equals = line.find(" =");
    const size_t arrow = line.find(" -> ");
    if (arrow < equals) {
      entries_[clean(line.substr(0, arrow))] = {.file = {}, .link = clean(line.substr(arrow + 4))};
    } else if (equals != std::string_view::npos) {
      auto value = unescaped(line.substr(std::min(line.size(), equals + 3)));
      if (!value) return fail(Code::kInvalid, "unknown escape in the value");
      entries_[clean(line.substr(0, equals))] = {.file = std::move(value), .link = {}};
    } else {
      return fail(Code::kInvalid, "neither PATH = VALUE nor PATH -> PATH");
    }
    return {};
  }

  std::optional<std::string> read(const std::string& path) override {
    const auto inside = resolve(path);
    const auto found = inside ? entries_.find(*inside) : entries_.end();
    return found != entries_.end() ? found->second.file : std::nullopt;
  }

  std::vector<std::string> list(const std::string& path) override {
    std::vector<std::string> names;
    const auto inside = resolve(path);
    if (!inside) return names;
    const std::string prefix = *inside + "/";
    for (auto next = entries_.lower_bound(prefix); next != entries_.end() && next->first.starts_with(prefix);) {
      names.push_back(next->first.substr(prefix.size(), next->first.find('/', prefix.size()) - prefix.size()));
      // past everything below this name: '0' follows '/'
      next = entries_.lower_bound(prefix + names.back() + '0');
    }
    std::ranges::sort(names);
    return names;
  }

  std::optional<std::string> resolve(const std::string& path) override {
    std::vector<std::string> ahead = split(path, '/');
    std::ranges::reverse(ahead);
    std::string found;
    int links = 0;
    while (!ahead.empty()) {
      const std::string part = std::move(ahead.back());
      ahead.pop_back();
      found += (found.empty() ? "" : "/") + part;
      const auto entry = entries_.find(found);
      if (entry == entries_.end() || entry->second.link.empty()) continue;
      if (++links > kLinksMax) return std::nullopt;
      auto target = split(entry->second.link, '/');
      ahead.insert(ahead.end(), target.rbegin(), target.rend());
      found.clear();
    }
    return exists(found) ? std::optional(found) : std::nullopt;
  }

 private:
  struct Entry {
    std::optional<std::string> file;
    std::string link;
  };

  static std::string clean(std::string_view path) { return join(split(path, '/'), '/'); }

  bool exists(const std::string& path) const {
    if (entries_.contains(path)) return true;
    const auto below = entries_.lower_bound(path + "/");
    return below != entries_.end() && below->first.starts_with(path + "/");
  }

  std::map<std::string, Entry> entries_;
};

// Whether the name is one that the kernel or udev makes from the place of the device in the machine or from a count:
// a known beginning, then digits and the letters of such names. enx0050b6000000 and backbone-customer7 are not.
bool made_from_place(std::string_view name) {
  static constexpr auto kBeginnings = std::to_array<std::string_view>(
      {"eth",   "en",   "ib",   "wl",    "ww",    "lo",   "wlan",  "bond",  "docker",  "ifb",    "dummy",
       "tun",   "tap",  "veth", "virbr", "mlx4_", "mlx5", "mlx5_", "bnxt_", "bnxt_re", "irdma",  "efa_",
       "hfi1_", "hns_", "rxe",  "rxe_",  "siw",   "siw_", "rdma",  "roce",  "qedr",    "erdma_", "mana_"});
  // a place begins with these letters: slot, on board, path, domain; then come port, function, device, virtual, usb
  constexpr std::string_view kLetters = "0123456789soPpfdnvuci";
  constexpr size_t kDigitsMax = 5;
  for (const std::string_view beginning : kBeginnings) {
    if (!name.starts_with(beginning)) continue;
    std::string_view rest = name.substr(beginning.size());
    if (rest.starts_with("_bond_")) rest.remove_prefix(6);
    size_t digits = 0;
    size_t letters = 0;
    bool fits = true;
    for (const char c : rest) {
      const bool digit = c >= '0' && c <= '9';
      digits = digit ? digits + 1 : 0;
      letters = digit ? 0 : letters + 1;
      fits = fits && kLetters.contains(c) && digits <= kDigitsMax && letters <= 2;
    }
    if (fits && (rest.empty() || digits > 0)) return true;
  }
  return false;
}

// The path with the names of interfaces exchanged: those stand below "net" and "infiniband".
std::string with_names(const std::map<std::string, std::string>& names, std::string_view path) {
  std::vector<std::string> parts = split(path, '/');
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i - 1] != "net" && parts[i - 1] != "infiniband") continue;
    if (const auto found = names.find(parts[i]); found != names.end()) parts[i] = found->second;
  }
  return join(parts, '/');
}

// Only the line that is used; the others tell how busy the machine was.
std::string without_load(std::string_view path, const std::string& value) {
  if (!path.ends_with("/meminfo")) return value;
  for (const std::string& line : split(value, '\n')) {
    if (line.find("MemTotal:") != std::string::npos) return line;
  }
  return "";
}

bool recordable(std::string_view path) {
  return std::ranges::all_of(path, [](unsigned char c) { return c > 0x20 && c < 0x7f; }) && !path.starts_with('#');
}

}  // namespace

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    if (end > 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::string join(const std::vector<std::string>& parts, char separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (!text.empty()) text += separator;
    text += part;
  }
  return text;
}

Result<std::unique_ptr<Tree>> open_recording(std::string_view text) {
  if (text.size() > kTextMax) return fail(Code::kTooLarge, "a recording has at most 16 MiB");
  auto recording = std::make_unique<Recording>();
  size_t number = 0;
  bool header = false;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty() || line.starts_with('#')) continue;
    if (!header) {
      if (line != kHeader) return fail(Code::kInvalid, "no recording: it does not begin with \"moontide-sysfs 1\"");
      header = true;
      continue;
    }
    if (auto added = recording->add(line); !added) {
      return fail(Code::kInvalid, "line " + std::to_string(number) + ": " + added.error().message);
    }
  }
  if (!header) return fail(Code::kInvalid, "no recording: it is empty");
  return recording;
}

std::optional<std::string> Recorder::read(const std::string& path) {
  const auto inside = inner_.resolve(path);
  auto value = inner_.read(path);
  if (inside && value && recordable(*inside)) files_[*inside] = *value;
  return value;
}

std::vector<std::string> Recorder::list(const std::string& path) { return inner_.list(path); }

std::optional<std::string> Recorder::resolve(const std::string& path) {
  auto found = inner_.resolve(path);
  if (found && *found != path && recordable(path) && recordable(*found)) links_[path] = *found;
  return found;
}

std::map<std::string, std::string> Recorder::renamed() const {
  std::set<std::string> taken;
  std::vector<std::string> foreign;
  for (const auto& [path, target] : links_) {
    const auto parts = split(path, '/');
    if (parts.size() != 3 || parts[0] != "class" || (parts[1] != "net" && parts[1] != "infiniband")) continue;
    if (made_from_place(parts[2])) {
      taken.insert(parts[2]);
    } else {
      foreign.push_back(path);
    }
  }
  std::map<std::string, std::string> names;
  for (const std::string& path : foreign) {
    const std::string kind = path.starts_with("class/net/") ? "net" : "rdma";
    std::string name;
    for (int number = 0; name.empty() || taken.contains(name); ++number) name = kind + std::to_string(number);
    taken.insert(name);
    names[split(path, '/').back()] = name;
  }
  return names;
}

std::string Recorder::text() const {
  const auto names = renamed();
  std::set<std::string> lines;
  for (const auto& [path, target] : links_) {
    lines.insert(with_names(names, path) + " -> " + with_names(names, target));
  }
  for (const auto& [path, value] : files_) {
    const bool is_name = path.ends_with("/parent") || path.find("/ndevs/") != std::string::npos;
    const auto name = is_name ? names.find(value) : names.end();
    lines.insert(with_names(names, path) + " = " +
                 escaped(name != names.end() ? name->second : without_load(path, value)));
  }
  std::string text(kHeader);
  for (const std::string& line : lines) text += "\n" + line;
  return text + "\n";
}

}  // namespace moontide::topology
