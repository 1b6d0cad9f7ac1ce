#include "store/entry_copy.h"

#include "store/entry.h"

namespace moontide::store {

EntryCopy::~EntryCopy() {
  if (header_ != nullptr && quiet_) headers_.give(header_);
}

void EntryCopy::start(int64_t connect_timeout_ns, Done done, Quiet quiet) {
  done_ = std::move(done);
  quiet_told_ = std::move(quiet);
  auto slot = headers_.take();
  if (!slot) return finish(slot.error().code);
  header_ = *slot;
  std::memset(header_, 0, sizeof(EntryHeader));
  engine_.open(item_.address, connect_timeout_ns, [weak = weak_from_this()](Result<engine::LinkRef> link) {
    if (auto self = weak.lock()) self->opened(link);
  });
}

void EntryCopy::opened(const Result<engine::LinkRef>& link) {
  if (!link) return finish(link.error().code);
  const std::string name = wire::pool_region_name(item_.source);
  for (const auto& [id, region] : (*link)->regions()) {
    if (region->name == name) return read(engine_.handle(*link, id));
  }
  finish(Code::kUnavailable);  // another process answers at that address now
}

void EntryCopy::read(uint64_t handle) {
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
  if (!into_.empty()) add(into_.data(), item_.offset + sizeof(EntryHeader), into_.size());
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
  auto transfer = engine_.submit(records, {.done = std::move(done), .quiet = std::move(quiet), .trace = {}});
  if (!transfer) {
    quiet_ = true;
    return finish(transfer.error().code);
  }
  transfer_ = std::move(*transfer);
  if (transfer_->done()) copied();
}

void EntryCopy::copied() {
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
  checksums_.add({into_}, [weak = weak_from_this()](uint32_t crc) {
    if (auto self = weak.lock()) self->finish(crc == self->item_.crc ? Code::kOk : Code::kStale);
  });
}

void EntryCopy::finish(Code code) {
  auto self = shared_from_this();
  over_ = true;
  done_(code);
  release();
}

void EntryCopy::release() {
  if (!over_ || !quiet_ || !quiet_told_) return;
  auto self = shared_from_this();
  if (header_ != nullptr) headers_.give(std::exchange(header_, nullptr));
  transfer_.reset();
  std::exchange(quiet_told_, nullptr)();
}

}  // namespace moontide::store
