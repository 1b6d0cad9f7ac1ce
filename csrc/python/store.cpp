// The pool in Python: a client (with a node and a master of its own where asked), and the two servers.
#include <pybind11/stl.h>

#include <charconv>
#include <ctime>

#include "python/bindings.h"
#include "python/operation.h"
#include "store/embedded.h"

namespace moontide::python {
namespace {

using Range = std::pair<uint64_t, uint64_t>;  // address, bytes
using Lengths = std::vector<Result<uint64_t>>;
using Places = std::vector<Result<store::Location>>;

store::MasterOptions master_options(const std::string& listen, double lease_s, const std::string& eviction) {
  store::MasterOptions options;
  options.listen = listen;
  options.eviction = eviction;
  options.catalog.lease_ns = to_ns(lease_s, "lease");
  // Within a process nobody was before this master.
  options.earlier_lease_ns = io::InprocNetwork::names(listen) ? 0 : options.catalog.lease_ns;
  // Whoever starts a master elects it, and has the wall clock: a master that remembers nothing begins above all earlier
  // ones even before a node has told it of them. (A clock that went back: nodes raise the term, by kTermStepMax at
  // most; beyond that they are refused by name until the clock is right or they are restarted.)
  options.elector_term = static_cast<uint32_t>(std::time(nullptr));
  return options;
}

std::unique_ptr<store::Node> make_node(Runtime& runtime, const std::string& master, uint64_t lend) {
  store::NodeOptions options;
  options.master = master;
  auto arena = value_or_raise(memory::Arena::create(lend, "moontide-pool"));
  return value_or_raise(
      store::Node::create(runtime.reactor(), runtime.master_network(), runtime.engine(), std::move(arena), options));
}

// A handle of Python's on something that lives on the reactor: closed under the lock, at the latest with the runtime.
template <class T>
class Tenant {
 public:
  Tenant(std::shared_ptr<Runtime> runtime, std::shared_ptr<T> value)
      : runtime_(std::move(runtime)), value_(std::move(value)) {}
  Tenant(Tenant&&) noexcept = default;
  ~Tenant() { close(); }

  // Runs `use` with the value under the lock and without the GIL.
  template <class Use>
  auto with(Use use) const {
    py::gil_scoped_release nogil;
    auto held = lock_or_raise(*runtime_);
    auto value = value_.lock();
    if (!value) raise({Code::kClosed, "it was closed"});
    return use(*value);
  }
  void close() {
    if (!runtime_ || runtime_->forked()) return;
    py::gil_scoped_release nogil;
    auto held = runtime_->lock();
    if (!held) return;
    if (auto value = value_.lock()) runtime_->detach(value);
  }
  const std::shared_ptr<Runtime>& runtime() const { return runtime_; }

 private:
  std::shared_ptr<Runtime> runtime_;
  std::weak_ptr<T> value_;
};

template <class T>
Tenant<T> settle_in(const std::shared_ptr<Runtime>& runtime, std::shared_ptr<T> value) {
  runtime->attach(value);
  return Tenant<T>(runtime, std::move(value));
}

using ClientHandle = Tenant<store::Member>;

ClientHandle make_client(const std::shared_ptr<Runtime>& runtime, const std::string& master, uint64_t lend,
                         double lease_s, const std::string& eviction) {
  py::gil_scoped_release nogil;
  auto held = lock_or_raise(*runtime);
  store::MemberOptions options;
  options.master = master;
  options.lend_bytes = lend;
  options.master_options.catalog.lease_ns = to_ns(lease_s, "lease");
  options.master_options.eviction = eviction;
  std::shared_ptr<store::Member> member = value_or_raise(
      store::Member::create(runtime->reactor(), runtime->master_network(), runtime->engine(), std::move(options)));
  return settle_in(runtime, std::move(member));
}

// --- values ---

py::list lengths_list(const Lengths& results) {
  py::list out(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    out[i] = results[i] ? py::object(py::int_(*results[i]))
                        : make_exception(results[i].error().code, results[i].error().message);
  }
  return out;
}

// (length, [(node, address of its engine), …]) per key that was found
py::list places_list(const Places& results) {
  py::list out(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i]) {
      out[i] = make_exception(results[i].error().code, results[i].error().message);
      continue;
    }
    py::list places;
    places.append(py::make_tuple(results[i]->node.text(), results[i]->address));
    for (const store::OtherPlace& place : results[i]->further)
      places.append(py::make_tuple(place.node.text(), place.address));
    out[i] = py::make_tuple(results[i]->length, places);
  }
  return out;
}

