// A process of this host that says what it likes: streams that carry descriptors and name it to the engine, and memory
// of its own that the engine may read and write by its process id. It is a real child, which sleeps: whatever address
// the input names is of its memory and not of the target's.
//
// Thread: the target's only one.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <map>

#include "fuzz/wire_stream.h"
#include "io/leave.h"
#include "memory/generation_table.h"

namespace moontide::fuzz {

// Made once, before the first input.
class LocalProcess {
 public:
  static constexpr size_t kMemory = 8192;  // of the region that the child has, and of each arena
  static constexpr uint32_t kWords = 8;    // region n has the word n and the generation n
  enum Descriptor : uint8_t { kReadArena, kWriteArena, kTable, kUnsealed, kNull, kPipe, kDescriptors };

  LocalProcess() : memory_(kMemory, std::byte{3}) {
    table_ = *memory::GenerationTable::create();
    for (uint64_t word = 0; word < kWords; ++word) require(table_->acquire(word) == word, "words come in order");
    arenas_[0] = *memory::Arena::create(kMemory, "read");
    arenas_[1] = *memory::Arena::create(kMemory, "write", memory::Arena::Others::kReadAndWrite);
    unsealed_ = io::Fd(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    require(ftruncate(unsealed_.get(), kMemory) == 0, "a memfd can grow");
    null_ = io::Fd(open("/dev/null", O_RDWR | O_CLOEXEC));
    int ends[2];
    require(pipe2(ends, O_CLOEXEC) == 0, "there are pipes");
    pipe_[0] = io::Fd(ends[0]), pipe_[1] = io::Fd(ends[1]);
    const pid_t parent = getpid();
    child_ = fork();
    require(child_ >= 0, "a child can be made");
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      while (getppid() == parent) pause();
      _exit(0);
    }
    pidfd_ = io::Fd(static_cast<int>(syscall(SYS_pidfd_open, child_, 0)));
    require(static_cast<bool>(pidfd_), "a child has a pidfd");
  }
  ~LocalProcess() { kill(child_, SIGKILL); }
  LocalProcess(const LocalProcess&) = delete;
  LocalProcess& operator=(const LocalProcess&) = delete;

  // The same addresses as in the child.
  uint64_t memory() const { return reinterpret_cast<uint64_t>(memory_.data()); }
  uint64_t probe() const { return reinterpret_cast<uint64_t>(&probe_); }
  uint64_t probe_value() const { return probe_; }

  // A duplicate, as the kernel hands it over.
  io::Fd descriptor(uint8_t which) const {
    const int known[kDescriptors] = {arenas_[0]->fd(), arenas_[1]->fd(), table_->arena().fd(),
                                     unsealed_.get(),  null_.get(),      pipe_[0].get()};
    return io::Fd(fcntl(known[which % kDescriptors], F_DUPFD_CLOEXEC, 0));
  }
  io::PeerCredentials credentials() const {
    return {child_, geteuid(), io::Fd(fcntl(pidfd_.get(), F_DUPFD_CLOEXEC, 0))};
  }

 private:
  Bytes memory_;
  uint64_t probe_ = 0x6d6f6f6e74696465;
  std::unique_ptr<memory::GenerationTable> table_;
  std::array<std::shared_ptr<memory::Arena>, 2> arenas_;
  io::Fd unsealed_, null_, pipe_[2], pidfd_;
  pid_t child_ = -1;
};

// A local socket, whose other end is the process.
class LocalStream final : public WireStream {
 public:
  LocalStream(std::shared_ptr<Wire> wire, const LocalProcess& process)
      : WireStream(std::move(wire)), process_(process) {}
  Result<> write_with_fds(ByteView bytes, const std::vector<int>&) override {
    write(bytes);
    return {};
  }
  Result<io::PeerCredentials> credentials() const override { return process_.credentials(); }

 private:
  const LocalProcess& process_;
};

// Every address leads to the process, and it reaches every listener. Leaves are given back when the target says so.
// Streams, listeners and leaves may not outlive it.
class LocalNetwork final : public io::Network {
 public:
  LocalNetwork(io::Reactor& reactor, const LocalProcess& process) : reactor_(reactor), process_(process) {}

  Result<std::unique_ptr<io::Listener>> listen(const std::string& address, Accepted accepted) override {
    listeners_[address] = std::move(accepted);
    return std::make_unique<Listening>(*this, address);
  }
  void connect(const std::string&, int64_t, Connected connected) override {
    reactor_.post([this, connected = std::move(connected)]() mutable {
      connected(std::make_unique<LocalStream>(new_wire(), process_));
    });
  }
  Result<io::NewLeave> give_leave(const io::PeerCredentials&, io::Task over) override {
    const uint64_t number = next_leave_++;
    leaves_[number] = std::move(over);
    return io::NewLeave{std::make_unique<Given>(*this, number), io::Fd(eventfd(0, EFD_CLOEXEC))};
  }

  // The process connects.
  void arrive(const std::string& address) {
    auto found = listeners_.find(address);
    if (found != listeners_.end()) found->second(std::make_unique<LocalStream>(new_wire(), process_));
  }
  // The process gives the oldest leave back that it has.
  bool give_back() {
    if (leaves_.empty()) return false;
    auto over = std::move(leaves_.begin()->second);
    leaves_.erase(leaves_.begin());
    over();
    return true;
  }
  // In the order in which they came; those that are over as well.
  std::vector<std::shared_ptr<Wire>>& wires() { return wires_; }

 private:
  struct Listening final : io::Listener {
    Listening(LocalNetwork& network, std::string name) : network_(network), name_(std::move(name)) {}
    ~Listening() override { network_.listeners_.erase(name_); }
    std::string address() const override { return name_; }
    LocalNetwork& network_;
    std::string name_;
  };
  struct Given final : io::GivenLeave {
    Given(LocalNetwork& network, uint64_t number) : network_(network), number_(number) {}
    ~Given() override { network_.leaves_.erase(number_); }
    LocalNetwork& network_;
    uint64_t number_;
  };
  std::shared_ptr<Wire> new_wire() { return wires_.emplace_back(std::make_shared<Wire>()); }

  io::Reactor& reactor_;
  const LocalProcess& process_;
  std::map<std::string, Accepted> listeners_;
  std::map<uint64_t, io::Task> leaves_;
  uint64_t next_leave_ = 1;
  std::vector<std::shared_ptr<Wire>> wires_;
};

}  // namespace moontide::fuzz
