// One client's request to pull some objects: admit, copy, checksum, publish, answer. Ends when it is answered and
// nothing of it touches the segment any more.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "store/storage.h"

namespace moontide::store {

class PullJob : public std::enable_shared_from_this<PullJob> {
 public:
  // `trace`: what the client calls it.
  PullJob(Storage& storage, engine::LinkRef link, wire::StorePull request, std::string trace, rpc::Responder responder);

  void start();
  // The gate of the storage is open again.
  void gate_opened();

 private:
  struct Item {
    std::optional<uint64_t> offset;  // of an extent that is this job's until it is an entry
    size_t first_record = 0;
    size_t records = 0;
    uint32_t crc = 0;
    Code code = Code::kOk;
    bool placed = false;  // was there already
  };

  Code admit(size_t index);
  Result<> add_records(const wire::StorePullItem& item, std::byte* target);
  void copied();
  void checksum(size_t index);
  void checksum_done();
  void publish();
  void quiet();
  void release_failed();
  void answer();

  Storage& storage_;
  engine::LinkRef link_;
  wire::StorePull request_;
  std::string trace_;
  std::optional<rpc::Responder> responder_;
  std::vector<Item> items_;
  std::vector<engine::Record> records_;
  engine::TransferRef transfer_;
  size_t checksums_left_ = 0;
  bool copied_ = false;
  bool answered_ = false;
  bool quiet_ = false;
};

}  // namespace moontide::store
