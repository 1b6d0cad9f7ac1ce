#include "store/view_request.h"

#include <algorithm>
#include <cstring>

#include "store/entry.h"

namespace moontide::store {

ViewRequest::ViewRequest(Client& client, std::vector<std::string> keys, int64_t deadline_ns, Client::ViewsDone done)
    : client_(&client),
      reactor_(client.reactor_),
      items_(keys.size()),
      results_(keys.size(), fail(Code::kNotFound, "no such object")),
      left_(keys.size()),
      deadline_ns_(deadline_ns),
      done_(std::move(done)),
      deadline_(client.reactor_) {
  for (size_t i = 0; i < keys.size(); ++i) items_[i].key = std::move(keys[i]);
}

void ViewRequest::start() {
  if (items_.empty()) return finish();
  deadline_.start(left_ns(), [this] { end({Code::kTimedOut, "no view in time"}); });
  std::vector<size_t> known, unknown;
  for (size_t i = 0; i < items_.size(); ++i) {
    auto location = client_->known_location(items_[i].key);
    if (location) {
      items_[i].location = *location;
      items_[i].from_cache = true;
    }
    (location ? known : unknown).push_back(i);
  }
  ask_known(known);
  locate(unknown);
}

void ViewRequest::end(const Error& cause) {
  auto keep = shared_from_this();
  for (size_t i = 0; i < items_.size(); ++i) settle(i, std::unexpected(cause));
}

int64_t ViewRequest::left_ns() const { return std::max<int64_t>(deadline_ns_ - reactor_.now_ns(), kMillisecond); }

// ---- place

void ViewRequest::locate(const std::vector<size_t>& indices) {
  for (size_t from = 0; from < indices.size(); from += wire::kStoreItemsMax) {
    const size_t to = std::min(indices.size(), from + wire::kStoreItemsMax);
    std::vector<size_t> chunk(indices.begin() + static_cast<ptrdiff_t>(from),
                              indices.begin() + static_cast<ptrdiff_t>(to));
    std::vector<std::string> keys;
    for (size_t i : chunk) keys.push_back(items_[i].key);
    client_->locate(keys, deadline_ns_,
                    [self = shared_from_this(), chunk, asked_ns = reactor_.now_ns()](Result<wire::LocateReply> reply) {
                      if (self->left_ > 0) self->located(chunk, reply, asked_ns);
                    });
  }
}

void ViewRequest::located(const std::vector<size_t>& indices, const Result<wire::LocateReply>& reply,
                          int64_t asked_ns) {
  if (!reply) return settle_all(indices, reply.error());
  auto locations = client_->locations_in(*reply);
  std::vector<size_t> found;
  for (size_t n = 0; n < indices.size(); ++n) {
    Item& item = items_[indices[n]];
    if (!locations[n]) {
      settle(indices[n], fail(Code::kNotFound, "no such object"));
      continue;
    }
    item.location = std::move(*locations[n]);
    item.from_cache = false;
    item.tried = 0;
    item.hot = false;
    client_->remember(item.key, item.location, asked_ns + reply->lease_ns);
    found.push_back(indices[n]);
  }
  if (left_ > 0) ask_located(found);
}

// ---- the hot cache of this host

void ViewRequest::look_at(const std::vector<size_t>& indices, Looked looked) {
  std::vector<size_t> afar, others;
  std::vector<Generation> generations;
  const bool ready = client_->hot_.ready();
  for (size_t i : indices) {
    const bool look = ready && !items_[i].asked_again && client_->hot_.is_afar(items_[i].location) &&
                      client_->commits_.find(items_[i].key) == nullptr;
    (look ? afar : others).push_back(i);
    if (look) generations.push_back(items_[i].location.generation);
  }
  ask_nodes(others);
  if (afar.empty() || left_ == 0) return;
  client_->hot_.look(generations, [self = shared_from_this(), afar, looked = std::move(looked)](
                                      const std::vector<std::optional<uint64_t>>& offsets) mutable {
    if (self->left_ == 0) return;
    std::vector<bool> is_hot;
    for (const auto& offset : offsets) is_hot.push_back(offset.has_value());
    looked(afar, is_hot);
  });
}

void ViewRequest::ask_located(const std::vector<size_t>& indices) {
  look_at(indices, [this](const std::vector<size_t>& afar, const std::vector<bool>& is_hot) {
    for (size_t n = 0; n < afar.size(); ++n) items_[afar[n]].hot = is_hot[n];
    ask_nodes(afar);
  });
}

void ViewRequest::ask_known(const std::vector<size_t>& indices) {
  look_at(indices, [this](const std::vector<size_t>& afar, const std::vector<bool>& is_hot) {
    std::vector<size_t> hot, cold;
    for (size_t n = 0; n < afar.size(); ++n) (is_hot[n] ? hot : cold).push_back(afar[n]);
    ask_nodes(cold);
    locate(hot);  // whether it is still the key's object is the master's word
  });
}

// ---- pin

void ViewRequest::ask_cache(const std::vector<size_t>& indices) {
  if (indices.empty()) return;
  const auto link = client_->hot_.link();
  if (!link) return elsewhere(indices);
  for (size_t from = 0; from < indices.size(); from += wire::kStoreItemsMax) {
    const size_t to = std::min(indices.size(), from + wire::kStoreItemsMax);
    pin(link, {indices.begin() + static_cast<ptrdiff_t>(from), indices.begin() + static_cast<ptrdiff_t>(to)});
  }
}

void ViewRequest::ask_nodes(const std::vector<size_t>& indices) {
  std::map<InstanceId, std::vector<size_t>> by_node;
  std::vector<size_t> hot;
  for (size_t i : indices) (items_[i].hot ? hot : by_node[items_[i].location.node]).push_back(i);
  ask_cache(hot);
  for (auto& [node, group] : by_node) {
    for (size_t from = 0; from < group.size(); from += wire::kStoreItemsMax) {
      const size_t to = std::min(group.size(), from + wire::kStoreItemsMax);
      ask({group.begin() + static_cast<ptrdiff_t>(from), group.begin() + static_cast<ptrdiff_t>(to)});
    }
  }
}

void ViewRequest::ask(const std::vector<size_t>& indices) {
  const std::string& address = items_[indices.front()].location.address;
  if (client_->engine_.distance(address) == engine::Engine::Distance::kElsewhere)
    return settle_all(indices, {Code::kUnsupported, "the object lies on another host"});
  client_->engine_.open(address, std::min(left_ns(), client_->options_.connect_timeout_ns),
                        [self = shared_from_this(), indices](Result<engine::LinkRef> link) {
                          if (self->left_ == 0) return;
                          if (!link) return self->elsewhere(indices);
                          self->pin(*link, indices);
                        });
}

void ViewRequest::pin(const engine::LinkRef& link, const std::vector<size_t>& indices) {
  const bool hot = items_[indices.front()].hot;
  const InstanceId node = hot ? client_->hot_.node() : items_[indices.front()].location.node;
  const std::string name = hot ? wire::hot_region_name(node) : wire::pool_region_name(node);
  transport::RemoteRegionRef region;
  for (const auto& [id, one] : link->regions()) {
    if (one->name == name) region = one;
  }
  if (!region) return elsewhere(indices);  // another process answers at that address now
  auto memory = link->view(*region);
  if (!memory) return settle_all(indices, {Code::kUnsupported, "the node's memory cannot be mapped here"});
  std::vector<Generation> generations;
  for (size_t i : indices) generations.push_back(items_[i].location.generation);
  client_->viewing_->open(link, node, hot, generations, left_ns(),
                          [self = shared_from_this(), indices, memory = std::move(memory),
                           size = region->length](Result<std::vector<Result<Viewing::Pinned>>> pins) {
                            if (self->left_ > 0) self->pinned(indices, memory, size, std::move(pins));
                          });
}

void ViewRequest::pinned(const std::vector<size_t>& indices, const std::shared_ptr<const std::byte>& memory,
                         uint64_t size, Result<std::vector<Result<Viewing::Pinned>>> pins) {
  // A node of an older protocol knows no views, a crowded one gives none: neither says that the object is not there.
  if (!pins && pins.error().code == Code::kUnsupported) return settle_all(indices, pins.error());
  if (!pins && pins.error().code == Code::kOverloaded) {
    return settle_all(indices, {Code::kNoSpace, pins.error().message});
  }
  if (!pins) return elsewhere(indices);
  std::vector<size_t> failed;
  for (size_t n = 0; n < indices.size(); ++n) {
    const size_t i = indices[n];
    Result<Viewing::Pinned>& pin = (*pins)[n];
    if (items_[i].over) continue;
    if (!pin && pin.error().code == Code::kNoSpace) {
      settle(i, std::unexpected(pin.error()));
    } else if (!pin || !is_right(items_[i], *pin, memory, size)) {
      failed.push_back(i);
    } else {
      if (items_[i].from_cache) client_->touched(items_[i].key);
      ++client_->counters_.views;
      if (items_[i].hot) {
        ++client_->counters_.hot_views;
        client_->hot_.read_here(items_[i].location.generation, items_[i].location.length);
      }
      settle(i, std::move(pin->view));
    }
  }
  elsewhere(failed);
}

bool ViewRequest::is_right(const Item& item, Viewing::Pinned& pin, const std::shared_ptr<const std::byte>& memory,
                           uint64_t size) {
  if (!range_inside(pin.offset, sizeof(EntryHeader), size) ||
      !range_inside(pin.offset + sizeof(EntryHeader), item.location.length, size)) {
    return false;
  }
  EntryHeader header;
  std::memcpy(&header, memory.get() + pin.offset, sizeof header);
  if (!header_matches(header, item.location.generation, item.key, item.location.length)) return false;
  if (item.hot && header.payload_crc != item.location.crc) return false;
  pin.view->show(memory, {memory.get() + pin.offset + sizeof header, item.location.length});
  return true;
}

// The next place of each, or the master once more, or a miss.
void ViewRequest::elsewhere(const std::vector<size_t>& indices) {
  std::vector<size_t> next, to_locate;
  for (size_t i : indices) {
    Item& item = items_[i];
    if (item.over) continue;
    if (item.hot) {
      settle(i, fail(Code::kUnsupported, "the object lies on another host"));
      continue;
    }
    client_->locations_.drop(item.key);
    if (item.tried < item.location.further.size()) {
      const OtherPlace& other = item.location.further[item.tried++];
      item.location.node = other.node;
      item.location.address = other.address;
      item.location.offset = other.offset;
      next.push_back(i);
    } else if (item.asked_again) {
      settle(i, fail(Code::kNotFound, "no such object"));
    } else {
      item.asked_again = true;
      to_locate.push_back(i);
    }
  }
  ask_nodes(next);
  locate(to_locate);
}

void ViewRequest::settle_all(const std::vector<size_t>& indices, const Error& cause) {
  for (size_t i : indices) settle(i, std::unexpected(cause));
}

void ViewRequest::settle(size_t index, Result<ViewRef> result) {
  if (std::exchange(items_[index].over, true)) return;
  results_[index] = std::move(result);
  if (--left_ > 0) return;
  finish();
}

void ViewRequest::finish() {
  deadline_.stop();
  reactor_.post([viewing = client_->viewing_, done = std::move(done_), results = std::move(results_)]() mutable {
    done(std::move(results));
    viewing->flush();  // of pins that came too late
  });
  client_->view_requests_.erase(shared_from_this());
}

}  // namespace moontide::store
