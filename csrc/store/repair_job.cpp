#include "store/repair_job.h"

#include <algorithm>

namespace moontide::store {

void RepairJob::start() {
  if (Code code = admit(); code != Code::kOk) return finish(code);
  storage_.engine_.open(item_.address, storage_.options_.connect_timeout_ns,
                        [weak = weak_from_this()](Result<engine::LinkRef> link) {
                          if (auto self = weak.lock()) self->opened(link);
                        });
}

Code RepairJob::admit() {
  if (!catalog::key_valid(item_.key) || item_.length > catalog::kMaxObjectBytes) return Code::kInvalid;
  if (!storage_.gate_open_ || storage_.pulling_.contains(item_.generation)) return Code::kUnavailable;
  if (storage_.segment_.find(item_.generation) != nullptr) return Code::kAlreadyExists;
  if (storage_.repair_jobs_.size() > storage_.options_.jobs_max) return Code::kOverloaded;
  auto slot = storage_.headers_.take();
  if (!slot) return slot.error().code;
  header_ = *slot;
  std::memset(header_, 0, sizeof(EntryHeader));
  offset_ = storage_.segment_.allocate(item_.length);
  if (!offset_) return Code::kNoSpace;
  storage_.pulling_.insert(item_.generation);
  storage_.repairs_.insert(item_.generation);
  return Code::kOk;
}

void RepairJob::opened(const Result<engine::LinkRef>& link) {
  if (!link) return finish(link.error().code);
  const std::string name = wire::pool_region_name(item_.source);
  for (const auto& [id, region] : (*link)->regions()) {
    if (region->name == name) return read(storage_.engine_.handle(*link, id));
  }
  finish(Code::kUnavailable);  // another process answers at that address now
}

void RepairJob::read(uint64_t handle) {
  std::vector<engine::Record> records;
  auto add = [&](std::byte* local, uint64_t offset, uint64_t length) {
    records.push_back({.op = static_cast<uint32_t>(transport::Op::kRead),
                       .flags = 0,
                       .local = reinterpret_cast<uint64_t>(local),
                       .handle = handle,
                       .offset = offset,
                       .length = length});
  };
  add(header_, item_.offset, sizeof(EntryHeader));
  if (item_.length > 0) {
    add(storage_.segment_.payload(*offset_, item_.length).data(), item_.offset + sizeof(EntryHeader), item_.length);
  }
  std::weak_ptr weak = weak_from_this();
  auto done = [weak] {
    auto self = weak.lock();
    if (self && self->transfer_) self->copied();  // without a transfer: inside submit(), read() goes on
  };
  auto quiet = [weak] {
    auto self = weak.lock();
    if (!self) return;
    self->quiet_ = true;
    self->release();
  };
  quiet_ = false;
  auto transfer = storage_.engine_.submit(records, {.done = std::move(done), .quiet = std::move(quiet), .trace = {}});
  if (!transfer) {
    quiet_ = true;
    return finish(transfer.error().code);
  }
  transfer_ = std::move(*transfer);
  if (transfer_->done()) copied();
}

void RepairJob::copied() {
  if (std::exchange(copied_, true)) return;
  for (Code code : transfer_->results()) {
    if (code != Code::kOk) return finish(code);
  }
  EntryHeader header;
  std::memcpy(&header, header_, sizeof header);
  // The entry of that generation, of these bytes: as a reader proves it, and as the put was ended.
  if (!header_matches(header, item_.generation, item_.key, item_.length) || header.payload_crc != item_.crc) {
    return finish(Code::kStale);
  }
  storage_.checksums_.add({storage_.segment_.payload(*offset_, item_.length)}, [weak = weak_from_this()](uint32_t crc) {
    if (auto self = weak.lock()) self->checked(crc);
  });
}

void RepairJob::checked(uint32_t crc) {
  if (crc != item_.crc) return finish(Code::kStale);
  // The object may have ended while its bytes came in, or this node joins another master.
  if (!storage_.gate_open_ || !storage_.repairs_.contains(item_.generation)) return finish(Code::kStale);
  storage_.segment_.publish(item_.generation, item_.key, item_.length, *offset_, crc);
  finish(Code::kOk, crc);
}

void RepairJob::finish(Code code, uint32_t crc) {
  auto self = shared_from_this();
  ++(code == Code::kOk ? storage_.counters_.repairs : storage_.counters_.repairs_failed);
  const uint64_t offset = offset_.value_or(0);
  if (code == Code::kOk) {
    offset_.reset();  // it is the entry's
    storage_.pull_over(item_.generation);
  }
  told_ = true;
  storage_.repaired_({item_.generation, code, code == Code::kOk ? offset : 0, crc});
  release();
}

void RepairJob::release() {
  if (!told_ || !quiet_) return;
  auto self = shared_from_this();
  if (header_ != nullptr) storage_.headers_.give(std::exchange(header_, nullptr));
  if (offset_) {
    storage_.segment_.discard(*std::exchange(offset_, std::nullopt));
    storage_.pull_over(item_.generation);
  }
  transfer_.reset();
  storage_.forget(self);
}

}  // namespace moontide::store
