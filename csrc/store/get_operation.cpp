#include "store/get_operation.h"

#include <algorithm>
#include <atomic>

namespace moontide::store {

GetOperation::GetOperation(Client& client, std::vector<GetItem> items, OperationOptions options)
    : Operation(client.reactor_, items.size(), std::move(options)), client_(&client), items_(items.size()) {
  for (size_t i = 0; i < items.size(); ++i) items_[i].wanted = std::move(items[i]);
}

void GetOperation::start(int64_t timeout_ns) {
  begin(timeout_ns);
  std::vector<size_t> known, unknown;
  for (size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    if (auto prepared = prepare(item); !prepared) {
      settle(i, std::unexpected(prepared.error()));
      continue;
    }
    auto location = client_->known_location(item.wanted.key);
    if (location) {
      item.location = *location;
      item.from_cache = true;
    }
    (location ? known : unknown).push_back(i);
  }
  if (done()) return;
  client_->counters_.located_from_cache += known.size();
  read_known(known);
  locate(unknown);
}

Result<> GetOperation::prepare(Item& item) {
  if (!catalog::key_valid(item.wanted.key)) {
    return fail(Code::kInvalid, "a key of " + std::to_string(item.wanted.key.size()) + " bytes, must be from 1 to " +
                                    std::to_string(catalog::kMaxKeyBytes));
  }
  std::erase_if(item.wanted.parts, [](const Part& part) { return part.length == 0; });
  item.room = total_length(item.wanted.parts);
  for (const Part& part : item.wanted.parts) {
    TRY(auto region, client_->regions_.acquire(part, memory::kLocal));
    item.regions.push_back(region);
  }
  return {};
}

// ---- place

void GetOperation::locate(const std::vector<size_t>& indices) {
  for (size_t from = 0; from < indices.size(); from += wire::kStoreItemsMax) {
    size_t to = std::min(indices.size(), from + wire::kStoreItemsMax);
    std::vector<size_t> chunk(indices.begin() + static_cast<ptrdiff_t>(from),
                              indices.begin() + static_cast<ptrdiff_t>(to));
    std::vector<std::string> keys;
    for (size_t i : chunk) keys.push_back(items_[i].wanted.key);
    int64_t asked_ns = reactor().now_ns();
    client_->locate(keys, deadline_ns(), [self = self(), chunk, asked_ns](Result<wire::LocateReply> reply) {
      if (!self->done()) self->located(chunk, reply, asked_ns);
    });
  }
}

void GetOperation::located(const std::vector<size_t>& indices, const Result<wire::LocateReply>& reply,
                           int64_t asked_ns) {
  std::vector<size_t> found;
  auto locations = reply ? client_->locations_in(*reply) : std::vector<std::optional<Location>>{};
  for (size_t n = 0; n < indices.size(); ++n) {
    size_t i = indices[n];
    Item& item = items_[i];
    if (!open(i)) continue;
    if (!reply) {
      settle(i, std::unexpected(reply.error()));
      continue;
    }
    if (!locations[n]) {
      missed(i);
      continue;
    }
    item.location = std::move(*locations[n]);
    item.from_cache = false;
    item.tried = 0;
    item.hot.reset();
    client_->remember(item.wanted.key, item.location, asked_ns + reply->lease_ns);
    found.push_back(i);
  }
  if (!done()) read_located(found);
}

// ---- read

Result<uint64_t> GetOperation::coverage(const Item& item) {
  const uint64_t length = item.location.length;
  uint64_t covered = length;
  if (const auto& range = item.wanted.range) {
    if (range->offset > length) {
      return fail(Code::kInvalid, "the range begins at " + std::to_string(range->offset) + ", the object has " +
                                      std::to_string(length) + " bytes");
    }
    covered = std::min(range->length, length - range->offset);
  }
  if (covered <= item.room) return covered;
  return fail(Code::kInvalid, std::string(item.wanted.range ? "the range" : "the object") + " has " +
                                  std::to_string(covered) + " bytes, the memory for it " + std::to_string(item.room));
}

void GetOperation::read_by_node(const std::vector<size_t>& indices) {
  std::map<InstanceId, std::vector<size_t>> by_node;
  std::vector<size_t> hot;
  std::vector<size_t> to_locate;
  for (size_t i : indices) {
    Item& item = items_[i];
    if (auto covered = coverage(item)) {
      item.covered = *covered;
      (item.hot ? hot : by_node[item.location.node]).push_back(i);
    } else if (item.wanted.range && item.from_cache && client_->commits_.find(item.wanted.key) == nullptr) {
      to_locate.push_back(i);  // nothing has proven yet that this is the object that the key has now
    } else {
      settle(i, std::unexpected(covered.error()));
    }
  }
  locate(to_locate);
  read_hot(hot);
  for (auto& [node, group] : by_node) {
    for (size_t from = 0; from < group.size(); from += wire::kStoreItemsMax) {
      size_t to = std::min(group.size(), from + wire::kStoreItemsMax);
      read({group.begin() + static_cast<ptrdiff_t>(from), group.begin() + static_cast<ptrdiff_t>(to)});
    }
  }
}

void GetOperation::read(const std::vector<size_t>& indices) {
  int64_t left = std::max<int64_t>(deadline_ns() - reactor().now_ns(), kMillisecond);
  int64_t timeout = std::min(left, client_->options_.connect_timeout_ns);
  client_->engine_.open(items_[indices.front()].location.address, timeout,
                        [self = self(), indices](Result<engine::LinkRef> link) {
                          if (self->done()) return;
                          if (link) return self->read_from(*link, indices);
                          self->proofs_failed(indices);
                        });
}

void GetOperation::read_from(const engine::LinkRef& link, const std::vector<size_t>& indices) {
  const Item& first = items_[indices.front()];
  const std::string name =
      first.hot ? wire::hot_region_name(client_->hot_.node()) : wire::pool_region_name(first.location.node);
  uint64_t handle = 0;
  for (const auto& [id, region] : link->regions()) {
    if (region->name == name) handle = client_->engine_.handle(link, id);
  }
  auto batch = std::make_shared<Batch>();
  batch->headers = client_->headers_;
  batch->checksums = client_->checksums_;
  if (handle == 0) return proofs_failed(indices);  // another process answers at that address now
  batch->handle = handle;
  for (size_t i : indices) {
    if (open(i)) add_records(*batch, i, handle);
  }
  if (!batch->indices.empty()) submit(batch);
}

void GetOperation::add_records(Batch& batch, size_t index, uint64_t handle) {
  Item& item = items_[index];
  auto slot = batch.headers->take();
  if (!slot) {
    return settle(index, std::unexpected(slot.error()));
  }
  item.header = *slot;
  std::memset(item.header, 0, sizeof(EntryHeader));
  item.first_record = batch.records.size();
  auto add = [&](uint64_t local, uint64_t offset, uint64_t length) {
    batch.records.push_back({.op = static_cast<uint32_t>(transport::Op::kRead),
                             .flags = 0,
                             .local = local,
                             .handle = handle,
                             .offset = offset,
                             .length = length});
  };
  add(reinterpret_cast<uint64_t>(item.header), item.place(), sizeof(EntryHeader));
  const uint64_t first = item.place() + sizeof(EntryHeader) + (item.wanted.range ? item.wanted.range->offset : 0);
  uint64_t done = 0;
  for (const Part& part : item.wanted.parts) {
    uint64_t now = std::min(part.length, item.covered - done);
    if (now == 0) break;
    add(part.address, first + done, now);
    done += now;
  }
  item.records = batch.records.size() - item.first_record;
  batch.indices.push_back(index);
}

void GetOperation::submit(const BatchRef& batch) {
  batch->failed.assign(batch->indices.size(), false);
  hold();
  auto done = [self = self(), batch] {
    if (batch->transfer) self->check(batch);  // without: inside submit(), which goes on below
  };
  auto quiet = [self = self(), batch] {
    batch->quiet = true;
    self->after_batch(batch);
  };
  auto transfer =
      client_->engine_.submit(batch->records, {.done = std::move(done), .quiet = std::move(quiet), .trace = trace()});
  if (!transfer) {
    batch->quiet = true;
    batch->checked = true;
    for (size_t i : batch->indices) settle(i, std::unexpected(transfer.error()));
    return after_batch(batch);
  }
  batch->transfer = std::move(*transfer);
  if (batch->transfer->done()) check(batch);
}

// ---- proof

bool GetOperation::header_is_right(const Item& item, const std::byte* at) {
  EntryHeader header;
  std::memcpy(&header, at, sizeof header);
  if (!header_matches(header, item.location.generation, item.wanted.key, item.location.length)) return false;
  // A cache has what its readers told it of: only the master's word says that these are the object's bytes.
  return !item.hot || header.payload_crc == item.location.crc;
}

void GetOperation::check(const BatchRef& batch) {
  if (std::exchange(batch->checked, true)) return;
  batch->proofs_left = 1;
  std::vector<size_t> ranges;
  if (!done()) {
    for (size_t n = 0; n < batch->indices.size(); ++n) {
      const Item& item = items_[batch->indices[n]];
      bool arrived = true;
      for (size_t r = 0; r < item.records; ++r)
        arrived = arrived && batch->transfer->results()[item.first_record + r] == Code::kOk;
      if (!arrived || !header_is_right(item, item.header)) {
        batch->failed[n] = true;
      } else if (read_whole(item)) {
        prove_payload(batch, n);
      } else {
        ranges.push_back(n);
      }
    }
  }
  if (!ranges.empty()) read_headers_again(batch, ranges);
  --batch->proofs_left;
  after_batch(batch);
}

void GetOperation::prove_payload(const BatchRef& batch, size_t position) {
  size_t index = batch->indices[position];
  Item& item = items_[index];
  std::vector<ByteView> spans;
  uint64_t left = item.covered;
  for (const Part& part : item.wanted.parts) {
    uint64_t now = std::min(part.length, left);
    if (now == 0) break;
    spans.emplace_back(reinterpret_cast<const std::byte*>(part.address), now);
    left -= now;
  }
  ++batch->proofs_left;
  batch->checksums->add(std::move(spans), [self = self(), batch, position, index](uint32_t crc) {
    Item& item = self->items_[index];
    EntryHeader header;
    std::memcpy(&header, item.header, sizeof header);
    if (crc != header.payload_crc) {
      batch->failed[position] = true;
    } else {
      self->proven(index);
    }
    --batch->proofs_left;
    self->after_batch(batch);
  });
}

void GetOperation::proven(size_t index) {
  if (!open(index)) return;
  const Item& item = items_[index];
  ++client_->counters_.gets;
  if (item.wanted.range) ++client_->counters_.range_gets;
  client_->counters_.get_bytes += item.covered;
  if (item.from_cache) client_->touched(item.wanted.key);
  tell_cache(item);
  settle(index, item.covered);
}

void GetOperation::Recheck::give_back() {
  if (!checked || !quiet) return;
  for (std::byte* slot : std::exchange(slots, {})) headers->give(slot);
}

void GetOperation::read_headers_again(const BatchRef& batch, const std::vector<size_t>& positions) {
  auto recheck = std::make_shared<Recheck>();
  recheck->headers = batch->headers;
  std::vector<engine::Record> records;
  for (size_t position : positions) {
    const size_t index = batch->indices[position];
    auto slot = recheck->headers->take();
    if (!slot) {
      settle(index, std::unexpected(slot.error()));
      continue;
    }
    std::memset(*slot, 0, sizeof(EntryHeader));
    recheck->positions.push_back(position);
    recheck->slots.push_back(*slot);
    records.push_back({.op = static_cast<uint32_t>(transport::Op::kRead),
                       .flags = 0,
                       .local = reinterpret_cast<uint64_t>(*slot),
                       .handle = batch->handle,
                       .offset = items_[index].place(),
                       .length = sizeof(EntryHeader)});
  }
  if (records.empty()) return;
  ++batch->proofs_left;
  hold();
  auto over = [self = self(), batch, recheck] {
    if (recheck->transfer) self->check_again(batch, recheck);  // without: inside submit(), which goes on below
  };
  auto quiet = [self = self(), recheck] {
    recheck->quiet = true;
    recheck->give_back();
    self->release();
  };
  // Payload that this thread copied was loaded before the word is.
  std::atomic_thread_fence(std::memory_order_acquire);
  auto transfer =
      client_->engine_.submit(records, {.done = std::move(over), .quiet = std::move(quiet), .trace = trace()});
  if (transfer) {
    recheck->transfer = std::move(*transfer);
    if (recheck->transfer->done()) check_again(batch, recheck);
    return;
  }
  for (size_t position : recheck->positions) settle(batch->indices[position], std::unexpected(transfer.error()));
  recheck->checked = recheck->quiet = true;
  recheck->give_back();
  --batch->proofs_left;
  release();
}

void GetOperation::check_again(const BatchRef& batch, const RecheckRef& recheck) {
  if (std::exchange(recheck->checked, true)) return;
  for (size_t n = 0; n < recheck->positions.size(); ++n) {
    const size_t position = recheck->positions[n];
    const size_t index = batch->indices[position];
    if (recheck->transfer->results()[n] == Code::kOk && header_is_right(items_[index], recheck->slots[n])) {
      proven(index);
    } else {
      batch->failed[position] = true;
    }
  }
  recheck->transfer.reset();
  recheck->give_back();
  --batch->proofs_left;
  after_batch(batch);
}

// Once the outcome is checked and nothing writes any more: what failed may use the same memory again.
void GetOperation::after_batch(const BatchRef& batch) {
  if (!batch->checked || !batch->quiet || batch->proofs_left > 0 || batch->indices.empty()) return;
  auto keep = self();
  auto indices = std::exchange(batch->indices, {});
  for (size_t i : indices) batch->headers->give(std::exchange(items_[i].header, nullptr));
  std::vector<size_t> failed;
  for (size_t n = 0; n < indices.size(); ++n) {
    if (batch->failed[n]) failed.push_back(indices[n]);
  }
  proofs_failed(failed);
  batch->transfer.reset();
  release();
}

void GetOperation::proofs_failed(const std::vector<size_t>& indices) {
  std::vector<size_t> elsewhere, to_locate;
  for (size_t i : indices) {
    if (!open(i)) continue;
    Item& item = items_[i];
    if (std::exchange(item.hot, std::nullopt)) {
      ++client_->counters_.hot_failed;
      elsewhere.push_back(i);
      continue;
    }
    ++client_->counters_.proofs_failed;
    client_->locations_.drop(item.wanted.key);
    if (item.tried < item.location.further.size()) {
      const OtherPlace& next = item.location.further[item.tried++];
      item.location.node = next.node;
      item.location.address = next.address;
      item.location.offset = next.offset;
      elsewhere.push_back(i);
    } else if (item.asked_again) {
      missed(i);
    } else {
      item.asked_again = true;
      to_locate.push_back(i);
    }
  }
  read_by_node(elsewhere);
  locate(to_locate);
}

void GetOperation::missed(size_t index) {
  ++client_->counters_.gets_missed;
  settle(index, fail(Code::kNotFound, "no such object"));
}

void GetOperation::ended(const std::vector<size_t>& unfinished) {
  if (!items_.empty()) {
    const size_t item = unfinished.empty() ? 0 : unfinished.front();
    client_->tell_if_slow("get", *this, item, items_[item].wanted.key, items_[item].location.address);
  }
  for (Item& item : items_) {
    for (auto& region : item.regions) {
      hold();
      client_->regions_.release(region, [self = self()] { self->release(); });
    }
    item.regions.clear();
  }
  client_->operations_.erase(shared_from_this());
}

}  // namespace moontide::store
