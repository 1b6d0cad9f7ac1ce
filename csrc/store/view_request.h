// One batch of views on its way: place → pin at the node → a look at the header, per key. A failed one leads to the
// next place, after the last to the master once more, as in a get.
//
// Thread: the reactor's.
#pragma once

#include "store/client.h"

namespace moontide::store {

class ViewRequest final : public std::enable_shared_from_this<ViewRequest> {
 public:
  ViewRequest(Client& client, std::vector<std::string> keys, int64_t deadline_ns, Client::ViewsDone done);
  void start();
  // What has no result yet gets this one; the client is about to be destroyed, or the time is over.
  void end(const Error& cause);

 private:
  struct Item {
    std::string key;
    Location location;
    bool from_cache = false;
    bool asked_again = false;
    bool over = false;
    bool hot = false;  // it is the entry of this host's hot cache that is asked for
    size_t tried = 0;  // of location.further
  };

  void locate(const std::vector<size_t>& indices);
  void located(const std::vector<size_t>& indices, const Result<wire::LocateReply>& reply, int64_t asked_ns);
  // As ask_nodes(), of what was just located or was known before; see GetOperation's.
  void ask_located(const std::vector<size_t>& indices);
  void ask_known(const std::vector<size_t>& indices);
  // What lies on other hosts, and `looked` of where the hot cache has it; the others are asked for.
  using Looked = std::move_only_function<void(const std::vector<size_t>& afar, const std::vector<bool>& is_hot)>;
  void look_at(const std::vector<size_t>& indices, Looked looked);
  void ask_cache(const std::vector<size_t>& indices);
  void ask_nodes(const std::vector<size_t>& indices);
  void ask(const std::vector<size_t>& indices);
  void pin(const engine::LinkRef& link, const std::vector<size_t>& indices);
  void pinned(const std::vector<size_t>& indices, const std::shared_ptr<const std::byte>& memory, uint64_t size,
              Result<std::vector<Result<Viewing::Pinned>>> pins);
  // Whether the entry that was pinned is the object; shows its payload then.
  static bool is_right(const Item& item, Viewing::Pinned& pin, const std::shared_ptr<const std::byte>& memory,
                       uint64_t size);
  void elsewhere(const std::vector<size_t>& indices);
  void settle(size_t index, Result<ViewRef> result);
  void finish();
  void settle_all(const std::vector<size_t>& indices, const Error& cause);
  int64_t left_ns() const;

  Client* client_;
  io::Reactor& reactor_;
  std::vector<Item> items_;
  std::vector<Result<ViewRef>> results_;
  size_t left_;
  int64_t deadline_ns_;
  Client::ViewsDone done_;
  io::Timer deadline_;
};

}  // namespace moontide::store
