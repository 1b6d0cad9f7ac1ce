// One batch of puts on its way: grant → pull → commit, per item, with what can be tried again tried again until the
// deadline. The nodes of an item's replicas pull at the same time; it goes on to the commit when each has the bytes or
// failed, and one has them.
#pragma once

#include "store/client.h"

namespace moontide::store {

class PutOperation final : public Operation {
 public:
  PutOperation(Client& client, std::vector<PutItem> items, Commit commit, OperationOptions options,
               catalog::Placement placement);
  void start(int64_t timeout_ns);
  Generation version(size_t item) const override { return items_[item].generation; }

 private:
  enum class Stage : uint8_t { kGrant, kPull, kCommit, kOver };

  // One granted replica.
  struct Target {
    enum class State : uint8_t { kPulling, kAgain, kLanded, kFailed };
    wire::NodeRef node;
    uint64_t tag = 0;
    State state = State::kPulling;
    uint32_t pulls_failed = 0;
    wire::Placed placed;

    static Target of(wire::NodeRef node, uint64_t tag) {
      Target target;
      target.node = std::move(node);
      target.tag = tag;
      return target;
    }
  };
  struct Item {
    PutItem wanted;
    uint64_t length = 0;
    bool is_inline = false;
    std::vector<wire::SourcePart> sources;
    std::vector<memory::RegionRef> regions;
    Stage stage = Stage::kGrant;
    uint64_t token = 0;
    uint32_t rounds = 0;           // PutStarts that were granted
    bool maybe_committed = false;  // a PutEnd went out and its answer is not known
    Generation generation;
    std::vector<Target> targets;
    Error waits_for{Code::kOk, ""};  // why it is tried again, until it gets further
  };

  Result<> prepare(Item& item);
  void grant(const std::vector<size_t>& indices);
  void granted(const std::vector<size_t>& indices, const Result<Bytes>& reply);
  void not_granted(size_t index, Code code);

  // What one node is to pull for one item; over when the item's grant is.
  struct Pull {
    size_t item = 0;
    size_t target = 0;
    uint32_t round = 0;
  };
  Target* target_of(const Pull& pull);  // null: it is over
  void pull(const std::vector<Pull>& pulls);
  void pull_from(const engine::LinkRef& link, const std::vector<Pull>& pulls);
  void add_to(wire::StorePull& message, const Pull& pull) const;
  void send_pull(const engine::LinkRef& link, wire::StorePull message, std::vector<Pull> pulls);
  void pulled(const std::vector<Pull>& pulls, const Result<rpc::Reply>& reply);
  void pull_failed(const Pull& pull, const Error& error, std::vector<size_t>& landed);
  // Whether another node has the item; else its pulls are awaited or, when all failed, the item goes on from there.
  void target_over(size_t index, const Error& error, std::vector<size_t>& landed);
  void none_landed(size_t index, const Error& error);
  // Nodes that have not answered for half the time that was left cost their replica where another has landed.
  void give_up_slow();

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
  // Where it landed.
  static Location location(const Item& item);
  static uint32_t crc_of(const Item& item);
  // Whom to name where it took too long.
  static std::string peer_of(const Item& item);

  Client* client_;  // null once it is gone
  std::shared_ptr<PutOperation> self() { return std::static_pointer_cast<PutOperation>(shared_from_this()); }

  Commit commit_;
  const catalog::Placement placement_;
  std::vector<Item> items_;
  io::Timer patience_;
  std::vector<size_t> retries_;
  uint32_t pauses_ = 0;
  int64_t started_ns_ = 0;
};

}  // namespace moontide::store
