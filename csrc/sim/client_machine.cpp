#include "sim/client_machine.h"

#include "sim/values.h"

namespace moontide::sim {
namespace {

constexpr uint32_t kListPage = 64;

}  // namespace

Result<std::unique_ptr<ClientMachine>> ClientMachine::create(Universe& universe, const std::string& host,
                                                             const std::string& master,
                                                             std::vector<Outcome>& outcomes) {
  TRY(Slots slots, Slots::create());
  auto machine = std::make_unique<Machine>(universe, host);
  std::unique_ptr<ClientMachine> client(new ClientMachine(std::move(machine), std::move(slots), outcomes));
  TRY(client->engine_, client->machine_->make_engine());
  const auto& arena = client->slots_.arena();
  TRY([[maybe_unused]] auto region,
      client->engine_->add_region(arena->data(), arena->size(), memory::kReadable, "buffers", arena));
  store::ClientOptions options;
  options.master = master;
  options.hot_anywhere = true;
  client->client_ = std::make_unique<store::Client>(client->machine_->process(), client->machine_->network(),
                                                    *client->engine_, std::move(options));
  return client;
}

ClientMachine::~ClientMachine() {
  client_.reset();
  engine_.reset();
}

void ClientMachine::start(Request request) {
  ++pending_;
  machine_->process().deliver([this, request = std::move(request)] { begin(request); });
}

void ClientMachine::begin(const Request& request) {
  switch (request.kind) {
    case Kind::kPut:
    case Kind::kPutAsync:
    case Kind::kUpsert:
      return put(request);
    case Kind::kGet:
      return get(request);
    case Kind::kExists:
    case Kind::kRemove:
      return codes(request);
    case Kind::kList:
      return list(request);
  }
}

void ClientMachine::finish(Outcome outcome) {
  --pending_;
  outcome.at_ns = machine_->universe().world.time_ns();
  outcomes_.push_back(std::move(outcome));
}

// One part or two; the second begins anywhere.
std::vector<store::Part> ClientMachine::parts_of(size_t slot, uint64_t length) {
  const auto address = reinterpret_cast<uint64_t>(slots_.bytes(slot).data());
  Random& random = machine_->process().random();
  if (length < 2 || random.below(3) != 0) return {{address, length}};
  const uint64_t first = 1 + random.below(length - 1);
  return {{address, first}, {address + first, length - first}};
}

void ClientMachine::put(const Request& request) {
  store::PutItem item;
  item.key = request.key;
  if (request.kind == Kind::kUpsert) item.replaces = Generation{};
  std::optional<size_t> slot;
  if (request.in_memory) {
    slot = slots_.take();
    if (!slot) return finish({.number = request.number, .code = Code::kOverloaded, .listed = {}});
    fill_value(slots_.bytes(*slot).first(request.length), request.value);
    item.parts = parts_of(*slot, request.length);
  } else {
    item.value.resize(request.length);
    fill_value(item.value, request.value);
  }
  ++unquiet_;
  auto operation = std::make_shared<store::OperationRef>();
  store::OperationOptions options;
  options.on_done = [this, operation, number = request.number] {
    const auto& result = (*operation)->results()[0];
    finish({.number = number,
            .code = result ? Code::kOk : result.error().code,
            .length = result.value_or(0),
            .listed = {}});
  };
  options.on_quiet = [this, operation, slot] {
    --unquiet_;
    if (slot) slots_.give_back(*slot);
    operation->reset();
  };
  std::vector<store::PutItem> items;
  items.push_back(std::move(item));
  const auto commit = request.kind == Kind::kPutAsync ? store::Commit::kAsync : store::Commit::kSync;
  *operation = client_->put(std::move(items), commit, std::move(options),
                            {.replicas = request.replicas, .prefer = {}, .avoid = {}});
}

void ClientMachine::get(const Request& request) {
  const auto slot = slots_.take();
  if (!slot) return finish({.number = request.number, .code = Code::kOverloaded, .listed = {}});
  ++unquiet_;
  auto operation = std::make_shared<store::OperationRef>();
  store::OperationOptions options;
  options.on_done = [this, operation, slot = *slot, number = request.number] {
    const auto& result = (*operation)->results()[0];
    Outcome outcome{.number = number, .code = result ? Code::kOk : result.error().code, .listed = {}};
    if (result) {
      outcome.length = *result;
      outcome.value = *result <= Slots::kSlotBytes ? value_number(slots_.bytes(slot).first(*result)) : 0;
    }
    finish(std::move(outcome));
  };
  options.on_quiet = [this, operation, slot = *slot] {
    --unquiet_;
    slots_.give_back(slot);
    operation->reset();
  };
  std::vector<store::GetItem> items{{request.key, parts_of(*slot, Slots::kSlotBytes)}};
  if (request.length > 0) items[0].range = store::ObjectRange{0, request.length};
  *operation = client_->get(std::move(items), std::move(options));
}

void ClientMachine::codes(const Request& request) {
  auto done = [this, number = request.number](Result<std::vector<Code>> codes) {
    finish({.number = number, .code = codes ? (*codes)[0] : codes.error().code, .listed = {}});
  };
  if (request.kind == Kind::kExists) {
    client_->exists({request.key}, 0, std::move(done));
  } else {
    client_->remove({request.key}, 0, std::move(done));
  }
}

void ClientMachine::list(const Request& request) {
  client_->list(request.key, "", kListPage, 0, [this, number = request.number](Result<wire::ListReply> reply) {
    Outcome outcome{.number = number, .code = reply ? Code::kOk : reply.error().code, .listed = {}};
    if (reply) {
      for (const wire::ListItem& item : reply->items) outcome.listed.push_back(item.key);
    }
    finish(std::move(outcome));
  });
}

}  // namespace moontide::sim
