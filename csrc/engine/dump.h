// What is under way in an engine at this moment, for people who look for what is stuck. A copy: nothing in it refers to
// the engine, and it is made in bounded time.
//
// Thread: under the engine's lock.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/id.h"
#include "base/status.h"
#include "engine/observer.h"

namespace moontide::engine {

class Engine;
class Transfer;

// Slices of one transfer that are in the same place.
struct SlicesView {
  InstanceId peer;
  std::string address;
  std::string path;  // empty: none was found
  Stage stage = Stage::kQueue;
  uint64_t count = 0, bytes = 0;
  int64_t oldest_ns = 0;  // how long the first of them is in that stage
};

struct TransferView {
  uint64_t number = 0;
  std::string trace;
  bool served = false;  // asked for by a peer, which writes so
  bool done = false;    // has its outcome and is not quiet
  Code code = Code::kOk;
  int64_t age_ns = 0;   // since it was submitted
  int64_t idle_ns = 0;  // since the last byte moved
  uint64_t bytes_moved = 0, bytes_total = 0;
  uint64_t slices_left = 0;
  std::vector<SlicesView> slices;  // of those that are left, by peer, path and stage; bounded
};

struct DumpView {
  InstanceId instance;
  std::string address;
  std::vector<TransferView> transfers;                      // oldest first
  uint64_t transfers_left_out = 0;                          // beyond the bound
  std::vector<std::pair<std::string, int64_t>> connecting;  // address, since how long
  size_t links = 0, lingering = 0, hostages = 0, holds = 0;
};

DumpView dump(const Engine& engine, size_t transfers_max);

// The oldest transfer without an outcome; 0: there is none.
int64_t oldest_transfer_ns(const Engine& engine);

}  // namespace moontide::engine
