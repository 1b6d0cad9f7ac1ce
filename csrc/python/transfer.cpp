#include "python/transfer.h"

#include <pybind11/stl.h>

#include "python/operation.h"

namespace moontide::python {
namespace {

// While a peer has more than this to take, who waits sleeps: polling takes from the hardware thread that copies, and
// this much takes longer than waking up.
constexpr uint64_t kAwakeBytes = 1u << 20;

// (address, length) of whatever Python may pass as local memory.
std::pair<uint64_t, uint64_t> local_memory(py::handle local) {
  if (PyLong_Check(local.ptr())) {
    uint64_t address = PyLong_AsUnsignedLongLong(local.ptr());
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return {address, UINT64_MAX - address};
  }
  if (py::hasattr(local, "_range")) {  // Region, Arena
    auto range = py::cast<std::pair<uint64_t, uint64_t>>(local.attr("_range"));
    return range;
  }
  if (py::hasattr(local, "data_ptr")) {  // torch
    auto address = py::cast<uint64_t>(local.attr("data_ptr")());
    return {address, py::cast<uint64_t>(local.attr("nbytes"))};
  }
  Py_buffer view;
  if (PyObject_GetBuffer(local.ptr(), &view, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  std::pair<uint64_t, uint64_t> range{reinterpret_cast<uint64_t>(view.buf), static_cast<uint64_t>(view.len)};
  PyBuffer_Release(&view);
  return range;
}

uint64_t to_number(PyObject* item, const char* what) {
  uint64_t value = PyLong_AsUnsignedLongLong(item);
  if (value != UINT64_MAX || PyErr_Occurred() == nullptr) return value;
  PyErr_Clear();
  raise({Code::kInvalid, std::string(what) + " is not a number from 0 to 2^64 - 1"});
}

constexpr const char* kEntry = "an entry is (local, remote region, offset, length), or Strided";

// Entries of one batch → records. Neighbours mostly name the same memory and the same region: those are asked once.
class Packer {
 public:
  explicit Packer(uint32_t op) { record_.op = op; }

  // The caller keeps `entry`.
  engine::Record pack(py::handle entry) {
    py::object other;  // for what is no tuple
    const bool strided = PyTuple_Check(entry.ptr()) == 0 && py::hasattr(entry, "_strided");
    if (strided) entry = other = entry.attr("_strided");
    if (PyTuple_Check(entry.ptr()) == 0) {
      other = py::reinterpret_steal<py::object>(PySequence_Fast(entry.ptr(), kEntry));
      if (!other) throw py::error_already_set();
      entry = other = py::tuple(other);  // which does not change while it is looked at
    }
    if (PySequence_Fast_GET_SIZE(entry.ptr()) != (strided ? 7 : 4)) raise({Code::kInvalid, kEntry});
    PyObject** items = PySequence_Fast_ITEMS(entry.ptr());
    uint64_t room = aim_local(items[0]);
    if (items[1] != remote_.ptr()) {
      record_.handle = py::cast<const RemoteRegionHandle&>(py::handle(items[1])).handle;
      remote_ = py::reinterpret_borrow<py::object>(items[1]);
    }
    record_.offset = to_number(items[2], "offset");
    record_.length = to_number(items[3], "length");
    record_.count = 1;
    if (strided) take_strides(items);
    auto span = engine::span_bytes(record_, record_.local_stride);
    if (!span || *span > room) raise({Code::kInvalid, too_long(room)});
    return record_;
  }

 private:
  void take_strides(PyObject** items) {
    auto stride = [&](PyObject* item, const char* what) {
      return Py_IsNone(item) != 0 ? record_.length : to_number(item, what);
    };
    record_.count = to_number(items[4], "count");
    record_.local_stride = stride(items[5], "local_stride");
    record_.remote_stride = stride(items[6], "remote_stride");
  }

  std::string too_long(uint64_t room) const {
    std::string text = "length " + std::to_string(record_.length);
    if (record_.count != 1) {
      text += ", " + std::to_string(record_.count) + " times with a local stride of " +
              std::to_string(record_.local_stride) + ",";
    }
    return text + " is more than the local memory of " + std::to_string(room) + " bytes";
  }

  // Sets the record's local address; returns how many bytes there are from it on.
  uint64_t aim_local(PyObject* local) {
    uint64_t offset = 0;
    if (PyTuple_Check(local) && PyTuple_GET_SIZE(local) == 2) {
      offset = to_number(PyTuple_GET_ITEM(local, 1), "the local offset");
      local = PyTuple_GET_ITEM(local, 0);
    }
    if (local != memory_.ptr()) {
      range_ = local_memory(local);
      memory_ = py::reinterpret_borrow<py::object>(local);
    }
    if (offset > range_.second)
      raise({Code::kInvalid, "offset " + std::to_string(offset) + " is outside the local region of " +
                                 std::to_string(range_.second) + " bytes"});
    record_.local = range_.first + offset;
    return range_.second - offset;
  }

  engine::Record record_;
  py::object memory_, remote_;  // kept, so that an address is not another object's meanwhile
  std::pair<uint64_t, uint64_t> range_{0, 0};
};

// What a packed buffer holds: this, or engine::Record where its items are so long.
struct PlainRecord {
  uint32_t op, flags;
  uint64_t local, handle, offset, length;
};
static_assert(sizeof(PlainRecord) == 40);

Records unpack(const Py_buffer& view, uint32_t op) {
  const auto* bytes = static_cast<const std::byte*>(view.buf);
  const auto length = static_cast<size_t>(view.len);
  const bool strided = view.itemsize == sizeof(engine::Record);
  const size_t size = strided ? sizeof(engine::Record) : sizeof(PlainRecord);
  if (length % size != 0) raise({Code::kInvalid, "packed entries are records of 40 bytes, or items of 64"});
  Records records(length / size);
  for (auto& record : records) {
    std::memcpy(static_cast<void*>(&record), bytes, size);
    bytes += size;
    record.op = op;
  }
  return records;
}

}  // namespace

Records pack_records(const py::object& entries, uint32_t op) {
  Records records;
  if (PyObject_CheckBuffer(entries.ptr()) != 0) {
    Py_buffer view;
    if (PyObject_GetBuffer(entries.ptr(), &view, PyBUF_C_CONTIGUOUS) != 0) throw py::error_already_set();
    const auto release = [](Py_buffer* buffer) { PyBuffer_Release(buffer); };
    std::unique_ptr<Py_buffer, decltype(release)> guard(&view, release);
    return unpack(view, op);
  }
  Packer packer(op);
  if (PyList_Check(entries.ptr())) {
    records.reserve(PyList_GET_SIZE(entries.ptr()));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(entries.ptr()); ++i) {  // packing may run code of the caller's
      auto entry = py::reinterpret_borrow<py::object>(PyList_GET_ITEM(entries.ptr(), i));
      records.push_back(packer.pack(entry));
    }
    return records;
  }
  for (py::handle entry : entries) records.push_back(packer.pack(entry));
  return records;
}

SubmitOptions::SubmitOptions(std::optional<double> timeout, bool urgent, const std::optional<py::bytes>& payload,
                             std::string trace)
    : timeout_s(timeout), urgent(urgent), trace(std::move(trace)) {
  if (!payload) return;
  auto bytes = as_bytes(static_cast<std::string_view>(*payload));
  if (bytes.size() > engine::Mailbox::kPayloadMax)
    raise({Code::kTooLarge, "a notification of " + std::to_string(bytes.size()) + " bytes; at most " +
                                std::to_string(engine::Mailbox::kPayloadMax)});
  notify = to_bytes(bytes);
}

namespace {

// `records`: a span of them, or a prepared batch.
template <class Records>
TransferHandle start(const std::shared_ptr<Runtime>& runtime, Records& records, SubmitOptions chosen) {
  struct Ends {
    Completion outcome, quiet;
  };
  auto ends = std::make_shared<Ends>();
  TransferHandle handle;
  handle.runtime = runtime;
  handle.outcome = {ends, &ends->outcome};
  handle.quiet = {ends, &ends->quiet};
  engine::TransferOptions options;
  if (chosen.timeout_s) options.progress_timeout_ns = std::max<int64_t>(to_ns(*chosen.timeout_s, "timeout"), 1);
  options.done = [outcome = handle.outcome] { outcome->finish(); };
  options.quiet = [quiet = handle.quiet] { quiet->finish(); };
  options.trace = std::move(chosen.trace);
  options.caller_copies = true;
  options.urgent = chosen.urgent;
  options.notify = std::move(chosen.notify);
  py::gil_scoped_release nogil;
  auto held = lock_or_raise(*runtime);
  handle.transfer = value_or_raise(runtime->engine().submit(records, std::move(options)));
  if (!handle.transfer->has_work()) return handle;
  bool here = handle.transfer->work_bytes() <= runtime->engine().options().inline_bytes;
  if (!here) runtime->engine().unclaimed().add(handle.transfer);
  held.unlock();
  if (here) handle.succeeded = runtime->run_work(handle.transfer);
  return handle;
}

}  // namespace

TransferHandle submit(const std::shared_ptr<Runtime>& runtime, std::span<const engine::Record> records,
                      SubmitOptions chosen) {
  return start(runtime, records, std::move(chosen));
}

TransferHandle submit(const std::shared_ptr<Runtime>& runtime, engine::PreparedBatch& batch, SubmitOptions chosen) {
  return start(runtime, batch, std::move(chosen));
}

TransferHandle::~TransferHandle() {
  if (!transfer) return;
  auto held = runtime->look();
  if (held) {
    transfer.reset();
  } else {
    new engine::TransferRef(
        std::move(transfer));  // of a forked child's parent: its end would run code of threads that are not here
  }
}

// The outcome, once there is one.
std::optional<Error> TransferHandle::ended() const {
  auto held = value_or_raise(runtime->look());
  if (!outcome->done) return std::nullopt;
  return transfer->error();
}

void TransferHandle::wait(std::optional<double> timeout_s) {
  if (succeeded) return;
  std::optional<Error> error;
  {
    py::gil_scoped_release nogil;
    error = ended();
    if (!error && runtime->lock()) runtime->run_work(transfer);
    if (!error) error = ended();
  }
  if (!error) {
    auto far = [this] { return transfer->peer_bytes_left() > kAwakeBytes; };
    wait_or_raise(*runtime, [this] { return outcome->done; }, timeout_s, far);
    error = ended();
  }
  if (error->code != Code::kOk) raise(*error);
}

void TransferHandle::wait_quiet(std::optional<double> timeout_s) {
  wait_or_raise(*runtime, [this] { return quiet->done; }, timeout_s);
}

py::list TransferHandle::results() {
  std::vector<Code> codes;
  Error error;
  {
    py::gil_scoped_release nogil;
    auto held = value_or_raise(runtime->look());
    codes = transfer->results();
    error = transfer->error();
  }
  py::list out(codes.size());
  for (size_t i = 0; i < codes.size(); ++i) {
    if (codes[i] == Code::kOk) {
      out[i] = py::none();
    } else {
      out[i] = make_exception(codes[i], codes[i] == error.code ? error.message : "");
    }
  }
  return out;
}

void TransferHandle::cancel() {
  py::gil_scoped_release nogil;
  auto held = runtime->lock();
  if (!held) return;
  transfer->cancel();
  runtime->reactor().post([] {});  // other waiters look again
}

namespace {

void bind_prepared(py::module_& m) {
  struct Prepared {
    std::shared_ptr<Runtime> runtime;
    engine::PreparedBatch batch;
  };
  py::class_<Prepared>(m, "Prepared")
      .def(py::init([](std::shared_ptr<Runtime> runtime, const py::object& entries, uint32_t op) {
             return Prepared{std::move(runtime), {pack_records(entries, op)}};
           }),
           py::arg("runtime"), py::arg("entries"), py::arg("op"))
      .def("__len__", [](const Prepared& prepared) { return prepared.batch.records.size(); })
      .def(
          "post",
          [](Prepared& prepared, std::optional<double> timeout_s, bool urgent, const std::optional<py::bytes>& notify,
             std::string trace) {
            return submit(prepared.runtime, prepared.batch, {timeout_s, urgent, notify, std::move(trace)});
          },
          py::arg("timeout") = py::none(), py::arg("urgent") = false, py::arg("notify") = py::none(),
          py::arg("trace") = "");
}

void bind_remote_region(py::module_& m) {
  py::class_<RemoteRegionHandle>(m, "RemoteRegion", "A peer's region: what entries name as their remote side.")
      .def_readonly("handle", &RemoteRegionHandle::handle)
      .def_readonly("id", &RemoteRegionHandle::id)
      .def_readonly("generation", &RemoteRegionHandle::generation)
      .def_readonly("length", &RemoteRegionHandle::length)
      .def_readonly("name", &RemoteRegionHandle::name)
      .def_property_readonly("readable",
                             [](const RemoteRegionHandle& r) { return (r.access & memory::kReadable) != 0; })
      .def_property_readonly("writable",
                             [](const RemoteRegionHandle& r) { return (r.access & memory::kWritable) != 0; });
}

}  // namespace

void bind_transfer(py::module_& m) {
  auto locked = [](auto read) {
    return [read](const TransferHandle& handle) {
      py::gil_scoped_release nogil;
      auto held = value_or_raise(handle.runtime->look());
      return read(*handle.transfer);
    };
  };
  py::class_<TransferHandle>(m, "Transfer")
      .def_property_readonly("done",
                             [](const TransferHandle& h) {
                               py::gil_scoped_release nogil;
                               if (h.runtime->forked()) return true;
                               // Who looks does not wait: the reactor has to run what copies there are.
                               const auto over = [&] {
                                 if (!h.outcome->done) h.transfer->run_in_reactor();
                                 return h.outcome->done;
                               };
                               return h.runtime->poll(over) || h.runtime->closed();
                             })
      .def_property_readonly("quiet",
                             [](const TransferHandle& h) {
                               py::gil_scoped_release nogil;
                               auto held = h.runtime->look();
                               return !held || h.quiet->done;
                             })
      .def_property_readonly("nbytes", locked([](const engine::Transfer& t) { return t.bytes(); }))
      .def_property_readonly("nbytes_moved", locked([](const engine::Transfer& t) { return t.bytes_moved(); }))
      .def_property_readonly("trace", locked([](const engine::Transfer& t) { return t.trace(); }))
      .def_property_readonly("path", locked([](const engine::Transfer& t) { return t.path(); }))
      .def_property_readonly("results", &TransferHandle::results)
      .def("wait", &TransferHandle::wait, py::arg("timeout") = py::none())
      .def("wait_quiet", &TransferHandle::wait_quiet, py::arg("timeout") = py::none())
      .def("cancel", &TransferHandle::cancel)
      .def(
          "watch",
          [](const TransferHandle& h, std::shared_ptr<Notifier> notifier, uint64_t token) {
            py::gil_scoped_release nogil;
            auto held = h.runtime->lock();
            if (!held) return notifier->push(token);
            if (!h.outcome->done) h.transfer->run_in_reactor();
            h.outcome->watch(std::move(notifier), token);
            h.runtime->watch(h.outcome);
          },
          py::arg("notifier"), py::arg("token"));

  m.def(
      "buffer_address",
      [](const py::buffer& buffer) {
        Py_buffer view;
        if (PyObject_GetBuffer(buffer.ptr(), &view, PyBUF_SIMPLE) != 0) throw py::error_already_set();
        auto address = reinterpret_cast<uint64_t>(view.buf);
        PyBuffer_Release(&view);
        return address;
      },
      py::arg("view"), "Where the memory of a contiguous buffer starts.");

  bind_prepared(m);
  bind_remote_region(m);
}

}  // namespace moontide::python