py::list codes_list(const std::vector<Code>& codes) {
  py::list out(codes.size());
  for (size_t i = 0; i < codes.size(); ++i)
    out[i] = codes[i] == Code::kOk ? py::object(py::none()) : make_exception(codes[i], "");
  return out;
}

std::vector<store::Part> to_parts(const std::vector<Range>& ranges) {
  std::vector<store::Part> parts;
  for (auto [address, length] : ranges) parts.push_back({address, length});
  return parts;
}

int64_t timeout_ns(std::optional<double> seconds) {
  return seconds ? std::max<int64_t>(to_ns(*seconds, "timeout"), 1) : 0;
}

// A batch of puts or gets: the outcome as an Operation, quiet beside it.
struct BatchHandle {
  Operation outcome;
  std::shared_ptr<Completion> quiet;
  std::weak_ptr<store::Operation> native;

  bool is_quiet() const {
    py::gil_scoped_release nogil;
    auto held = outcome.runtime->lock();
    return !held || quiet->done;
  }
  void cancel() const {
    py::gil_scoped_release nogil;
    auto held = outcome.runtime->lock();
    if (!held) return;
    if (auto live = native.lock()) live->cancel();
    outcome.runtime->reactor().post([] {});  // other waiters look again
  }
  Operation quieted() const {
    return {outcome.runtime, quiet, [] { return py::none(); }};
  }
};

// Addresses that a user passes as numbers are read and written only where they are registered.
void check_registered(Runtime& runtime, const std::vector<std::vector<Range>>& parts) {
  py::gil_scoped_release nogil;
  auto held = lock_or_raise(runtime);
  for (const auto& item : parts) {
    for (auto [address, length] : item) value_or_raise(runtime.engine().registry().find_local(address, length));
  }
}

template <class Start>
BatchHandle start_batch(const ClientHandle& client, std::optional<double> timeout_s, std::string trace, Start start) {
  if (!engine::is_trace(trace)) raise({Code::kInvalid, "a trace id is at most 64 printable characters"});
  auto pending = std::make_shared<Pending<Lengths>>();
  auto quiet = std::make_shared<Completion>();
  auto native = std::make_shared<store::OperationRef>();  // kept for its results, until quiet
  BatchHandle handle{make_operation<Lengths>(client.runtime(), pending, lengths_list), quiet, {}};
  client.with([&](store::Member& member) {
    store::OperationOptions options;
    options.timeout_ns = timeout_ns(timeout_s);
    options.trace = std::move(trace);
    options.on_done = [pending, native] { pending->set((*native)->results()); };
    options.on_quiet = [quiet, native] {
      native->reset();
      quiet->finish();
    };
    *native = start(member, std::move(options));
    handle.native = *native;
  });
  return handle;
}

// (what pins it: an index of `pin_names`, seconds to live: 0 for no end); checked by Python
using Retained = std::pair<uint8_t, double>;

catalog::Retention to_retention(const Retained& given) {
  catalog::Retention retention{static_cast<catalog::Pin>(given.first),
                               given.second == 0 ? 0 : std::max<int64_t>(to_ns(given.second, "ttl"), 1)};
  if (!catalog::retention_valid(retention)) raise({Code::kInvalid, "a pin of no kind, or a ttl of over 100 years"});
  return retention;
}

// (replicas, nodes to prefer, nodes to avoid); checked by Python
using Placed = std::tuple<size_t, std::vector<std::string>, std::vector<std::string>>;

InstanceId node_id(const std::string& text) {
  InstanceId id;
  const char* const end = text.data() + text.size();
  const bool whole = text.size() == 32 && std::from_chars(text.data(), text.data() + 16, id.high, 16).ptr == end - 16 &&
                     std::from_chars(text.data() + 16, end, id.low, 16).ptr == end;
  if (!whole) raise({Code::kInvalid, "the id of a node is 32 hexadecimal digits"});
  return id;
}

