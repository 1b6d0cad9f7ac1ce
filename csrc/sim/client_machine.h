// A machine with one client of the pool on it, and what became of the operations that it was told to do.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/machine.h"
#include "sim/slots.h"
#include "store/client.h"

namespace moontide::sim {

enum class Kind : uint8_t { kPut, kPutAsync, kUpsert, kGet, kExists, kRemove, kList };

struct Request {
  uint64_t number = 0;  // of the operation
  Kind kind = Kind::kGet;
  std::string key;        // kList: the prefix
  uint64_t value = 0;     // puts: the number of the contents, see sim/values.h
  uint64_t length = 0;    // puts: kValueBytesMin up to Slots::kSlotBytes; gets: so many first bytes, 0: all
  bool in_memory = true;  // puts: from registered memory; else the client keeps a copy
  size_t replicas = 1;    // puts
};

struct Outcome {
  uint64_t number = 0;
  Code code = Code::kOk;
  uint64_t value = 0;  // gets: whose bytes came; 0: nobody's
  uint64_t length = 0;
  std::vector<std::string> listed;
  int64_t at_ns = 0;  // true time
};

class ClientMachine {
 public:
  // Outcomes are added to `outcomes`, which outlives the machine.
  static Result<std::unique_ptr<ClientMachine>> create(Universe& universe, const std::string& host,
                                                       const std::string& master, std::vector<Outcome>& outcomes);
  ~ClientMachine();

  Machine& machine() { return *machine_; }
  // Begins in a turn of the process: later when it is paused, never when it is dead.
  void start(Request request);
  // Operations without an outcome, and those that are not quiet.
  size_t pending() const { return pending_; }
  size_t unquiet() const { return unquiet_; }
  const store::Client& client() const { return *client_; }
  // Asks the master for it, whatever comes of that.
  void drain(const InstanceId& node, bool on) {
    client_->drain(node, on, 0, [](const Result<wire::Drained>&) {});
  }
  const engine::Engine& engine() const { return *engine_; }
  bool buffers_untouched() const { return slots_.untouched(); }

 private:
  ClientMachine(std::unique_ptr<Machine> machine, Slots slots, std::vector<Outcome>& outcomes)
      : machine_(std::move(machine)), slots_(std::move(slots)), outcomes_(outcomes) {}

  void begin(const Request& request);
  void put(const Request& request);
  void get(const Request& request);
  void codes(const Request& request);
  void list(const Request& request);
  void finish(Outcome outcome);
  std::vector<store::Part> parts_of(size_t slot, uint64_t length);

  std::unique_ptr<Machine> machine_;
  Slots slots_;
  std::vector<Outcome>& outcomes_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<store::Client> client_;
  size_t pending_ = 0;
  size_t unquiet_ = 0;
};

}  // namespace moontide::sim
