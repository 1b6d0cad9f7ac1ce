// One batch of gets on its way: place → read → proof, per item; a failed proof leads to one more round from the master.
#pragma once

#include "store/client.h"
#include "store/entry.h"

namespace moontide::store {

class GetOperation final : public Operation {
 public:
  GetOperation(Client& client, std::vector<GetItem> items, OperationOptions options);
  void start(int64_t timeout_ns);

 private:
  struct Item {
    GetItem wanted;
    uint64_t room = 0;
    uint64_t covered = 0;  // bytes that are read: of the located object
    std::vector<memory::RegionRef> regions;
    Location location;
    std::optional<uint64_t> hot;  // where the hot cache of this host has it: it is read there
    bool from_cache = false;
    bool asked_again = false;
    size_t tried = 0;             // of location.further
    std::byte* header = nullptr;  // a slot, while a read is under way
    size_t first_record = 0;
    size_t records = 0;
    uint64_t place() const { return hot.value_or(location.offset); }  // of its header
  };
  // One transfer: objects of one node.
  struct Batch {
    // both may outlive the client, until nothing uses the caller's memory any more
    std::shared_ptr<HeaderSlots> headers;
    std::shared_ptr<ChecksumQueue> checksums;
    std::vector<size_t> indices;
    std::vector<engine::Record> records;
    std::vector<bool> failed;  // by position in `indices`: its proof failed
    uint64_t handle = 0;       // of the node's memory
    size_t proofs_left = 0;
    engine::TransferRef transfer;
    bool checked = false;
    bool quiet = false;
  };
  using BatchRef = std::shared_ptr<Batch>;
  // The headers of a batch's ranges, read once more: see read_headers_again().
  struct Recheck {
    std::shared_ptr<HeaderSlots> headers;
    std::vector<size_t> positions;  // in the batch
    std::vector<std::byte*> slots;
    engine::TransferRef transfer;
    bool checked = false;
    bool quiet = false;
    void give_back();  // once checked and quiet
  };
  using RecheckRef = std::shared_ptr<Recheck>;

  Result<> prepare(Item& item);
  void locate(const std::vector<size_t>& indices);
  void located(const std::vector<size_t>& indices, const Result<wire::LocateReply>& reply, int64_t asked_ns);
  void read_by_node(const std::vector<size_t>& indices);
  // get_operation_hot.cpp: as read_by_node(), of what was just located, or was known before. What the hot cache has is
  // read there, but never by a place that was known: the object may have ended since.
  void read_located(const std::vector<size_t>& indices);
  void read_known(const std::vector<size_t>& indices);
  std::vector<Generation> generations_of(const std::vector<size_t>& indices) const;
  void read_hot(const std::vector<size_t>& indices);
  void tell_cache(const Item& item);
  void read(const std::vector<size_t>& indices);
  void read_from(const engine::LinkRef& link, const std::vector<size_t>& indices);
  void add_records(Batch& batch, size_t index, uint64_t handle);
  void submit(const BatchRef& batch);
  void check(const BatchRef& batch);
  // What an item reads of the object that was located. INVALID: it does not fit the range or the memory.
  static Result<uint64_t> coverage(const Item& item);
  bool read_whole(const Item& item) const { return item.covered == item.location.length; }
  static bool header_is_right(const Item& item, const std::byte* header);
  void prove_payload(const BatchRef& batch, size_t position);
  // The proof of a range, to which no checksum belongs: its entry is still there after the last byte has arrived. A
  // node clears the generation word before the bytes may change.
  void read_headers_again(const BatchRef& batch, const std::vector<size_t>& positions);
  void check_again(const BatchRef& batch, const RecheckRef& recheck);
  void proven(size_t index);
  void after_batch(const BatchRef& batch);
  // The next place of each, or the master once more, or a miss.
  void proofs_failed(const std::vector<size_t>& indices);
  void missed(size_t index);
  void ended(const std::vector<size_t>& unfinished) override;

  std::shared_ptr<GetOperation> self() { return std::static_pointer_cast<GetOperation>(shared_from_this()); }

  Client* client_;
  std::vector<Item> items_;
};

}  // namespace moontide::store
