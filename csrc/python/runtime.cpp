#include "python/runtime.h"

#include <pybind11/pybind11.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmath>

#include "transport/builtin.h"

namespace moontide::python {

Notifier::Notifier() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Notifier::push(uint64_t token) {
  std::scoped_lock lock(mutex_);
  tokens_.push_back(token);
  if (tokens_.size() > 1) return;  // the reader has been told
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(fd_.get(), &one, sizeof one);
}

std::vector<uint64_t> Notifier::drain() {
  std::scoped_lock lock(mutex_);
  uint64_t count;
  [[maybe_unused]] ssize_t got = read(fd_.get(), &count, sizeof count);
  return std::exchange(tokens_, {});
}

Runtime::Runtime(int64_t spin_ns)
    : driver_(spin_ns), sockets_(driver_.reactor()), inproc_(driver_.reactor()), routed_(inproc_, sockets_) {}

Result<std::shared_ptr<Runtime>> Runtime::create(engine::EngineOptions options, int64_t spin_ns) {
  std::shared_ptr<Runtime> runtime(new Runtime(spin_ns));
  auto held = runtime->driver_.lock();
  auto transports = [](memory::Registry& registry, const engine::EngineOptions& chosen) {
    using engine::LocalReads;
    transport::BuiltinChoice choice;
    choice.shm = chosen.local_reads == LocalReads::kAuto || chosen.local_reads == LocalReads::kShm;
    choice.cma = chosen.local_reads == LocalReads::kAuto || chosen.local_reads == LocalReads::kCma;
    choice.tcp_streams = chosen.tcp_streams;
    return transport::builtin(registry, choice);
  };
  TRY(runtime->engine_, engine::Engine::create(runtime->reactor(), runtime->routed_, std::move(options), transports));
  return runtime;
}

std::shared_ptr<Runtime> Runtime::create_bare(int64_t spin_ns) {
  return std::shared_ptr<Runtime>(new Runtime(spin_ns));
}

Runtime::~Runtime() {
  if (driver_.forked()) {
    // all of it belongs to threads that do not exist here: leave it as it is
    for (auto& tenant : tenants_) new std::shared_ptr<void>(std::move(tenant));
    engine_.release();
    return;
  }
  close();
}

Result<std::unique_lock<std::mutex>> Runtime::lock() {
  if (driver_.forked()) return fail(Code::kClosed, "this process was forked; make a new Engine in the child");
  auto held = driver_.lock();
  if (closed_) return fail(Code::kClosed, "the engine was closed");
  return held;
}

bool Runtime::closed() {
  if (driver_.forked()) return true;
  auto held = driver_.lock();
  return closed_;
}

void Runtime::close() {
  if (driver_.forked()) return;
  driver_.stop();
  auto held = driver_.lock();
  closed_ = true;
  while (!tenants_.empty()) tenants_.pop_back();
  engine_.reset();
}

bool Runtime::wait(const std::function<bool()>& ready, std::optional<double> timeout_s) {
  int64_t deadline = INT64_MAX;
  if (timeout_s && std::isfinite(*timeout_s) && *timeout_s < 1e9) {
    deadline = reactor().now_ns() + static_cast<int64_t>(*timeout_s * 1e9);
  }
  auto interrupted = [] {
    pybind11::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
  };
  return driver_.wait(ready, deadline, interrupted);
}

void Runtime::run_work(const engine::TransferRef& transfer) {
  for (;;) {
    auto held = driver_.lock();
    auto work = transfer->take_work();
    if (!work) return;
    held.unlock();
    auto outcome = work->run();
    held.lock();
    transfer->finish_work(*work, std::move(outcome));
  }
}

}  // namespace moontide::python
