#include <pybind11/stl.h>

#include <ranges>

#include "python/bindings.h"
#include "python/operation.h"
#include "python/transfer.h"

namespace moontide::python {
namespace {

using engine::LinkRef;

struct LinkHandle {
  std::shared_ptr<Runtime> runtime;
  LinkRef link;

  LinkHandle(std::shared_ptr<Runtime> owner, LinkRef ref) : runtime(std::move(owner)), link(std::move(ref)) {}
  LinkHandle(LinkHandle&&) = default;
  ~LinkHandle() {
    if (!link) return;
    auto held = runtime->look();
    if (held) {
      link.reset();
    } else {
      new LinkRef(std::move(link));  // see TransferHandle
    }
  }
};

// Memory lent to peers of this host; exports the buffer protocol. Freed when the last buffer of it is gone.
struct ArenaHandle {
  std::shared_ptr<memory::Arena> arena;
  uint64_t length;
};

int64_t timeout_or(std::optional<double> seconds, int64_t otherwise) {
  return seconds ? std::max<int64_t>(to_ns(*seconds, "timeout"), 1) : otherwise;
}

engine::LocalReads local_reads(const std::string& name) {
  if (name == "auto") return engine::LocalReads::kAuto;
  if (name == "shm") return engine::LocalReads::kShm;
  if (name == "cma") return engine::LocalReads::kCma;
  if (name == "off") return engine::LocalReads::kOff;
  raise({Code::kInvalid, "local_reads = '" + name + "': allowed are auto, shm, cma, off"});
}

std::shared_ptr<Runtime> make_runtime(const std::string& listen, double progress_timeout, double connect_timeout,
                                      double keepalive, const std::string& local, uint32_t tcp_streams,
                                      uint32_t spin_us, std::vector<std::string> rails, const std::string& advertise,
                                      const Access& access) {
  engine::EngineOptions options;
  options.listen = listen;
  options.advertise = advertise;
  options.progress_timeout_ns = to_ns(progress_timeout, "progress_timeout");
  options.connect_timeout_ns = to_ns(connect_timeout, "connect_timeout");
  options.keepalive_ns = keepalive > 0 ? to_ns(keepalive, "keepalive") : 0;
  options.local_reads = local_reads(local);
  options.tcp_streams = tcp_streams;
  options.rails = std::move(rails);
  py::gil_scoped_release nogil;
  return value_or_raise(Runtime::create(std::move(options), spin_us * kMicrosecond, access));
}

std::pair<uint32_t, uint64_t> add_region(Runtime& runtime, uint64_t address, uint64_t length, uint8_t access,
                                         const std::string& name, const ArenaHandle* arena) {
  py::gil_scoped_release nogil;
  auto held = lock_or_raise(runtime);
  auto region = value_or_raise(runtime.engine().add_region(reinterpret_cast<std::byte*>(address), length, access, name,
                                                           arena ? arena->arena : nullptr));
  return {region->id, region->generation};
}

Operation remove_region(const std::shared_ptr<Runtime>& runtime, uint32_t id) {
  auto pending = std::make_shared<Pending<void>>();
  {
    py::gil_scoped_release nogil;
    auto held = lock_or_raise(*runtime);
    value_or_raise(runtime->engine().remove_region(id, [pending] { pending->set({}); }));
  }
  return make_operation<void>(runtime, pending, [] { return py::none(); });
}

std::vector<std::string> region_users(Runtime& runtime, uint32_t id) {
  py::gil_scoped_release nogil;
  auto held = lock_or_raise(runtime);
  return runtime.engine().registry().users(id);
}

Operation open_link(const std::shared_ptr<Runtime>& runtime, const std::string& address,
                    std::optional<double> timeout) {
  auto pending = std::make_shared<Pending<LinkRef>>();
  {
    py::gil_scoped_release nogil;
    auto held = lock_or_raise(*runtime);
    int64_t timeout_ns = timeout_or(timeout, runtime->engine().options().connect_timeout_ns);
    runtime->engine().open(address, timeout_ns, [pending](Result<LinkRef> link) { pending->set(std::move(link)); });
  }
  return make_operation<LinkRef>(runtime, pending,
                                 [runtime](const LinkRef& link) { return py::cast(LinkHandle(runtime, link)); });
}

py::dict link_regions(const LinkHandle& handle) {
  std::vector<RemoteRegionHandle> regions;
  {
    py::gil_scoped_release nogil;
    auto held = lock_or_raise(*handle.runtime);
    for (const auto& [id, remote] : handle.link->regions()) {
      uint64_t number = handle.runtime->engine().handle(handle.link, id);
      regions.push_back({number, id, remote->generation, remote->length, remote->access, remote->name});
    }
  }
  py::dict out;
  for (auto& region : regions) out[py::str(region.name)] = py::cast(region);
  return out;
}

using RegionPending = Pending<RemoteRegionHandle>;

// Under the lock: ends `pending` with the peer's region of that name, now or when it has announced it.
void await_region(engine::Engine& engine, const LinkRef& link, const std::string& name,
                  const std::shared_ptr<RegionPending>& pending) {
  if (!link->open()) return pending->set(fail(Code::kPeerLost, "the link to the peer is over; open it again"));
  for (const auto& [id, remote] : std::views::reverse(link->regions())) {  // of several the latest, as in regions()
    if (remote->name != name) continue;
    const uint64_t handle = engine.handle(link, id);
    return pending->set(
        RemoteRegionHandle{handle, id, remote->generation, remote->length, remote->access, remote->name});
  }
  link->on_region(pending, [&engine, weak_link = std::weak_ptr(link), name, weak = std::weak_ptr(pending)] {
    auto waiting = weak.lock();
    auto live = weak_link.lock();
    if (waiting && live) await_region(engine, live, name, waiting);
  });
}

Operation region(const LinkHandle& handle, const std::string& name) {
  auto pending = std::make_shared<RegionPending>();
  {
    py::gil_scoped_release nogil;
    auto held = lock_or_raise(*handle.runtime);
    await_region(handle.runtime->engine(), handle.link, name, pending);
  }
  return make_operation<RemoteRegionHandle>(handle.runtime, pending,
                                            [](const RemoteRegionHandle& region) { return py::cast(region); });
}

Operation claim(const LinkHandle& handle, const py::bytes& id, std::optional<double> timeout) {
  auto pending = std::make_shared<Pending<Bytes>>();
  Bytes key = to_bytes(as_bytes(static_cast<std::string_view>(id)));
  {
    py::gil_scoped_release nogil;
    auto held = lock_or_raise(*handle.runtime);
    int64_t timeout_ns = timeout_or(timeout, handle.runtime->engine().options().progress_timeout_ns);
    handle.runtime->engine().claims().claim(handle.link, std::move(key), timeout_ns,
                                            [pending](Result<Bytes> payload) { pending->set(std::move(payload)); });
  }
  return make_operation<Bytes>(handle.runtime, pending, [](const Bytes& payload) {
    return py::bytes(reinterpret_cast<const char*>(payload.data()), payload.size());
  });
}

Operation release(const LinkHandle& handle, const py::bytes& id, std::optional<double> timeout) {
  auto pending = std::make_shared<Pending<void>>();
  Bytes key = to_bytes(as_bytes(static_cast<std::string_view>(id)));
  {
    py::gil_scoped_release nogil;
    auto held = lock_or_raise(*handle.runtime);
    int64_t timeout_ns = timeout_or(timeout, handle.runtime->engine().options().progress_timeout_ns);
    handle.runtime->engine().claims().release(handle.link, std::move(key), timeout_ns,
                                              [pending](Result<> outcome) { pending->set(std::move(outcome)); });
  }
  return make_operation<void>(handle.runtime, pending, [] { return py::none(); });
}

Operation notify(const LinkHandle& handle, const py::bytes& payload, std::optional<double> timeout) {
  auto pending = std::make_shared<Pending<void>>();
  Bytes message = wire::encode(wire::Notify{to_bytes(as_bytes(static_cast<std::string_view>(payload)))});
  {
    py::gil_scoped_release nogil;
    auto held = lock_or_raise(*handle.runtime);
    int64_t timeout_ns = timeout_or(timeout, handle.runtime->engine().options().progress_timeout_ns);
    handle.link->call(wire::kNotify, std::move(message), timeout_ns, [pending](Result<rpc::Reply> reply) {
      pending->set(reply ? Result<>{} : std::unexpected(reply.error()));
    });
  }
  return make_operation<void>(handle.runtime, pending, [] { return py::none(); });
}

std::vector<std::pair<std::string, py::bytes>> notifications(Runtime& runtime) {
  std::vector<engine::Notification> taken;
  {
    py::gil_scoped_release nogil;
    auto held = lock_or_raise(runtime);
    taken = runtime.engine().mailbox().take();
  }
  std::vector<std::pair<std::string, py::bytes>> out;
  for (const auto& note : taken) {
    out.emplace_back(note.from.text(),
                     py::bytes(reinterpret_cast<const char*>(note.payload.data()), note.payload.size()));
  }
  return out;
}

// Done when a notification waits.
Operation arrival(const std::shared_ptr<Runtime>& runtime) {
  auto pending = std::make_shared<Pending<void>>();
  {
    py::gil_scoped_release nogil;
    auto held = lock_or_raise(*runtime);
    runtime->engine().mailbox().on_arrival([pending] { pending->set({}); });
  }
  return make_operation<void>(runtime, pending, [] { return py::none(); });
}

std::vector<std::pair<py::bytes, std::string>> drain_holds(Runtime& runtime) {
  static constexpr const char* kNames[] = {"", "released", "expired", "peer_lost", "ended"};
  std::vector<std::pair<Bytes, engine::HoldEnd>> ended;
  {
    py::gil_scoped_release nogil;
    auto held = lock_or_raise(runtime);
    ended = runtime.engine().holds().drain();
  }
  std::vector<std::pair<py::bytes, std::string>> out;
  for (auto& [id, how] : ended)
    out.emplace_back(py::bytes(reinterpret_cast<const char*>(id.data()), id.size()), kNames[static_cast<int>(how)]);
  return out;
}

py::dict stats(Runtime& runtime) {
  engine::EngineCounters counters;
  rpc::SecurityCounters security;
  uint64_t tls_reloads = 0, tls_reloads_failed = 0;
  size_t links, hostages, holds, leaves;
  {
    auto held = lock_or_raise(runtime);
    counters = runtime.engine().counters();
    security = runtime.security().counters;
    if (const auto& tls = runtime.security().tls) {
      tls_reloads = tls->reloads();
      tls_reloads_failed = tls->reloads_failed();
    }
    links = runtime.engine().links();
    hostages = runtime.engine().hostages();
    holds = runtime.engine().holds().size();
    leaves = runtime.engine().leaves().size();
  }
  py::dict out;
  out["transfers"] = counters.transfers;
  out["transfers_failed"] = counters.transfers_failed;
  out["bytes_read"] = counters.bytes_read;
  out["bytes_written"] = counters.bytes_written;
  out["retries"] = counters.retries;
  out["links"] = links;
  out["links_opened"] = counters.links_opened;
  out["links_lost"] = counters.links_lost;
  out["connections_refused"] = counters.refused;
  out["authenticated"] = security.authenticated;
  out["authentication_refused"] = security.refused;
  out["tls_reloads"] = tls_reloads;
  out["tls_reloads_failed"] = tls_reloads_failed;
  out["pulls_served"] = counters.pulls_served;
  out["paths_failed"] = counters.paths_failed;
  out["control_moves"] = counters.control_moves;
  out["hostages"] = hostages;
  out["holds"] = holds;
  out["leaves"] = leaves;
  for (auto& [path, bytes] : counters.bytes_by_path) out[py::str("bytes_" + path)] = bytes;
  return out;
}

void bind_link(py::module_& m) {
  auto locked = [](auto read) {
    return [read](const LinkHandle& handle) {
      py::gil_scoped_release nogil;
      auto held = lock_or_raise(*handle.runtime);
      return read(*handle.link);
    };
  };
  py::class_<LinkHandle>(m, "Link")
      .def_property_readonly("address", locked([](const engine::Link& link) { return link.peer_address(); }))
      .def_property_readonly("instance_id",
                             locked([](const engine::Link& link) { return link.peer_instance().text(); }))
      .def_property_readonly("same_host",
                             locked([](const engine::Link& link) { return link.same_host() || link.same_instance(); }))
      .def_property_readonly("open", locked([](const engine::Link& link) { return link.open(); }))
      .def_property_readonly("paths", locked([](const engine::Link& link) { return link.paths(); }))
      .def("regions", &link_regions)
      .def("region", &region, py::arg("name"))
      .def("notify", &notify, py::arg("payload"), py::arg("timeout") = py::none())
      .def("claim", &claim, py::arg("hold_id"), py::arg("timeout") = py::none())
      .def("release", &release, py::arg("hold_id"), py::arg("timeout") = py::none())
      .def("close", [](const LinkHandle& handle) {
        py::gil_scoped_release nogil;
        auto held = handle.runtime->lock();
        if (held) handle.link->give_up({Code::kClosed, "closed here"});
      });
}

void bind_arena(py::module_& m) {
  py::class_<ArenaHandle>(m, "Arena", py::buffer_protocol())
      .def(py::init([](uint64_t length, const std::string& name, bool direct_write) {
             auto others = direct_write ? memory::Arena::Others::kReadAndWrite : memory::Arena::Others::kRead;
             return ArenaHandle{value_or_raise(memory::Arena::create(length, name.c_str(), others)), length};
           }),
           py::arg("length"), py::arg("name"), py::arg("direct_write") = false)
      .def_property_readonly("address",
                             [](const ArenaHandle& a) { return reinterpret_cast<uint64_t>(a.arena->data()); })
      .def_property_readonly("length", [](const ArenaHandle& a) { return a.length; })
      .def_buffer([](ArenaHandle& a) {
        return py::buffer_info(reinterpret_cast<uint8_t*>(a.arena->data()), static_cast<py::ssize_t>(a.length));
      });
}

}  // namespace

void bind_engine(py::module_& m) {
  bind_arena(m);
  py::class_<Runtime, std::shared_ptr<Runtime>>(m, "Runtime", "An engine with the thread that drives it.")
      .def(py::init(&make_runtime), py::arg("listen"), py::arg("progress_timeout"), py::arg("connect_timeout"),
           py::arg("keepalive"), py::arg("local_reads"), py::arg("tcp_streams"), py::arg("spin_us"), py::arg("rails"),
           py::arg("advertise"), py::arg("access"))
      .def_property_readonly("refusals", &refusals)
      .def_property_readonly("address",
                             [](Runtime& r) {
                               auto held = lock_or_raise(r);
                               return r.engine().address();
                             })
      .def_property_readonly("instance_id",
                             [](Runtime& r) {
                               auto held = lock_or_raise(r);
                               return r.engine().instance().text();
                             })
      .def("add_region", &add_region, py::arg("address"), py::arg("length"), py::arg("access"), py::arg("name"),
           py::arg("arena") = nullptr)
      .def("remove_region", &remove_region, py::arg("id"))
      .def("region_users", &region_users, py::arg("id"))
      .def("open", &open_link, py::arg("address"), py::arg("timeout") = py::none())
      .def(
          "submit",
          [](const std::shared_ptr<Runtime>& runtime, uint32_t op, const py::object& entries,
             std::optional<double> timeout, bool urgent, const std::optional<py::bytes>& notify, std::string trace) {
            return submit(runtime, pack_records(entries, op), {timeout, urgent, notify, std::move(trace)});
          },
          py::arg("op"), py::arg("entries"), py::arg("timeout") = py::none(), py::arg("urgent") = false,
          py::arg("notify") = py::none(), py::arg("trace") = "")
      .def("notifications", &notifications)
      .def("arrival", &arrival)
      .def(
          "hold",
          [](Runtime& r, const py::bytes& id, const py::bytes& payload, double ttl) {
            Bytes key = to_bytes(as_bytes(static_cast<std::string_view>(id))),
                  value = to_bytes(as_bytes(static_cast<std::string_view>(payload)));
            py::gil_scoped_release nogil;
            auto held = lock_or_raise(r);
            value_or_raise(r.engine().holds().add(std::move(key), std::move(value), to_ns(ttl, "ttl")));
          },
          py::arg("hold_id"), py::arg("payload"), py::arg("ttl"))
      .def(
          "end_hold",
          [](Runtime& r, const py::bytes& id) {
            auto held = lock_or_raise(r);
            value_or_raise(r.engine().holds().end(as_bytes(static_cast<std::string_view>(id))));
          },
          py::arg("hold_id"))
      .def("drain_holds", &drain_holds)
      .def("stats", &stats)
      .def("drive", &drive, py::arg("seconds"))
      .def_property_readonly("closed", &Runtime::closed)
      .def("close", &Runtime::close, py::call_guard<py::gil_scoped_release>());
  bind_link(m);
}

}  // namespace moontide::python