catalog::Placement to_placement(const Placed& given, store::Node* own) {
  catalog::Placement placement{std::get<0>(given), {}, {}};
  for (const std::string& text : std::get<1>(given)) {
    if (text != "own") {
      placement.prefer.push_back(node_id(text));
    } else if (own != nullptr) {
      placement.prefer.push_back(own->id());
    }
  }
  for (const std::string& text : std::get<2>(given)) placement.avoid.push_back(node_id(text));
  if (!catalog::placement_valid(placement)) raise({Code::kInvalid, "too many replicas, or too many nodes named"});
  return placement;
}

BatchHandle put(const ClientHandle& client, const std::vector<std::string>& keys,
                const std::vector<std::vector<Range>>& parts, bool async, bool registered,
                std::optional<double> timeout, std::string trace, bool prefix, const Retained& retained,
                const Placed& placed) {
  if (keys.size() != parts.size())
    raise({Code::kInvalid, std::to_string(keys.size()) + " keys, " + std::to_string(parts.size()) + " lists of parts"});
  if (registered) check_registered(*client.runtime(), parts);
  std::vector<store::PutItem> items;
  const catalog::Retention retention = to_retention(retained);
  for (size_t i = 0; i < keys.size(); ++i)
    items.push_back({keys[i], to_parts(parts[i]), {}, retention, prefix && i > 0});
  const auto commit = async ? store::Commit::kAsync : store::Commit::kSync;
  return start_batch(client, timeout, std::move(trace), [&](store::Member& member, store::OperationOptions options) {
    return member.client().put(std::move(items), commit, std::move(options), to_placement(placed, member.node()));
  });
}

BatchHandle get(const ClientHandle& client, const std::vector<std::string>& keys,
                const std::vector<std::vector<Range>>& parts, bool registered, std::optional<double> timeout,
                std::string trace) {
  if (keys.size() != parts.size())
    raise({Code::kInvalid, std::to_string(keys.size()) + " keys, " + std::to_string(parts.size()) + " lists of parts"});
  if (registered) check_registered(*client.runtime(), parts);
  std::vector<store::GetItem> items;
  for (size_t i = 0; i < keys.size(); ++i) items.push_back({keys[i], to_parts(parts[i])});
  return start_batch(client, timeout, std::move(trace), [&](store::Member& member, store::OperationOptions options) {
    return member.client().get(std::move(items), std::move(options));
  });
}

// An answer of the master: `start(client, set)` asks, `convert` makes the Python value.
template <class T, class Start, class Convert>
Operation ask(const ClientHandle& client, Start start, Convert convert) {
  auto pending = std::make_shared<Pending<T>>();
  client.with([&](store::Member& member) {
    start(member.client(), [pending](Result<T> value) { pending->set(std::move(value)); });
  });
  return make_operation<T>(client.runtime(), pending, convert);
}

// One code per key.
template <void (store::Client::*kAsk)(std::vector<std::string> keys, int64_t timeout_ns, store::Client::CodesDone done)>
Operation ask_about(const ClientHandle& client, std::vector<std::string> keys, std::optional<double> timeout) {
  return ask<std::vector<Code>>(
      client,
      [&](store::Client& native, auto set) { (native.*kAsk)(std::move(keys), timeout_ns(timeout), std::move(set)); },
      codes_list);
}

Operation places(const ClientHandle& client, const std::vector<std::string>& keys, std::optional<double> timeout) {
  return ask<Places>(
      client, [&](store::Client& native, auto set) { native.places(keys, timeout_ns(timeout), std::move(set)); },
      places_list);
}

py::dict counts_dict(const wire::PoolStatsReply& reply) {
  py::dict out;
  for (const auto& item : reply.counts) out[py::str(item.name)] = item.value;
  return out;
}

