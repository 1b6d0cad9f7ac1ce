// One entry on its way from another node, which is ordered by the master: read, prove as a reader does, publish, tell.
// Ends when nothing of it touches the segment any more.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "store/storage.h"

namespace moontide::store {

class RepairJob : public std::enable_shared_from_this<RepairJob> {
 public:
  RepairJob(Storage& storage, wire::RepairItem item) : storage_(storage), item_(std::move(item)) {}

  void start();

 private:
  Code admit();
  void opened(const Result<engine::LinkRef>& link);
  void read(uint64_t handle);
  // The outcome of the transfer is there.
  void copied();
  void checked(uint32_t crc);
  void finish(Code code, uint32_t crc = 0);
  void release();

  Storage& storage_;
  const wire::RepairItem item_;
  std::optional<uint64_t> offset_;  // of an extent that is this job's until it is an entry
  std::byte* header_ = nullptr;     // a slot
  engine::TransferRef transfer_;
  bool copied_ = false;
  bool told_ = false;
  bool quiet_ = true;
};

}  // namespace moontide::store
