// The pool in Python: a client, with a node and a master of its own where asked.
#include <pybind11/stl.h>

#include <charconv>

#include "python/bindings.h"
#include "python/operation.h"
#include "python/store_values.h"
#include "python/tenant.h"
#include "python/view.h"
#include "store/embedded.h"

namespace moontide::python {
namespace {

using Range = std::pair<uint64_t, uint64_t>;  // address, bytes

// `gathers`: what it sends waits for let_go(), for a caller that begins many things and then says so.
class ClientHandle : public Tenant<store::Member> {
 public:
  ClientHandle(Tenant<store::Member> tenant, bool gathers)
      : Tenant<store::Member>(std::move(tenant)), gathers_(gathers) {}

  template <class Use>
  auto begin(Use use) const {
    return with([&](store::Member& member) {
      const Gathering gathering(*runtime(), gathers_);
      use(member);
    });
  }
  void let_go() const {
    if (!gathers_) return;
    py::gil_scoped_release nogil;
    auto held = runtime()->lock();
    if (held) runtime()->let_go();
  }

 private:
  struct Gathering {
    Gathering(Runtime& of, bool on) : runtime(of) { runtime.gather(on); }
    ~Gathering() { runtime.gather(false); }
    Gathering(const Gathering&) = delete;
    Gathering& operator=(const Gathering&) = delete;
    Runtime& runtime;
  };
  bool gathers_;
};

ClientHandle make_client(const std::shared_ptr<Runtime>& runtime, const std::string& master, uint64_t lend,
                         double lease_s, const std::string& eviction, bool gathers) {
  py::gil_scoped_release nogil;
  auto held = lock_or_raise(*runtime);
  store::MemberOptions options;
  options.master = master;
  options.lend_bytes = lend;
  options.master_options.catalog.lease_ns = to_ns(lease_s, "lease");
  options.master_options.eviction = eviction;
  std::shared_ptr<store::Member> member = value_or_raise(
      store::Member::create(runtime->reactor(), runtime->master_network(), runtime->engine(), std::move(options)));
  return {settle_in(runtime, std::move(member)), gathers};
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
  // Both at once: quiet comes after the outcome.
  Operation finished() const { return {outcome.runtime, quiet, outcome.result}; }
};

// Addresses that a user passes as numbers are read and written only where they are registered.
void check_registered(Runtime& runtime, const std::vector<std::vector<Range>>& parts) {
  py::gil_scoped_release nogil;
  auto held = lock_or_raise(runtime);
  for (const auto& item : parts) {
    for (auto [address, length] : item) value_or_raise(runtime.engine().registry().find_local(address, length));
  }
}

// `start` begins it; `collect` takes what came of it, of which `convert` makes the Python value.
template <class T, class Start>
BatchHandle start_batch(const ClientHandle& client, std::optional<double> timeout_s, std::string trace, Start start,
                        T (*collect)(const store::Operation&), py::list (*convert)(const T&)) {
  if (!engine::is_trace(trace)) raise({Code::kInvalid, "a trace id is at most 64 printable characters"});
  auto pending = std::make_shared<Pending<T>>();
  auto quiet = std::make_shared<Completion>();
  auto native = std::make_shared<store::OperationRef>();  // kept for its results, until quiet
  BatchHandle handle{make_operation<T>(client.runtime(), pending, convert), quiet, {}};
  client.begin([&](store::Member& member) {
    store::OperationOptions options;
    options.timeout_ns = timeout_ns(timeout_s);
    options.trace = std::move(trace);
    options.on_done = [pending, native, collect] { pending->set(collect(**native)); };
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

// Empty: any.
Generation to_version(const std::string& text) {
  if (text.empty()) return {};
  auto version = Generation::parse(text);
  if (!version || version->empty()) raise({Code::kInvalid, "a version is what upsert or stat gave, not " + text});
  return *version;
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
                const Placed& placed, const std::vector<std::optional<std::string>>& replaces) {
  if (keys.size() != parts.size())
    raise({Code::kInvalid, std::to_string(keys.size()) + " keys, " + std::to_string(parts.size()) + " lists of parts"});
  if (registered) check_registered(*client.runtime(), parts);
  std::vector<store::PutItem> items;
  const catalog::Retention retention = to_retention(retained);
  for (size_t i = 0; i < keys.size(); ++i)
    items.push_back({keys[i], to_parts(parts[i]), {}, retention, prefix && i > 0});
  for (size_t i = 0; i < std::min(keys.size(), replaces.size()); ++i) {
    if (replaces[i]) items[i].replaces = to_version(*replaces[i]);
  }
  const auto commit = async ? store::Commit::kAsync : store::Commit::kSync;
  auto start = [&](store::Member& member, store::OperationOptions options) {
    return member.client().put(std::move(items), commit, std::move(options), to_placement(placed, member.node()));
  };
  if (replaces.empty()) return start_batch(client, timeout, std::move(trace), start, lengths_of, lengths_list);
  return start_batch(client, timeout, std::move(trace), start, versions_of, versions_list);
}

// `ranges`: (offset, length) in the object per key; none: whole objects.
BatchHandle get(const ClientHandle& client, const std::vector<std::string>& keys,
                const std::vector<std::vector<Range>>& parts, bool registered, std::optional<double> timeout,
                std::string trace, const std::vector<Range>& ranges) {
  if (keys.size() != parts.size())
    raise({Code::kInvalid, std::to_string(keys.size()) + " keys, " + std::to_string(parts.size()) + " lists of parts"});
  if (registered) check_registered(*client.runtime(), parts);
  if (!ranges.empty() && ranges.size() != keys.size())
    raise({Code::kInvalid, std::to_string(keys.size()) + " keys, " + std::to_string(ranges.size()) + " ranges"});
  std::vector<store::GetItem> items;
  for (size_t i = 0; i < keys.size(); ++i) {
    items.push_back({keys[i], to_parts(parts[i])});
    if (!ranges.empty()) items.back().range = store::ObjectRange{ranges[i].first, ranges[i].second};
  }
  auto start = [&](store::Member& member, store::OperationOptions options) {
    return member.client().get(std::move(items), std::move(options));
  };
  return start_batch(client, timeout, std::move(trace), start, lengths_of, lengths_list);
}

// An answer of the master: `start(client, set)` asks, `convert` makes the Python value.
template <class T, class Start, class Convert>
Operation ask(const ClientHandle& client, Start start, Convert convert) {
  auto pending = std::make_shared<Pending<T>>();
  client.begin([&](store::Member& member) {
    start(member.client(), [pending](Result<T> value) { pending->set(std::move(value)); });
  });
  return make_operation<T>(client.runtime(), pending, convert);
}

// One code per key.
template <void (store::Client::*kAsk)(std::vector<std::string> keys, int64_t timeout_ns, store::Client::CodesDone done)>
Operation ask_about(const ClientHandle& client, const py::sequence& given, std::optional<double> timeout,
                    py::list (*convert)(const std::vector<Code>&)) {
  auto keys = to_keys(given);
  return ask<std::vector<Code>>(
      client,
      [&](store::Client& native, auto set) { (native.*kAsk)(std::move(keys), timeout_ns(timeout), std::move(set)); },
      convert);
}

Operation places(const ClientHandle& client, const std::vector<std::string>& keys, std::optional<double> timeout) {
  return ask<Places>(
      client, [&](store::Client& native, auto set) { native.places(keys, timeout_ns(timeout), std::move(set)); },
      places_list);
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
  out["views"] = c.views;
  out["get_bytes"] = c.get_bytes;
  out["range_gets"] = c.range_gets;
  out["gets_missed"] = c.gets_missed;
  out["located_from_cache"] = c.located_from_cache;
  out["proofs_failed"] = c.proofs_failed;
  out["hot_gets"] = c.hot_gets;
  out["hot_get_bytes"] = c.hot_get_bytes;
  out["hot_views"] = c.hot_views;
  out["hot_failed"] = c.hot_failed;
  out["commits_pending"] = pending;
  out["commits_lost"] = lost;
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
      .def("finished", &BatchHandle::finished)
      .def("cancel", &BatchHandle::cancel);
}

// What the master is asked about keys.
void bind_questions(py::class_<ClientHandle>& client) {
  client
      .def(
          "stat",
          [](const ClientHandle& h, const py::sequence& given, std::optional<double> timeout) {
            auto keys = to_keys(given);
            return ask<Lengths>(
                h, [&](store::Client& c, auto set) { c.lengths(std::move(keys), timeout_ns(timeout), std::move(set)); },
                lengths_list);
          },
          py::arg("keys"), py::arg("timeout") = py::none())
      .def("places", &places, py::arg("keys"), py::arg("timeout") = py::none())
      .def(
          "drain",
          [](const ClientHandle& h, const std::string& node, bool on) {
            const InstanceId id = node_id(node);
            return ask<wire::Drained>(
                h, [&](store::Client& c, auto set) { c.drain(id, on, 0, std::move(set)); },
                [](const wire::Drained& left) {
                  if (left.code != Code::kOk) raise({left.code, "the pool has no such node"});
                  return py::make_tuple(left.objects, left.bytes);
                });
          },
          py::arg("node"), py::arg("on"))
      .def(
          "view",
          [](const ClientHandle& h, const py::sequence& given, std::optional<double> timeout) {
            auto keys = to_keys(given);
            return ask<Views>(
                h,
                [&](store::Client& c, auto set) {
                  c.view(std::move(keys), timeout_ns(timeout),
                         [set](std::vector<Result<store::ViewRef>> views) mutable {
                           set(std::make_shared<std::vector<Result<store::ViewRef>>>(std::move(views)));
                         });
                },
                [runtime = h.runtime()](const Views& views) { return views_list(runtime, views); });
          },
          py::arg("keys"), py::arg("timeout") = py::none())
      .def(
          "exists",
          [](const ClientHandle& h, const py::sequence& keys, std::optional<double> timeout) {
            return ask_about<&store::Client::exists>(h, keys, timeout, found_list);
          },
          py::arg("keys"), py::arg("timeout") = py::none())
      .def(
          "remove",
          [](const ClientHandle& h, const py::sequence& keys, std::optional<double> timeout) {
            return ask_about<&store::Client::remove>(h, keys, timeout, codes_list);
          },
          py::arg("keys"), py::arg("timeout") = py::none())
      .def(
          "keep",
          [](const ClientHandle& h, const py::sequence& given, const Retained& retained,
             std::optional<double> timeout) {
            auto keys = to_keys(given);
            return ask<std::vector<Code>>(
                h,
                [&](store::Client& c, auto set) {
                  c.keep(std::move(keys), to_retention(retained), timeout_ns(timeout), std::move(set));
                },
                codes_list);
          },
          py::arg("keys"), py::arg("retained"), py::arg("timeout") = py::none());
}

void bind_client(py::module_& m) {
  py::class_<ClientHandle> client(m, "StoreClient");
  bind_questions(client);
  client
      .def(py::init(&make_client), py::arg("runtime"), py::arg("master"), py::arg("lend"), py::arg("lease"),
           py::arg("eviction"), py::arg("gathers") = false)
      .def("let_go", &ClientHandle::let_go)
      .def("put", &put, py::arg("keys"), py::arg("parts"), py::arg("commit_async"), py::arg("registered") = false,
           py::arg("timeout") = py::none(), py::arg("trace") = "", py::arg("prefix") = false,
           py::arg("retained") = Retained{}, py::arg("placement") = Placed{1, {}, {}},
           py::arg("replaces") = std::vector<std::optional<std::string>>{})
      .def("get", &get, py::arg("keys"), py::arg("parts"), py::arg("registered") = false,
           py::arg("timeout") = py::none(), py::arg("trace") = "", py::arg("ranges") = std::vector<Range>{})
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
  bind_view(m);
  bind_client(m);
}

}  // namespace moontide::python