py::dict counters(const ClientHandle& client) {
  store::ClientCounters c;
  size_t pending = 0;
  uint64_t lost = 0;
  client.with([&](store::Member& member) {
    c = member.client().counters();
    pending = member.client().commits().pending();
    lost = member.client().commits().lost();
  });
  py::dict out;
  out["puts"] = c.puts;
  out["put_bytes"] = c.put_bytes;
  out["puts_failed"] = c.puts_failed;
  out["puts_inline"] = c.puts_inline;
  out["gets"] = c.gets;
  out["get_bytes"] = c.get_bytes;
  out["gets_missed"] = c.gets_missed;
  out["located_from_cache"] = c.located_from_cache;
  out["proofs_failed"] = c.proofs_failed;
  out["commits_pending"] = pending;
  out["commits_lost"] = lost;
  return out;
}

py::dict node_stats(const Tenant<store::Node>& handle) {
  store::StorageCounters c;
  uint64_t capacity = 0, allocated = 0, largest_free = 0;
  size_t entries = 0, jobs = 0;
  handle.with([&](store::Node& node) {
    const store::Storage& storage = node.storage();
    c = storage.counters();
    capacity = storage.segment().extents().size();
    allocated = storage.segment().extents().used();
    largest_free = storage.segment().extents().largest_free();
    entries = storage.segment().inventory().size();
    jobs = storage.jobs();
  });
  py::dict out;
  out["capacity_bytes"] = capacity;
  out["allocated_bytes"] = allocated;
  out["largest_free_bytes"] = largest_free;
  out["entries"] = entries;
  out["pulls_under_way"] = jobs;
  out["pulls"] = c.pulls;
  out["pulled_bytes"] = c.pulled_bytes;
  out["pulls_refused"] = c.refused;
  out["pulls_failed"] = c.failed;
  out["retired"] = c.retired;
  out["repairs"] = c.repairs;
  out["repairs_failed"] = c.repairs_failed;
  return out;
}

void bind_batch(py::module_& m) {
  py::class_<BatchHandle>(m, "Batch", "Puts or gets under way: one result per key.")
      .def_property_readonly("done", [](const BatchHandle& b) { return b.outcome.done(); })
      .def_property_readonly("quiet", &BatchHandle::is_quiet)
      .def(
          "wait", [](const BatchHandle& b, std::optional<double> timeout) { return b.outcome.wait(timeout); },
          py::arg("timeout") = py::none())
      .def(
          "watch",
          [](const BatchHandle& b, std::shared_ptr<Notifier> n, uint64_t token) {
            b.outcome.watch(std::move(n), token);
          },
          py::arg("notifier"), py::arg("token"))
      .def("quieted", &BatchHandle::quieted)
      .def("cancel", &BatchHandle::cancel);
}

