// Where objects lie, as far as a client has been told: cached while the lease lives. A cached place makes a read likely
// to succeed; it proves nothing. Bounded; the oldest go. Single-threaded.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/id.h"

namespace moontide::store {

// Another place of the same bytes.
struct OtherPlace {
  InstanceId node;
  std::string address;
  uint64_t offset = 0;
};

struct Location {
  InstanceId node;
  std::string address;  // of the node's engine
  Generation generation;
  uint64_t offset = 0;
  uint64_t length = 0;
  uint32_t crc = 0;                   // as the master has it; 0 in a put of this client's own
  std::vector<OtherPlace> further{};  // in the order in which they are to be tried
};

class LocationCache {
 public:
  explicit LocationCache(size_t max) : max_(max) {}

  void put(const std::string& key, const Location& location, int64_t expires_ns);
  // Nothing when it is not cached or its lease is over.
  std::optional<Location> get(std::string_view key, int64_t now_ns);
  void drop(std::string_view key);
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Location location;
    int64_t expires_ns;
    std::list<std::string>::iterator age;
  };
  size_t max_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::list<std::string> ages_;  // oldest first
};

}  // namespace moontide::store
