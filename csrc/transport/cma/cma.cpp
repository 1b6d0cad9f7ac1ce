#include "transport/cma/cma.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/uio.h>

#include <cerrno>

#include "wire/codec.h"

namespace moontide::transport {
namespace {

// The calls pin pages in batches; larger ones gain nothing and cannot be interrupted in between.
constexpr size_t kCallBytes = 1u << 20;
constexpr size_t kCallPieces = 256;

struct Hello {
  uint64_t probe_address = 0;
  uint64_t probe_value = 0;
  auto fields() { return std::tie(probe_address, probe_value); }
};

class CmaEndpoint final : public Endpoint {
 public:
  CmaEndpoint(LinkContext& link, const uint64_t* probe_word)
      : link_(link), generations_(link.generations()), probe_word_(probe_word) {}

  std::string_view name() const override { return "cma"; }
  bool synchronous() const override { return true; }

  void start(std::move_only_function<void(Result<>)> ready) override {
    const io::PeerCredentials* peer = link_.credentials();
    if (peer == nullptr || peer->pid <= 0 || !peer->pidfd || !generations_) {
      ready(fail(Code::kUnsupported, "the kernel does not say which process the peer is"));
      return;
    }
    pid_ = peer->pid;
    pidfd_ = io::Fd(fcntl(peer->pidfd.get(), F_DUPFD_CLOEXEC, 0));  // copies may outlive the link
    ready_ = std::move(ready);
    link_.send(name(), wire::encode(Hello{reinterpret_cast<uint64_t>(probe_word_), *probe_word_}), {});
  }

  void message(Bytes payload, std::vector<io::Fd>) override {
    auto hello = wire::decode<Hello>(payload);
    if (!hello || !ready_) return;
    uint64_t value = 0;
    iovec local{&value, sizeof value}, remote{reinterpret_cast<void*>(hello->probe_address), sizeof value};
    ssize_t got = process_vm_readv(pid_, &local, 1, &remote, 1, 0);
    Result<> outcome;
    if (got != sizeof value) {
      outcome = fail(Code::kUnsupported, std::string("process_vm_readv is refused: ") + std::strerror(errno));
    } else if (value != hello->probe_value) {
      outcome = fail(Code::kUnsupported, "the peer's pid names another process here");
    }
    usable_ = outcome.has_value();
    peer_ = *hello;
    std::exchange(ready_, {})(std::move(outcome));
  }

  bool reaches(const RemoteRegion& remote, Op op) const override {
    return usable_ && (op == Op::kRead || remote.leave) && remote.key(name()) != nullptr;
  }

  Result<> copy(const RemoteRegion& remote, Op op, std::span<const Piece> pieces) override {
    uint64_t base;
    std::memcpy(&base, remote.key(name())->data(), sizeof base);
    if (op == Op::kRead) {
      TRY_VOID(read(base, pieces));
    } else {
      TRY_VOID(write(base, pieces));
    }
    if (!generations_->is_current(remote.word, remote.generation)) {
      return fail(Code::kStale, "region " + std::to_string(remote.id) + " was unregistered meanwhile");
    }
    return {};
  }

  void close(const Error& cause) override {
    usable_ = false;
    if (ready_) std::exchange(ready_, {})(std::unexpected(cause));
  }

 private:
  Result<> check_alive() const {
    pollfd watch{pidfd_.get(), POLLIN, 0};
    if (poll(&watch, 1, 0) != 0) return fail(Code::kPeerLost, "the peer process has ended");
    return {};
  }

  // The peer's own random word, read last, says that the pid was the peer's all the while.
  Result<> read(uint64_t base, std::span<const Piece> pieces) {
    uint64_t word = 0;
    TRY_VOID(copy_all(process_vm_readv, base, pieces, &word));
    if (word != peer_.probe_value) return fail(Code::kPeerLost, "the peer's pid names another process now");
    return {};
  }

  // A dead peer's pid may be another process by now, which must not be written to; alive afterwards, it was the peer's
  // all the while.
  Result<> write(uint64_t base, std::span<const Piece> pieces) {
    TRY_VOID(check_alive());
    TRY_VOID(copy_all(process_vm_writev, base, pieces, nullptr));
    return check_alive();
  }

  using Call = decltype(&process_vm_readv);

  // `word`: where the peer's word goes, behind the last byte; null: nowhere.
  Result<> copy_all(Call call, uint64_t base, std::span<const Piece> pieces, uint64_t* word) {
    iovec local[kCallPieces + 1], remote[kCallPieces + 1];
    size_t piece = 0;
    uint64_t done = 0;  // of the current piece
    while (piece < pieces.size()) {
      size_t count = 0, bytes = 0;
      while (piece < pieces.size() && count < kCallPieces && bytes < kCallBytes) {
        const Piece& at = pieces[piece];
        size_t n = std::min<uint64_t>(at.length - done, kCallBytes - bytes);
        local[count] = {at.local + done, n};
        remote[count] = {reinterpret_cast<void*>(base + at.offset + done), n};
        ++count, bytes += n, done += n;
        if (done == at.length) ++piece, done = 0;
      }
      if (word != nullptr && piece == pieces.size()) {
        local[count] = {word, sizeof *word};
        remote[count] = {reinterpret_cast<void*>(peer_.probe_address), sizeof *word};
        ++count, bytes += sizeof *word;
      }
      TRY_VOID(copy_call(call, local, remote, count, bytes));
    }
    return {};
  }

  Result<> copy_call(Call call, iovec* local, iovec* remote, size_t count, size_t bytes) {
    ssize_t got = call(pid_, local, count, remote, count, 0);
    if (got == static_cast<ssize_t>(bytes)) return {};
    const int cause = errno;
    TRY_VOID(check_alive());
    if (got >= 0)
      return fail(Code::kStale,
                  "the peer's memory ended after " + std::to_string(got) + " of " + std::to_string(bytes) + " bytes");
    if (cause == ESRCH) return fail(Code::kPeerLost, "the peer process has ended");
    if (cause == EFAULT) return fail(Code::kStale, "the memory, here or at the peer, is not mapped any more");
    return fail(Code::kUnsupported, std::string("process_vm_readv or writev: ") + std::strerror(cause));
  }

  LinkContext& link_;
  std::shared_ptr<memory::GenerationView> generations_;
  const uint64_t* probe_word_;
  int pid_ = -1;
  io::Fd pidfd_;
  Hello peer_;
  bool usable_ = false;
  std::move_only_function<void(Result<>)> ready_;
};

}  // namespace

CmaTransport::CmaTransport() : probe_word_(std::make_unique<uint64_t>(SystemRandom().next())) {}

Result<std::optional<Bytes>> CmaTransport::attach(const memory::Region& region, uint64_t, uint64_t) {
  if ((region.access & memory::kReadable) == 0) return std::nullopt;
  auto address = reinterpret_cast<uint64_t>(region.address);
  return to_bytes(std::as_bytes(std::span(&address, 1)));
}

Result<std::shared_ptr<Endpoint>> CmaTransport::connect(LinkContext& link, uint32_t) {
  if (!link.same_host())
    return fail(Code::kUnsupported, "the peer is not on this host or in another network namespace");
  return std::make_shared<CmaEndpoint>(link, probe_word_.get());
}

}  // namespace moontide::transport
