// The catalog as a sequence of operations, those of clients, of nodes (which may lie) and of a master that starts anew;
// all of it is counted again after each.
#include "catalog/catalog.h"
#include "fuzz/fuzz.h"

namespace moontide::fuzz {
namespace {

using namespace catalog;

class Scene {
 public:
  Scene()
      : catalog_({.put_timeout_ns = 20 * kSecond,
                  .lease_ns = 2 * kSecond,
                  .max_objects = 12,
                  .max_nodes = 3,
                  .max_endings = 8,
                  .evictions_per_step = 3,
                  .scan_per_step = 5}) {
    catalog_.start_term(1);
  }

  void step(Input& input) {
    now_ns_ += int64_t{input.u8()} * 100 * kMillisecond;
    const uint8_t op = input.u8();
    const NodeId node{10, op / 16u % 4};
    const ClientId client{1, op / 64u};
    switch (op % 16) {
      case 0:
      case 1:
        return start(client, input);
      case 2:
      case 3:
        return end(client, input);
      case 4: {
        PutRef ref{key(input), generation(input)};
        catalog_.put_revoke(client, {&ref, 1});
        return;
      }
      case 5:
      case 6: {
        const std::string one = key(input);
        const Place place = catalog_.locate({&one, 1}, now_ns_)[0];
        require((place.code == Code::kOk) == catalog_.exists({&one, 1})[0], "locate and exists agree");
        return;
      }
      case 7: {
        const std::string one = key(input);
        catalog_.remove({&one, 1});
        require(!catalog_.exists({&one, 1})[0], "removed is gone");
        return;
      }
      case 8:
        return catalog_.tick(now_ns_);
      case 9:
        (void)catalog_.node_join(node, {uint64_t{input.u8()} * 256, "", input.u8() % 4u});
        return;
      case 10:
        return inventory(node, input);
      case 11:
        if (catalog_.node(node) != nullptr) (void)catalog_.node_ready(node);
        return;
      case 12:
        return input.u8() % 4 == 0 ? catalog_.node_lost(node) : catalog_.node_away(node);
      case 13:
        return obey(input.u8());
      case 14: {
        std::vector<Generation> acked = {generation(input), generation(input)};
        return catalog_.retire_acked(node, acked);
      }
      default:
        if (op == 255) return catalog_.start_term(catalog_.term() + 1);
        if (op / 16 % 2 == 0) return keep(input);
        catalog_.list(key(input).substr(0, 1), "", 3);
    }
  }

  void sound() const {
    auto result = catalog_.check_invariants();
    if (!result) std::fprintf(stderr, "%s\n", result.error().text().c_str());
    require(result.has_value(), "the catalog's books agree");
  }

 private:
  std::string key(Input& input) {
    const uint8_t which = input.u8();
    return which == 255 ? std::string() : std::string(1 + which / 8 % 2, static_cast<char>('a' + which % 8));
  }
  // Mostly one that was given out.
  Generation generation(Input& input) {
    const uint8_t which = input.u8();
    if (which >= 240) return {which - 240u, input.u8()};
    return granted_.empty() ? Generation{} : granted_[which % granted_.size()];
  }
  uint64_t length(Input& input) {
    const uint8_t which = input.u8();
    return which >= 250 ? UINT64_MAX >> (which - 250) * 9 : which * 16u;
  }
  void start(const ClientId& client, Input& input) {
    PutRequest request{key(input), length(input), input.u8()};
    const uint8_t where = input.u8();
    Placement placement{where % 10u, {}, {}};
    if (where / 10 % 2 == 1) placement.prefer.push_back({10, where / 20u % 4});
    if (where / 100 == 2) placement.avoid.push_back({10, where % 4u});
    const PutGrant grant = catalog_.put_start(client, {&request, 1}, now_ns_, placement)[0];
    if (grant.code == Code::kOk) granted_.push_back(grant.generation);
  }
  Retention retention(Input& input) {
    const uint8_t which = input.u8();
    return {static_cast<Pin>(which % 8 < 4 ? which % 4 : 0),
            which / 8 * (kSecond / 4) - (which == 255 ? 3600 * kSecond : 0)};
  }
  void keep(Input& input) {
    const std::string which = key(input);
    catalog_.keep({&which, 1}, retention(input), now_ns_);
  }
  PlacedAt at(Input& input) {
    const uint8_t where = input.u8();
    return {{10, where % 4u}, where / 4 * uint64_t{64}, input.u8()};
  }
  void end(const ClientId& client, Input& input) {
    PutPlaced placed{key(input), generation(input), at(input), retention(input), {}};
    for (uint8_t more = input.u8() % 4; more > 0; --more) placed.further.push_back(at(input));
    catalog_.put_end(client, {&placed, 1}, now_ns_);
  }
  void inventory(const NodeId& node, Input& input) {
    if (catalog_.node(node) == nullptr) return;
    std::vector<InventoryEntry> entries(1 + input.u8() % 3);
    for (InventoryEntry& entry : entries) {
      entry = {key(input), generation(input),   length(input),   uint64_t{input.u8()} * 64,
               0,          input.u8() % 2 == 0, retention(input)};
    }
    if (!catalog_.node_inventory(node, entries, now_ns_)) catalog_.node_away(node);
  }
  void obey(uint8_t most) {
    for (const NodeOrder& order : catalog_.take_orders(1 + most % 8)) {
      std::vector<Generation> gone;
      for (const RetireItem& item : order.retire) gone.push_back(item.generation);
      catalog_.retire_acked(order.node, gone);
      std::vector<RepairedItem> done;
      for (const RepairItem& item : order.repair) {
        done.push_back(
            {item.generation, most % 3 == 0 ? Code::kUnavailable : Code::kOk, most * uint64_t{64}, item.crc});
      }
      catalog_.repaired(order.node, done, now_ns_);
    }
  }

  Catalog catalog_;
  int64_t now_ns_ = kSecond;
  std::vector<Generation> granted_;
};

}  // namespace

std::vector<Bytes> seeds() {
  Output pool;  // one node, one object, located, removed and gone
  pool.u8(1).u8(9).u8(200).u8(0).u8(0).u8(11);
  pool.u8(0).u8(0).u8(3).u8(10).u8(1).u8(1).u8(0).u8(2).u8(3).u8(0).u8(4).u8(5).u8(0).u8(0).u8(0).u8(5).u8(3);
  pool.u8(0).u8(7).u8(3).u8(0).u8(13).u8(0).u8(0).u8(8);
  Output inventory;
  inventory.u8(1).u8(9).u8(200).u8(0).u8(0).u8(10).u8(1).u8(1).u8(241).u8(1).u8(4).u8(0).u8(0).u8(2).u8(241).u8(2);
  inventory.u8(4).u8(9).u8(0).u8(0).u8(11).u8(0).u8(5).u8(1);
  return {pool.take(), inventory.take()};
}

}  // namespace moontide::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  moontide::fuzz::Input input(data, size);
  moontide::fuzz::Scene scene;
  for (int steps = 0; steps < 120 && !input.empty(); ++steps) {
    scene.step(input);
    scene.sound();
  }
  return 0;
}
