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

Result<std::shared_ptr<Runtime>> Runtime::create(engine::EngineOptions options, int64_t spin_ns, const Access& access) {
  std::shared_ptr<Runtime> runtime(new Runtime(spin_ns, access));
  auto held = runtime->parts_->driver.lock();
  runtime->parts_->access.security->timeout_ns = options.connect_timeout_ns;
  auto transports = [](memory::Registry& registry, const engine::EngineOptions& chosen) {
    using engine::LocalReads;
    transport::BuiltinChoice choice;
    choice.shm = chosen.local_reads == LocalReads::kAuto || chosen.local_reads == LocalReads::kShm;
    choice.cma = chosen.local_reads == LocalReads::kAuto || chosen.local_reads == LocalReads::kCma;
    choice.tcp_streams = chosen.tcp_streams;
    return transport::builtin(registry, choice);
  };
  TRY(runtime->engine_,
      engine::Engine::create(runtime->reactor(), runtime->parts_->engine_routed, std::move(options), transports));
  return runtime;
}

std::shared_ptr<Runtime> Runtime::create_bare(int64_t spin_ns, const Access& access) {
  return std::shared_ptr<Runtime>(new Runtime(spin_ns, access));
}

Runtime::~Runtime() {
  if (!forked()) {
    close();
  } else {
    (void)engine_.release();
    (void)parts_.release();
  }
}

Result<std::unique_lock<std::mutex>> Runtime::lock() {
  if (forked()) return fail(Code::kClosed, "this process was forked; make a new Engine in the child");
  auto held = parts_->driver.lock();
  if (closing_ || closed_) return fail(Code::kClosed, "the engine was closed");
  return held;
}

Result<std::unique_lock<std::mutex>> Runtime::look() {
  if (forked()) return fail(Code::kClosed, "this process was forked; make a new Engine in the child");
  return parts_->driver.lock();
}

bool Runtime::closed() { return !lock().has_value(); }

std::vector<uint32_t> Runtime::close() {
  if (forked()) return {};
  {
    auto held = parts_->driver.lock();
    closing_ = true;
    // their memory may be freed after this returns
    parts_->copied.wait(held, [this] { return copies_ == 0; });
  }
  auto written = end_leaves();
  parts_->driver.stop();
  auto held = parts_->driver.lock();
  closed_ = true;
  while (!parts_->tenants.empty()) parts_->tenants.pop_back();
  engine_.reset();
  // no turn of the reactor comes any more: whoever awaits something hears of it now
  for (auto& watched : std::exchange(watched_, {})) {
    auto completion = watched.lock();
    if (completion && !completion->done) completion->finish();
  }
  return written;
}

std::vector<uint32_t> Runtime::end_leaves() {
  int64_t deadline_ns;
  {
    auto held = parts_->driver.lock();
    if (!engine_) return {};
    engine_->leaves().give_no_more();  // nobody who connects meanwhile gets one behind this look
    if (engine_->leaves().size() == 0) return {};
    deadline_ns = reactor().now_ns() + engine_->options().progress_timeout_ns;
    engine_->shut();
  }
  parts_->driver.wait([this] { return engine_->leaves().size() == 0; }, deadline_ns);
  auto held = parts_->driver.lock();
  return engine_->leaves().regions();
}

void Runtime::watch(const std::shared_ptr<Completion>& completion) {
  if (watched_.size() >= 64 && watched_.size() == watched_.capacity()) {
    std::erase_if(watched_, [](const auto& watched) { return watched.expired(); });
  }
  watched_.push_back(completion);
}

bool Runtime::wait(const std::function<bool()>& ready, std::optional<double> timeout_s,
                   const std::function<bool()>& far) {
  int64_t deadline = INT64_MAX;
  if (timeout_s && std::isfinite(*timeout_s) && *timeout_s < 1e9) {
    deadline = reactor().now_ns() + static_cast<int64_t>(*timeout_s * 1e9);
  }
  auto interrupted = [] {
    pybind11::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
  };
  return parts_->driver.wait(ready, deadline, interrupted, far);
}

bool Runtime::run_work(const engine::TransferRef& transfer) {
  auto held = parts_->driver.lock();
  if (closing_) return false;
  transfer->claim_work();
  while (!closing_) {
    auto work = transfer->take_work();
    if (!work) break;
    ++copies_;
    held.unlock();
    auto outcome = work->run();
    held.lock();
    transfer->finish_work(*work, std::move(outcome));
    if (--copies_ == 0 && closing_) parts_->copied.notify_all();
  }
  transfer->unclaim_work();
  return transfer->done() && transfer->error().code == Code::kOk;
}

}  // namespace moontide::python
