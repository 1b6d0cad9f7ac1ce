// Short forms for catalog tests: one pool, named nodes and clients, results as single values.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "catalog/catalog.h"

namespace moontide::catalog {

inline constexpr ClientId kAlice{1, 1};
inline constexpr ClientId kBob{2, 2};
inline constexpr NodeId kNodeA{10, 0};
inline constexpr NodeId kNodeB{11, 0};
inline constexpr uint64_t kKiB = 1024;

struct Pool {
  Catalog catalog;
  int64_t now_ns = kSecond;
  uint64_t next_token = 1;

  explicit Pool(Limits limits = {}, std::string_view policy = kDefaultPolicy) : catalog(limits, policy_maker(policy)) {
    catalog.start_term(1);
  }
  ~Pool() { sound(); }

  void sound() const {
    auto result = catalog.check_invariants();
    CHECK_MESSAGE(result.has_value(), (result ? "" : result.error().text()));
  }
  void join(const NodeId& id, uint64_t capacity, uint32_t term = 0) {
    REQUIRE(catalog.node_join(id, {.capacity_bytes = capacity, .address = "n", .reported_term = term}).has_value());
  }
  void inventory(const NodeId& id, std::vector<InventoryEntry> entries) {
    auto result = catalog.node_inventory(id, entries, now_ns);
    REQUIRE_MESSAGE(result.has_value(), (result ? "" : result.error().text()));
  }
  void ready(const NodeId& id) { REQUIRE(catalog.node_ready(id).has_value()); }
  void add_node(const NodeId& id, uint64_t capacity) {
    join(id, capacity);
    ready(id);
  }
  PutGrant start(const ClientId& client, const std::string& key, uint64_t length, uint64_t token = 0,
                 const Placement& placement = {}) {
    PutRequest request{.key = key, .length = length, .token = token != 0 ? token : next_token++};
    return catalog.put_start(client, {&request, 1}, now_ns, placement)[0];
  }
  // The first node that has a replica of that generation.
  NodeId node_of(Generation generation) const {
    for (const auto& [id, node] : catalog.nodes()) {
      if (node.replica(generation) != nullptr) return id;
    }
    return {};
  }
  Code end(const ClientId& client, const std::string& key, Generation generation, uint64_t offset = 0,
           const Retention& retention = {}) {
    return end_at(client, key, generation, {{.node = node_of(generation), .offset = offset, .crc = 7}}, retention);
  }
  Code end_at(const ClientId& client, const std::string& key, Generation generation, std::vector<PlacedAt> at,
              const Retention& retention = {}) {
    PutPlaced placed{.key = key, .generation = generation, .at = at.at(0), .retention = retention, .further = {}};
    placed.further.assign(at.begin() + 1, at.end());
    return catalog.put_end(client, {&placed, 1}, now_ns)[0];
  }
  Code revoke(const ClientId& client, const std::string& key, Generation generation) {
    PutRef ref{key, generation};
    return catalog.put_revoke(client, {&ref, 1})[0];
  }
  // A whole put by Alice on several nodes.
  PutGrant put_on(const std::string& key, uint64_t length, const Placement& placement,
                  const Retention& retention = {}) {
    PutGrant grant = start(kAlice, key, length, 0, placement);
    REQUIRE(grant.code == Code::kOk);
    std::vector<PlacedAt> at{{grant.node, 0, 7}};
    for (const NodeId& node : grant.further) at.push_back({node, 64, 7});
    REQUIRE(end_at(kAlice, key, grant.generation, at, retention) == Code::kOk);
    return grant;
  }
  // A whole put by Alice.
  PutGrant put(const std::string& key, uint64_t length, const Retention& retention = {}) {
    PutGrant grant = start(kAlice, key, length);
    REQUIRE(grant.code == Code::kOk);
    REQUIRE(end(kAlice, key, grant.generation, 0, retention) == Code::kOk);
    return grant;
  }
  Code keep(const std::string& key, const Retention& retention) {
    return catalog.keep({&key, 1}, retention, now_ns)[0];
  }
  void tick(int64_t by_ns) { catalog.tick(now_ns += by_ns); }
  Place locate(const std::string& key) { return catalog.locate({&key, 1}, now_ns)[0]; }
  bool exists(const std::string& key) const { return catalog.exists({&key, 1})[0]; }
  Code remove(const std::string& key) { return catalog.remove({&key, 1})[0]; }
  std::vector<std::string> keys(const std::string& prefix = "") const {
    std::vector<std::string> found;
    for (const Listed& item : catalog.list(prefix, "", 1000).items) found.push_back(item.key);
    return found;
  }
  // What the catalog wants retired on the node now.
  std::vector<Generation> ordered(const NodeId& id) {
    std::vector<Generation> generations;
    for (const NodeOrder& order : catalog.take_orders(1000)) {
      if (order.node != id) continue;
      for (const RetireItem& item : order.retire) generations.push_back(item.generation);
    }
    return generations;
  }
  void ack(const NodeId& id, std::vector<Generation> generations) { catalog.retire_acked(id, generations); }
  // Nodes that obey at once.
  void ack_all() {
    for (const NodeOrder& order : catalog.take_orders(1000)) {
      std::vector<Generation> generations;
      for (const RetireItem& item : order.retire) generations.push_back(item.generation);
      catalog.retire_acked(order.node, generations);
    }
  }
};

}  // namespace moontide::catalog
