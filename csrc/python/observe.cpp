// What Python sees of an engine from outside: measurements, what is under way, what is slow. Everything is copied under
// the lock and made into Python objects without it.
#include <pybind11/stl.h>

#include "engine/dump.h"
#include "python/bindings.h"

namespace moontide::python {
namespace {

using engine::CountByCode;

double seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

// (count, sum in s, longest in s, [(end of the bucket in s, count in it)] of those that are not empty)
py::tuple to_tuple(const Histogram& histogram) {
  py::list buckets;
  auto counts = histogram.buckets();
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const double end = i + 1 < counts.size() ? seconds(static_cast<int64_t>(Histogram::lower(i + 1))) : INFINITY;
    buckets.append(py::make_tuple(end, counts[i]));
  }
  return py::make_tuple(histogram.count(), seconds(static_cast<int64_t>(histogram.sum())),
                        seconds(static_cast<int64_t>(histogram.max())), buckets);
}

py::dict by_code(const CountByCode& counts) {
  py::dict out;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) out[py::str(std::string(code_name(static_cast<Code>(i))))] = counts[i];
  }
  return out;
}

py::dict to_dict(const engine::PathSeen& path) {
  py::dict out, stages;
  for (size_t i = 0; i < engine::PathSeen::kTimed; ++i) {
    if (!path.stages[i]) continue;
    stages[py::str(std::string(stage_name(static_cast<engine::Stage>(i))))] = to_tuple(*path.stages[i]);
  }
  out["bytes_read"] = path.bytes_read;
  out["bytes_written"] = path.bytes_written;
  out["slices"] = path.slices;
  out["retries"] = path.retries;
  out["failures"] = by_code(path.failures);
  out["stages"] = stages;
  return out;
}

py::dict to_dict(const engine::PeerSeen& peer) {
  py::dict out, paths;
  for (const auto& path : peer.paths) paths[py::str(path.name)] = to_dict(path);
  out["instance_id"] = peer.id.empty() ? "other" : peer.id.text();
  out["address"] = peer.address;
  out["links_opened"] = peer.links;
  out["paths"] = paths;
  return out;
}

py::dict observed(Runtime& runtime) {
  std::deque<engine::PeerSeen> peers;
  Histogram connect, transfers;
  CountByCode connect_failures, transfer_failures;
  uint64_t slow;
  int64_t oldest_ns;
  engine::EngineCounters counters;
  size_t links, lingering, hostages, holds, in_flight;
  auto copy = [&](const engine::PeerSeen& peer) {
    engine::PeerSeen& out = peers.emplace_back();
    out.id = peer.id;
    out.address = peer.address;
    out.merge(peer);
  };
  {
    py::gil_scoped_release nogil;
    auto held = lock_or_raise(runtime);
    const auto& engine = runtime.engine();
    const auto& observer = engine.observer();
    for (const auto& [id, peer] : observer.peers()) copy(*peer);
    if (observer.other().links > 0) copy(observer.other());
    connect = observer.connect_ns();
    transfers = observer.transfer_ns();
    connect_failures = observer.connect_failures();
    transfer_failures = observer.transfer_failures();
    slow = observer.slow_count();
    oldest_ns = oldest_transfer_ns(engine);
    counters = engine.counters();
    links = engine.links();
    lingering = engine.lingering();
    hostages = engine.hostages();
    holds = engine.holds().size();
    in_flight = engine.active().size() - hostages;
  }
  py::list peer_list;
  for (const auto& peer : peers) peer_list.append(to_dict(peer));
  py::dict out;
  out["peers"] = peer_list;
  out["connect"] = to_tuple(connect);
  out["connect_failures"] = by_code(connect_failures);
  out["transfer"] = to_tuple(transfers);
  out["transfers"] = counters.transfers;
  out["transfer_failures"] = by_code(transfer_failures);
  out["transfers_in_flight"] = in_flight;
  out["oldest_transfer_seconds"] = seconds(oldest_ns);
  out["hostages"] = hostages;
  out["holds"] = holds;
  out["links"] = links;
  out["links_lingering"] = lingering;
  out["links_opened"] = counters.links_opened;
  out["links_lost"] = counters.links_lost;
  out["connections_refused"] = counters.refused;
  out["pulls_served"] = counters.pulls_served;
  out["paths_failed"] = counters.paths_failed;
  out["control_moves"] = counters.control_moves;
  out["slow_operations"] = slow;
  return out;
}

