#include "store/pull_job.h"

namespace moontide::store {

PullJob::PullJob(Storage& storage, engine::LinkRef link, wire::StorePull request, std::string trace,
                 rpc::Responder responder)
    : storage_(storage),
      link_(std::move(link)),
      request_(std::move(request)),
      trace_(std::move(trace)),
      responder_(std::move(responder)),
      items_(request_.items.size()) {}

void PullJob::start() {
  for (size_t i = 0; i < items_.size(); ++i) {
    items_[i].code = admit(i);
    if (items_[i].code != Code::kOk) ++storage_.counters_.refused;
  }
  if (records_.empty()) {
    quiet_ = true;
    return copied();
  }
  std::weak_ptr weak = weak_from_this();
  auto done = [weak] {
    auto self = weak.lock();
    if (self && self->transfer_) self->copied();  // without a transfer: inside submit(), start() goes on
  };
  auto quiet = [weak] {
    if (auto self = weak.lock()) self->quiet();
  };
  auto transfer =
      storage_.engine_.submit(records_, {.done = std::move(done), .quiet = std::move(quiet), .trace = trace_});
  if (!transfer) {
    quiet_ = true;
    for (Item& item : items_) {
      if (item.records > 0) item.code = transfer.error().code;
    }
    return copied();
  }
  transfer_ = std::move(*transfer);
  if (transfer_->done()) copied();
}

Code PullJob::admit(size_t index) {
  const wire::StorePullItem& wanted = request_.items[index];
  Item& item = items_[index];
  uint64_t sum = wanted.inline_value.size();
  for (const wire::SourcePart& part : wanted.parts) {
    if (part.length > catalog::kMaxObjectBytes - std::min(sum, catalog::kMaxObjectBytes)) return Code::kInvalid;
    sum += part.length;
  }
  if (!catalog::key_valid(wanted.key) || sum != wanted.length) return Code::kInvalid;
  if (!wanted.parts.empty() && !wanted.inline_value.empty()) return Code::kInvalid;
  if (!storage_.gate_.authentic(wanted.generation, wanted.key, wanted.length, wanted.tag)) return Code::kDenied;
  if (const Segment::Entry* entry = storage_.segment_.find(wanted.generation)) {
    item.placed = true;  // the client did not hear of it the first time
    item.crc = entry->crc;
    item.offset = entry->offset;
    return Code::kOk;
  }
  if (!storage_.gate_open_ || storage_.pulling_.contains(wanted.generation)) return Code::kUnavailable;
  if (auto open = storage_.gate_.open(wanted.generation); !open) return open.error().code;
  item.offset = storage_.segment_.allocate(wanted.length);
  if (!item.offset) return Code::kNoSpace;
  storage_.pulling_.insert(wanted.generation);
  MutableBytes target = storage_.segment_.payload(*item.offset, wanted.length);
  if (wanted.parts.empty()) {
    if (!target.empty()) std::memcpy(target.data(), wanted.inline_value.data(), target.size());
    return Code::kOk;
  }
  item.first_record = records_.size();
  if (auto added = add_records(wanted, target.data()); !added) {
    records_.resize(item.first_record);
    return added.error().code;
  }
  item.records = records_.size() - item.first_record;
  return Code::kOk;
}

Result<> PullJob::add_records(const wire::StorePullItem& wanted, std::byte* target) {
  for (const wire::SourcePart& part : wanted.parts) {
    auto remote = link_->region(part.region);
    if (!remote || remote->generation != part.region_generation) {
      return fail(Code::kDenied, "the client's region " + std::to_string(part.region) + " is gone");
    }
    records_.push_back({.op = static_cast<uint32_t>(transport::Op::kRead),
                        .flags = 0,
                        .local = reinterpret_cast<uint64_t>(target),
                        .handle = storage_.engine_.handle(link_, part.region),
                        .offset = part.offset,
                        .length = part.length});
    target += part.length;
  }
  return {};
}

void PullJob::copied() {
  if (std::exchange(copied_, true)) return;
  auto self = shared_from_this();
  checksums_left_ = 1;
  for (size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    for (size_t r = 0; transfer_ && r < item.records && item.code == Code::kOk; ++r) {
      Code code = transfer_->results()[item.first_record + r];
      // STALE is the word for a ticket that is over; a source that went away is the client's own doing
      item.code = code == Code::kStale ? Code::kDenied : code;
    }
    if (item.code == Code::kOk && !item.placed) checksum(i);
  }
  checksum_done();
}

void PullJob::checksum(size_t index) {
  ++checksums_left_;
  ByteView arrived = storage_.segment_.payload(*items_[index].offset, request_.items[index].length);
  storage_.checksums_.add({arrived}, [weak = weak_from_this(), index](uint32_t crc) {
    auto self = weak.lock();
    if (!self) return;
    self->items_[index].crc = crc;
    self->checksum_done();
  });
}

void PullJob::checksum_done() {
  if (--checksums_left_ > 0) return;
  if (storage_.gate_open_) return publish();
  storage_.at_gate_.push_back(shared_from_this());
}

void PullJob::gate_opened() { publish(); }

void PullJob::publish() {
  auto self = shared_from_this();
  for (size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    if (item.code != Code::kOk || item.placed) continue;
    const wire::StorePullItem& wanted = request_.items[i];
    // The put may have ended while its bytes came in.
    if (auto open = storage_.gate_.open(wanted.generation); !open) {
      item.code = open.error().code;
      continue;
    }
    storage_.segment_.publish(wanted.generation, wanted.key, wanted.length, *item.offset, item.crc);
    item.placed = true;
    ++storage_.counters_.pulls;
    storage_.counters_.pulled_bytes += wanted.length;
    storage_.pull_over(wanted.generation);
  }
  answer();
  answered_ = true;
  release_failed();
}

void PullJob::answer() {
  wire::StorePullReply reply;
  for (const Item& item : items_) {
    if (item.code != Code::kOk && item.offset) ++storage_.counters_.failed;
    reply.items.push_back({item.code, item.code == Code::kOk ? *item.offset : 0, item.crc});
  }
  responder_->reply(reply);
  responder_.reset();
}

void PullJob::quiet() {
  quiet_ = true;
  release_failed();
}

void PullJob::release_failed() {
  if (!answered_ || !quiet_) return;
  auto self = shared_from_this();
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].placed || !items_[i].offset) continue;
    storage_.segment_.discard(*items_[i].offset);
    storage_.pull_over(request_.items[i].generation);
  }
  storage_.forget(self);
}

}  // namespace moontide::store
