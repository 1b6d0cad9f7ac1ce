// One entry on its way from another node, which is ordered by the master: copy, publish, tell. Ends when nothing of it
// touches the segment any more.
#pragma once

#include <memory>
#include <optional>

#include "store/entry_copy.h"
#include "store/storage.h"

namespace moontide::store {

class RepairJob : public std::enable_shared_from_this<RepairJob> {
 public:
  RepairJob(Storage& storage, wire::RepairItem item) : storage_(storage), item_(std::move(item)) {}

  void start();

 private:
  Code admit();
  void copied(Code code);
  void finish(Code code);
  void release();

  Storage& storage_;
  const wire::RepairItem item_;
  std::optional<uint64_t> offset_;  // of an extent that is this job's until it is an entry
  std::shared_ptr<EntryCopy> copy_;
};

}  // namespace moontide::store
