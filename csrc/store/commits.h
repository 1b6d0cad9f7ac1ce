// PutEnds that nobody waits for (commit="async"): kept until the master has answered, over reconnects and new terms,
// bounded. Until then this client reads its own puts from here.
//
// Thread: the reactor's.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "store/locations.h"
#include "store/master_link.h"

namespace moontide::store {

class Commits {
 public:
  Commits(io::Reactor& reactor, MasterLink& master, size_t max)
      : master_(master), max_(max), flush_(reactor), reactor_(reactor) {}

  bool full() const { return pending_ >= max_; }
  void add(const std::string& key, const Location& location, uint32_t crc, const catalog::Retention& retention);
  // This client's own put of the key, placed and not yet acknowledged.
  const Location* find(std::string_view key) const;
  // The key was removed: what is pending of it shows no more.
  void forget(std::string_view key);
  size_t pending() const { return pending_; }
  uint64_t lost() const { return lost_; }  // refused by the master: removed, expired, or their node is gone
  // Once nothing is pending.
  void when_empty(io::Task task);

 private:
  struct Pending {
    Location location;
    bool hidden = false;
  };
  struct ToSend {
    wire::PutEndItem item;
    wire::Kept kept;
    std::vector<OtherPlace> further;
  };
  void flush_soon(int64_t delay_ns);
  void flush();
  void answered(std::vector<ToSend> items, const Result<Bytes>& reply);
  void finish(const wire::PutEndItem& item, Code code);

  MasterLink& master_;
  size_t max_;
  std::map<std::string, std::map<Generation, Pending>, std::less<>> keys_;
  size_t pending_ = 0;
  std::vector<ToSend> to_send_;
  io::Timer flush_;
  io::Reactor& reactor_;
  uint64_t lost_ = 0;
  std::vector<io::Task> when_empty_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace moontide::store