py::dict to_dict(const engine::TransferView& transfer) {
  py::dict out;
  py::list slices;
  for (const auto& place : transfer.slices) {
    py::dict item;
    item["peer"] = place.peer.text();
    item["address"] = place.address;
    item["path"] = place.path;
    item["stage"] = std::string(stage_name(place.stage));
    item["slices"] = place.count;
    item["bytes"] = place.bytes;
    item["age_seconds"] = seconds(place.oldest_ns);
    slices.append(item);
  }
  out["number"] = transfer.number;
  out["trace"] = transfer.trace;
  out["served"] = transfer.served;
  out["done"] = transfer.done;
  out["code"] = transfer.done ? std::string(code_name(transfer.code)) : "";
  out["age_seconds"] = seconds(transfer.age_ns);
  out["idle_seconds"] = seconds(transfer.idle_ns);
  out["bytes_moved"] = transfer.bytes_moved;
  out["bytes_total"] = transfer.bytes_total;
  out["slices_left"] = transfer.slices_left;
  out["where"] = slices;
  return out;
}

py::dict dump(Runtime& runtime, size_t transfers_max) {
  engine::DumpView view;
  {
    py::gil_scoped_release nogil;
    auto held = lock_or_raise(runtime);
    view = engine::dump(runtime.engine(), transfers_max);
  }
  py::dict out;
  py::list transfers, connecting;
  for (const auto& transfer : view.transfers) transfers.append(to_dict(transfer));
  for (const auto& [address, age_ns] : view.connecting) {
    py::dict item;
    item["address"] = address;
    item["age_seconds"] = seconds(age_ns);
    connecting.append(item);
  }
  out["instance_id"] = view.instance.text();
  out["address"] = view.address;
  out["transfers"] = transfers;
  out["transfers_left_out"] = view.transfers_left_out;
  out["connecting"] = connecting;
  out["links"] = view.links;
  out["links_lingering"] = view.lingering;
  out["hostages"] = view.hostages;
  out["holds"] = view.holds;
  return out;
}

py::dict to_dict(const engine::SlowEvent& event) {
  py::dict out;
  out["kind"] = event.kind;
  out["over"] = event.over;
  out["code"] = std::string(code_name(event.code));
  out["number"] = event.number;
  out["key_hash"] = event.key_hash;
  out["trace"] = event.trace;
  out["peer"] = event.peer;
  out["path"] = event.path;
  out["stage"] = event.stage;
  out["age_seconds"] = seconds(event.age_ns);
  out["idle_seconds"] = seconds(event.idle_ns);
  out["bytes_moved"] = event.bytes_moved;
  out["bytes_total"] = event.bytes_total;
  return out;
}

py::tuple slow_events(Runtime& runtime) {
  engine::Observer::Events taken;
  {
    py::gil_scoped_release nogil;
    auto held = lock_or_raise(runtime);
    taken = runtime.engine().observer().take_events();
  }
  py::list events;
  for (const auto& event : taken.events) events.append(to_dict(event));
  return py::make_tuple(events, taken.dropped);
}

}  // namespace

void bind_observe(py::module_& m) {
  m.def("observed", &observed, py::arg("runtime"), "Everything that is measured, see moontide.observe.");
  m.def("dump", &dump, py::arg("runtime"), py::arg("transfers_max"), "What is under way.");
  m.def(
      "watch_slow",
      [](Runtime& runtime, double slow_s, std::shared_ptr<Notifier> notifier) {
        auto held = lock_or_raise(runtime);
        runtime.engine().observer().watch_slow(to_ns(slow_s, "slow"),
                                               [notifier = std::move(notifier)] { notifier->push(0); });
      },
      py::arg("runtime"), py::arg("slow"), py::arg("notifier"),
      "What takes longer than `slow` seconds becomes an event; the notifier says when there are some.");
  m.def("slow_events", &slow_events, py::arg("runtime"), "The events since the last call, and how many were dropped.");
}

}  // namespace moontide::python
