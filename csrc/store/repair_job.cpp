#include "store/repair_job.h"

namespace moontide::store {

void RepairJob::start() {
  if (Code code = admit(); code != Code::kOk) {
    finish(code);
    return release();
  }
  copy_ = std::make_shared<EntryCopy>(storage_.engine_, storage_.headers_, storage_.checksums_, item_,
                                      storage_.segment_.payload(*offset_, item_.length));
  std::weak_ptr weak = weak_from_this();
  auto done = [weak](Code code) {
    if (auto self = weak.lock()) self->copied(code);
  };
  auto quiet = [weak] {
    if (auto self = weak.lock()) self->release();
  };
  copy_->start(storage_.options_.connect_timeout_ns, std::move(done), std::move(quiet));
}

Code RepairJob::admit() {
  if (!catalog::key_valid(item_.key) || item_.length > catalog::kMaxObjectBytes) return Code::kInvalid;
  if (!storage_.gate_open_ || storage_.pulling_.contains(item_.generation)) return Code::kUnavailable;
  if (storage_.segment_.find(item_.generation) != nullptr) return Code::kAlreadyExists;
  if (storage_.repair_jobs_.size() > storage_.options_.jobs_max) return Code::kOverloaded;
  offset_ = storage_.segment_.allocate(item_.length);
  if (!offset_) return Code::kNoSpace;
  storage_.pulling_.insert(item_.generation);
  storage_.repairs_.insert(item_.generation);
  return Code::kOk;
}

void RepairJob::copied(Code code) {
  if (code != Code::kOk) return finish(code);
  // The object may have ended while its bytes came in, or this node joins another master.
  if (!storage_.gate_open_ || !storage_.repairs_.contains(item_.generation)) return finish(Code::kStale);
  storage_.segment_.publish(item_.generation, item_.key, item_.length, *offset_, item_.crc);
  finish(Code::kOk);
}

void RepairJob::finish(Code code) {
  ++(code == Code::kOk ? storage_.counters_.repairs : storage_.counters_.repairs_failed);
  const uint64_t offset = offset_.value_or(0);
  if (code == Code::kOk) {
    offset_.reset();  // it is the entry's
    storage_.pull_over(item_.generation);
  }
  storage_.repaired_({item_.generation, code, code == Code::kOk ? offset : 0, code == Code::kOk ? item_.crc : 0});
}

void RepairJob::release() {
  auto self = shared_from_this();
  if (offset_) {
    storage_.segment_.discard(*std::exchange(offset_, std::nullopt));
    storage_.pull_over(item_.generation);
  }
  storage_.forget(self);
}

}  // namespace moontide::store
