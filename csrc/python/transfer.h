#pragma once

#include <vector>

#include "python/bindings.h"

namespace moontide::python {

// What Python holds of a transfer.
struct TransferHandle {
  std::shared_ptr<Runtime> runtime;
  engine::TransferRef transfer;
  std::shared_ptr<Completion> outcome;
  std::shared_ptr<Completion> quiet;
  bool succeeded = false;  // seen when it was submitted: nothing is left to look at under the lock

  TransferHandle() = default;
  TransferHandle(TransferHandle&&) = default;
  ~TransferHandle();

  void wait(std::optional<double> timeout_s);
  void wait_quiet(std::optional<double> timeout_s);
  py::list results();
  void cancel();

 private:
  std::optional<Error> ended() const;
};

using Records = std::vector<engine::Record>;

// From an iterable of (local, remote region, offset, length) and Strided, or from a buffer of packed records.
Records pack_records(const py::object& entries, uint32_t op);

// How a batch is to be carried, as Python says it.
struct SubmitOptions {
  std::optional<double> timeout_s;
  bool urgent = false;
  std::optional<Bytes> notify;
  std::string trace;  // see engine::TransferOptions

  SubmitOptions(std::optional<double> timeout, bool urgent, const std::optional<py::bytes>& notify, std::string trace);
};

TransferHandle submit(const std::shared_ptr<Runtime>& runtime, std::span<const engine::Record> records,
                      SubmitOptions chosen);
TransferHandle submit(const std::shared_ptr<Runtime>& runtime, engine::PreparedBatch& batch, SubmitOptions chosen);

// A peer's region, as it is named in entries.
struct RemoteRegionHandle {
  uint64_t handle = 0;
  uint32_t id = 0;
  uint64_t generation = 0;
  uint64_t length = 0;
  uint8_t access = 0;
  std::string name;
};

}  // namespace moontide::python
