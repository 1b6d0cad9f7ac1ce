// One entry read from the node that has it into memory of this one, and proven as a reader proves it: by its header and
// by the checksum of what arrived, which is the one that the put was ended with.
//
// Thread: the reactor's.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "store/buffers.h"
#include "store/checksums.h"
#include "wire/store_messages.h"

namespace moontide::store {

class EntryCopy : public std::enable_shared_from_this<EntryCopy> {
 public:
  // `item`: what is read, and where it lies. `into`: as long as it, registered. All outlive the copy, but for the
  // memory, which the engine keeps until it is quiet.
  EntryCopy(engine::Engine& engine, HeaderSlots& headers, ChecksumQueue& checksums, wire::RepairItem item,
            MutableBytes into)
      : engine_(engine), headers_(headers), checksums_(checksums), item_(std::move(item)), into_(into) {}
  ~EntryCopy();

  // `done` runs once, maybe inside this call: kOk, or why not. `quiet` runs once, after it: nothing touches the memory
  // any more. Neither runs once the copy is destroyed.
  using Done = std::move_only_function<void(Code code)>;
  using Quiet = std::move_only_function<void()>;
  void start(int64_t connect_timeout_ns, Done done, Quiet quiet);

 private:
  void opened(const Result<engine::LinkRef>& link);
  void read(uint64_t handle);
  // The outcome of the transfer is there.
  void copied();
  void finish(Code code);
  void release();

  engine::Engine& engine_;
  HeaderSlots& headers_;
  ChecksumQueue& checksums_;
  const wire::RepairItem item_;
  const MutableBytes into_;
  Done done_;
  Quiet quiet_told_;
  std::byte* header_ = nullptr;  // a slot
  engine::TransferRef transfer_;
  bool copied_ = false;
  bool over_ = false;
  bool quiet_ = true;
};

}  // namespace moontide::store
