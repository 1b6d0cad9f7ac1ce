#include "contract/pairs.h"

#include "transport/fault/fault.h"

namespace moontide::contract {
namespace {

transport::TransportList through_fault(transport::TransportList list) {
  for (auto& transport : list) {
    transport =
        std::make_unique<transport::FaultTransport>(std::move(transport), std::make_shared<transport::FaultDice>(1));
  }
  return list;
}

// Engines of one real process on one epoll reactor; `Choice` leaves one transport that can carry the bytes.
class LocalPair final : public Pair {
 public:
  struct Choice {
    std::string name;
    bool one_engine = false;
    engine::LocalReads local_reads = engine::LocalReads::kOff;
    bool through_fault = false;  // the fault transport, with no fault, around each
    bool leaves = false;
  };

  explicit LocalPair(Choice choice)
      : choice_(std::move(choice)), sockets_(reactor_), inproc_(reactor_), network_(inproc_, sockets_) {
    owner_ = make();
    if (!choice_.one_engine) reader_ = make();
  }
  ~LocalPair() override {
    reader_.reset();
    owner_.reset();
    arenas_.clear();
  }

  std::string name() const override { return choice_.name; }
  std::string write_path() const override {
    return choice_.local_reads != engine::LocalReads::kOff && !choice_.leaves ? "pull" : choice_.name;
  }
  engine::Engine& reader() override { return reader_ ? *reader_ : *owner_; }
  engine::Engine& owner() override { return *owner_; }
  bool arenas() const override { return choice_.name == "shm"; }
  bool leaves() const override { return choice_.leaves; }
  bool one_engine() const override { return choice_.one_engine; }
  void kill_owner() override { owner_.reset(); }

  bool run_until(const std::function<bool()>& ready, int64_t within_ns) override {
    const int64_t deadline_ns = reactor_.now_ns() + within_ns;
    io::EpollReactor::Harvest harvest;
    while (!ready()) {
      if (reactor_.now_ns() >= deadline_ns) return false;
      reactor_.wait(reactor_.prepare_wait(deadline_ns), harvest);
      reactor_.dispatch(harvest);
    }
    return true;
  }
  void run_for(int64_t duration_ns) override {
    const int64_t end_ns = reactor_.now_ns() + std::min(duration_ns, 20 * kMillisecond);
    run_until([&] { return reactor_.now_ns() >= end_ns; }, kSecond);
  }

 private:
  std::unique_ptr<engine::Engine> make() {
    engine::EngineOptions options;
    options.local_reads = choice_.local_reads;
    options.progress_timeout_ns = 500 * kMillisecond;
    auto transports = [this](memory::Registry& registry, const engine::EngineOptions& chosen) {
      transport::BuiltinChoice builtin;
      builtin.shm = chosen.local_reads == engine::LocalReads::kShm;
      builtin.cma = chosen.local_reads == engine::LocalReads::kCma;
      auto list = transport::builtin(registry, builtin);
      return choice_.through_fault ? through_fault(std::move(list)) : std::move(list);
    };
    auto engine = engine::Engine::create(reactor_, network_, options, transports);
    REQUIRE_MESSAGE(engine, (engine ? "" : engine.error().text()));
    return std::move(*engine);
  }

  Choice choice_;
  io::EpollReactor reactor_;
  io::SocketNetwork sockets_;
  io::InprocNetwork inproc_;
  io::RoutedNetwork network_;
  std::unique_ptr<engine::Engine> owner_;
  std::unique_ptr<engine::Engine> reader_;
};

// The same on simulated machines, with one-sided reads that land in parts, late and in any order.
class SimPair final : public Pair {
 public:
  explicit SimPair(sim::Paths paths, std::string name) : name_(std::move(name)), universe_(7, paths) {
    universe_.hub.faults().fail_one_in = 0;
    universe_.hub.faults().very_late_most_ns = kSecond;  // within the deadline on progress: nothing fails here
    reader_ = *reader_machine_.make_engine();
    owner_ = *owner_machine_.make_engine();
  }
  ~SimPair() override {
    reader_.reset();
    owner_.reset();
  }
  std::string name() const override { return name_; }
  std::string write_path() const override { return "tcp"; }
  engine::Engine& reader() override { return *reader_; }
  engine::Engine& owner() override { return *owner_; }
  void kill_owner() override { owner_machine_.crash(false); }
  bool run_until(const std::function<bool()>& ready, int64_t within_ns) override {
    return universe_.world.run_until(ready, within_ns * 10);
  }
  void run_for(int64_t duration_ns) override { universe_.world.run_for(duration_ns); }

 private:
  std::string name_;
  sim::Universe universe_;
  sim::Machine reader_machine_{universe_, "reader"};
  sim::Machine owner_machine_{universe_, "owner"};
  std::unique_ptr<engine::Engine> reader_;
  std::unique_ptr<engine::Engine> owner_;
};

MakePair local(LocalPair::Choice choice) {
  return [choice] { return std::make_unique<LocalPair>(choice); };
}

}  // namespace

engine::LinkRef Pair::open() {
  engine::LinkRef link;
  Error why;
  reader().open(owner().address(), 5 * kSecond, [&](Result<engine::LinkRef> opened) {
    if (opened) {
      link = *opened;
    } else {
      why = opened.error();
    }
  });
  REQUIRE_MESSAGE(run_until([&] { return link != nullptr; }), why.text());
  return link;
}

memory::RegionRef Pair::allocate(engine::Engine& engine, uint64_t size, uint8_t access, const std::string& name) {
  const auto others = leaves() ? memory::Arena::Others::kReadAndWrite : memory::Arena::Others::kRead;
  auto arena = arenas() ? memory::Arena::create(size, "contract", others) : memory::Arena::create_private(size);
  if (leaves() && (access & memory::kWritable) != 0) access |= memory::kDirect;
  REQUIRE(arena);
  arenas_.push_back(*arena);
  auto region = engine.add_region((*arena)->data(), size, access, name, *arena);
  REQUIRE_MESSAGE(region, (region ? "" : region.error().text()));
  return *region;
}

uint64_t Pair::handle(const engine::LinkRef& link, const memory::RegionRef& region) {
  REQUIRE(run_until([&] { return link->region(region->id) != nullptr; }));
  return reader().handle(link, region->id);
}

std::vector<std::pair<std::string, MakePair>> all_pairs() {
  using engine::LocalReads;
  return {
      {"self", local({.name = "self", .one_engine = true})},
      {"shm", local({.name = "shm", .local_reads = LocalReads::kShm})},
      {"cma", local({.name = "cma", .local_reads = LocalReads::kCma})},
      {"shm by leave", local({.name = "shm", .local_reads = LocalReads::kShm, .leaves = true})},
      {"cma by leave", local({.name = "cma", .local_reads = LocalReads::kCma, .leaves = true})},
      {"tcp", local({.name = "tcp"})},
      {"sim", [] { return std::make_unique<SimPair>(sim::Paths::kBoth, "sim"); }},
      {"fault self", local({.name = "self", .one_engine = true, .through_fault = true})},
      {"fault shm", local({.name = "shm", .local_reads = LocalReads::kShm, .through_fault = true})},
      {"fault tcp", local({.name = "tcp", .through_fault = true})},
      {"sim tcp", [] { return std::make_unique<SimPair>(sim::Paths::kTcp, "tcp"); }},
  };
}

}  // namespace moontide::contract