void bind_client(py::module_& m) {
  using Keys = std::vector<std::string>;
  py::class_<ClientHandle>(m, "StoreClient")
      .def(py::init(&make_client), py::arg("runtime"), py::arg("master"), py::arg("lend"), py::arg("lease"),
           py::arg("eviction"))
      .def("put", &put, py::arg("keys"), py::arg("parts"), py::arg("commit_async"), py::arg("registered") = false,
           py::arg("timeout") = py::none(), py::arg("trace") = "", py::arg("prefix") = false,
           py::arg("retained") = Retained{}, py::arg("placement") = Placed{1, {}, {}})
      .def("get", &get, py::arg("keys"), py::arg("parts"), py::arg("registered") = false,
           py::arg("timeout") = py::none(), py::arg("trace") = "")
      .def(
          "stat",
          [](const ClientHandle& h, Keys keys, std::optional<double> timeout) {
            return ask<Lengths>(
                h, [&](store::Client& c, auto set) { c.lengths(std::move(keys), timeout_ns(timeout), std::move(set)); },
                lengths_list);
          },
          py::arg("keys"), py::arg("timeout") = py::none())
      .def("places", &places, py::arg("keys"), py::arg("timeout") = py::none())
      .def("exists", &ask_about<&store::Client::exists>, py::arg("keys"), py::arg("timeout") = py::none())
      .def("remove", &ask_about<&store::Client::remove>, py::arg("keys"), py::arg("timeout") = py::none())
      .def(
          "keep",
          [](const ClientHandle& h, Keys keys, const Retained& retained, std::optional<double> timeout) {
            return ask<std::vector<Code>>(
                h,
                [&](store::Client& c, auto set) {
                  c.keep(std::move(keys), to_retention(retained), timeout_ns(timeout), std::move(set));
                },
                codes_list);
          },
          py::arg("keys"), py::arg("retained"), py::arg("timeout") = py::none())
      .def(
          "list",
          [](const ClientHandle& h, const std::string& prefix, const std::string& after, uint32_t limit) {
            return ask<wire::ListReply>(
                h, [&](store::Client& c, auto set) { c.list(prefix, after, limit, 0, std::move(set)); },
                [](const wire::ListReply& reply) {
                  py::list out;
                  for (const auto& item : reply.items) out.append(py::make_tuple(py::bytes(item.key), item.length));
                  return py::make_tuple(out, py::bytes(reply.resume_after));
                });
          },
          py::arg("prefix"), py::arg("start_after"), py::arg("limit"))
      .def("pool_stats",
           [](const ClientHandle& h) {
             return ask<wire::PoolStatsReply>(
                 h, [](store::Client& c, auto set) { c.pool_stats(0, std::move(set)); }, counts_dict);
           })
      .def(
          "committed",
          [](const ClientHandle& h) {
            auto pending = std::make_shared<Pending<void>>();
            h.with([&](store::Member& member) { member.client().when_committed([pending] { pending->set({}); }); });
            return make_operation<void>(h.runtime(), pending, [] { return py::none(); });
          },
          "Done once no asynchronous commit is pending.")
      .def("counters", &counters)
      .def_property_readonly(
          "connected",
          [](const ClientHandle& h) { return h.with([](store::Member& m) { return m.client().connected(); }); })
      .def("close", &ClientHandle::close);
}

}  // namespace

void bind_store(py::module_& m) {
  bind_batch(m);
  bind_client(m);
  using MasterHandle = Tenant<store::Master>;
  py::class_<MasterHandle>(m, "Master")
      .def(py::init([](const std::string& listen, double lease, const std::string& eviction, const Access& access) {
             py::gil_scoped_release nogil;
             auto runtime = Runtime::create_bare(0, access);
             auto held = lock_or_raise(*runtime);
             std::shared_ptr<store::Master> master = value_or_raise(store::Master::create(
                 runtime->reactor(), runtime->master_network(), master_options(listen, lease, eviction)));
             return settle_in(runtime, std::move(master));
           }),
           py::arg("listen"), py::arg("lease"), py::arg("eviction"), py::arg("access"))
      .def_property_readonly("refusals", [](const MasterHandle& h) { return refusals(*h.runtime()); })
      .def_property_readonly("address",
                             [](const MasterHandle& h) { return h.with([](store::Master& m) { return m.address(); }); })
      .def_property_readonly("term",
                             [](const MasterHandle& h) { return h.with([](store::Master& m) { return m.term(); }); })
      .def("stats",
           [](const MasterHandle& h) { return counts_dict(h.with([](store::Master& m) { return m.stats(); })); })
      .def("close", [](MasterHandle& h) {
        h.close();
        py::gil_scoped_release nogil;
        h.runtime()->close();
      });
  using NodeHandle = Tenant<store::Node>;
  py::class_<NodeHandle>(m, "Node")
      .def(py::init([](const std::shared_ptr<Runtime>& runtime, const std::string& master, uint64_t lend) {
             py::gil_scoped_release nogil;
             auto held = lock_or_raise(*runtime);
             return settle_in(runtime, std::shared_ptr<store::Node>(make_node(*runtime, master, lend)));
           }),
           py::arg("runtime"), py::arg("master"), py::arg("lend"))
      .def_property_readonly("joined",
                             [](const NodeHandle& h) { return h.with([](store::Node& n) { return n.joined(); }); })
      .def_property_readonly("term",
                             [](const NodeHandle& h) { return h.with([](store::Node& n) { return n.term(); }); })
      .def("stats", &node_stats)
      .def_property_readonly("last_error",
                             [](const NodeHandle& h) { return h.with([](store::Node& n) { return n.last_error(); }); })
      .def("close", &NodeHandle::close);
}

}  // namespace moontide::python
