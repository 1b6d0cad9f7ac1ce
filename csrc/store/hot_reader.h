// A client's side of its host's hot cache: which node keeps one, which of it the objects are that were just located,
// and what the node is told of what was read.
//
// Only the bytes are the cache's. Which generation a key has is asked of the master by each get that reads here: an
// entry of the cache does not end with its object.
//
// Nothing here is waited for but the index, which is read as memory of this host.
//
// Thread: the reactor's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "store/buffers.h"
#include "store/hot_index.h"
#include "store/locations.h"
#include "store/master_link.h"
#include "store/options.h"
#include "wire/hot_messages.h"

namespace moontide::store {

class HotReader {
 public:
  HotReader(io::Reactor& reactor, engine::Engine& engine, MasterLink& master, std::shared_ptr<HeaderSlots> headers,
            const ClientOptions& options);
  ~HotReader();

  // Whether there is a cache within reach. Where none is known it is looked for, from time to time, in the background.
  bool ready();
  // Whether the object, read where it was located, crosses the network.
  bool is_afar(const Location& location) const;

  // Which of these the cache seems to have: per item the offset of its header in the cache. `found` runs once, maybe
  // inside this call; not when the reader is gone.
  using Found = std::move_only_function<void(std::vector<std::optional<uint64_t>> offsets)>;
  void look(const std::vector<Generation>& generations, Found found);

  // Where entries are read; null: the cache is gone.
  engine::LinkRef link() const { return link_ && link_->open() ? link_ : nullptr; }
  const InstanceId& node() const { return node_; }
  // A read from the cache did not come to its end: it is left alone for a while.
  void failed();

  // A get is done.
  void read_here(Generation generation, uint64_t bytes);
  void read_afar(const std::string& key, const Location& location);

 private:
  struct Look;
  void search();
  void try_caches(std::vector<wire::NodeRef> nodes);
  void opened(const wire::NodeRef& node, const engine::LinkRef& link);
  void looked(const std::shared_ptr<Look>& look);
  void tell_soon();
  void tell();

  io::Reactor& reactor_;
  engine::Engine& engine_;
  MasterLink& master_;
  std::shared_ptr<HeaderSlots> headers_;
  const ClientOptions& options_;
  engine::LinkRef link_;
  InstanceId node_;
  uint64_t index_handle_ = 0;
  size_t buckets_ = 0;
  int64_t search_after_ns_ = 0;
  int64_t search_pause_ns_;
  wire::HotReads reads_;
  io::Timer tell_timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace moontide::store
