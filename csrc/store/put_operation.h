// One batch of puts on its way: grant → pull → commit, per item, with what can be tried again tried again until the
// deadline.
#pragma once

#include "store/client.h"

namespace moontide::store {

class PutOperation final : public Operation {
 public:
  PutOperation(Client& client, std::vector<PutItem> items, Commit commit, OperationOptions options);
  void start(int64_t timeout_ns);

 private:
  enum class Stage : uint8_t { kGrant, kPull, kCommit, kOver };

  struct Item {
    PutItem wanted;
    uint64_t length = 0;
    bool is_inline = false;
    std::vector<wire::SourcePart> sources;
    std::vector<memory::RegionRef> regions;
    Stage stage = Stage::kGrant;
    uint64_t token = 0;
    uint32_t pulls_failed = 0;     // of this grant
    uint32_t rounds = 0;           // PutStarts that were granted
    bool maybe_committed = false;  // a PutEnd went out and its answer is not known
    Generation generation;
    uint64_t tag = 0;
    wire::NodeRef node;
    wire::Placed placed;
    Error waits_for{Code::kOk, ""};  // why it is tried again, until it gets further
  };

  Result<> prepare(Item& item);
  void grant(const std::vector<size_t>& indices);
  void granted(const std::vector<size_t>& indices, const Result<Bytes>& reply);
  void not_granted(size_t index, Code code);

  void pull(const std::vector<size_t>& indices);
  void pull_from(const engine::LinkRef& link, const std::vector<size_t>& indices);
  void send_pull(const engine::LinkRef& link, wire::StorePull message, std::vector<size_t> indices);
  void pulled(const std::vector<size_t>& indices, const Result<rpc::Reply>& reply);
  void pull_failed(size_t index, const Error& error);

  void commit(const std::vector<size_t>& indices);
  void committed(const std::vector<size_t>& indices, const Result<Bytes>& reply, bool resent);

  // Later, after a pause that grows, in the stage where the item is.
  void retry(size_t index, Error why);
  void run_retries();
  void start_over(size_t index, Error why);
  void fail_item(size_t index, Error error);
  void revoke(const std::vector<size_t>& indices);
  Error why(size_t item, const Error& cause) const override;
  void ended(const std::vector<size_t>& unfinished) override;
  Location location(const Item& item) const;

  Client* client_;  // null once it is gone
  std::shared_ptr<PutOperation> self() { return std::static_pointer_cast<PutOperation>(shared_from_this()); }

  Commit commit_;
  std::vector<Item> items_;
  std::vector<size_t> retries_;
  uint32_t pauses_ = 0;
  int64_t started_ns_ = 0;
};

}  // namespace moontide::store
