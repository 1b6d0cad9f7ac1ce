"""Measurements, dumps and warnings of engines in this process."""

from __future__ import annotations

import logging
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import moontide
from moontide import errors
from moontide._http import HttpThread
from moontide.directory.server import SegmentService
from moontide.observe import EngineDump, Histogram, format_dump
from moontide.observe.prometheus import BOUNDS, Collector, page
from moontide.observe.routes import observe_routes
from moontide.observe.servers import directory_collector, node_collector, pool_collector
from moontide.observe.slow import RateLimit
from moontide.observe.traces import trace_text
from support.waiting import wait_for

SIZE = 1 << 20


@pytest.fixture
def engine() -> Iterator[moontide.Engine]:
    with moontide.Engine(config=moontide.load_config({}, environ={})) as engine:
        yield engine


def copy_once(engine: moontide.Engine, size: int = SIZE, trace: str = "") -> moontide.Transfer:
    """Within the engine itself."""
    source, target = engine.allocate(size), engine.allocate(size, name="target", writable=True)
    peer = engine.open(engine.address)
    transfer = engine.write([(source, peer.region("target"), 0, size)], trace=trace)
    transfer.wait(10)
    engine.unregister(source, timeout=10)
    engine.unregister(target, timeout=10)
    return transfer


def test_a_transfer_is_measured_once_by_path_and_peer(engine: moontide.Engine) -> None:
    before = engine.metrics()
    assert (before.transfers, before.transfer.count, before.paths) == (0, 0, {})
    copy_once(engine, 3 * SIZE)
    seen = engine.metrics()
    assert seen.transfers == seen.transfer.count == 1
    assert seen.transfer_failures == {}
    path = seen.paths["self"]
    assert (path.slices, path.bytes_written, path.bytes_read) == (3, 3 * SIZE, 0)
    assert path.stages["copy"].count == path.stages["queue"].count == 3
    assert 0 < path.stages["copy"].sum <= seen.transfer.sum
    assert seen.connect.count == 1
    assert seen.links == 2  # both ends of the link to itself
    assert {peer.instance_id for peer in seen.peers} == {engine.instance_id}
    assert seen.transfers_in_flight == 0
    assert seen.oldest_transfer_seconds == 0


def test_failures_are_counted_by_cause(engine: moontide.Engine) -> None:
    with pytest.raises(errors.MoontideError):
        engine.open("127.0.0.1:1", timeout=1)
    memory = engine.allocate(4096, name="memory", readable=False)
    region = engine.open(engine.address).region("memory")
    with pytest.raises(errors.Denied):
        engine.read([(memory, region, 0, 16)]).wait(10)
    seen = engine.metrics()
    assert seen.connect_failures == {"UNAVAILABLE": 1}
    assert seen.transfer_failures == {"DENIED": 1}


@given(st.lists(st.integers(0, 2**38), max_size=60), st.floats(0, 1))
def test_a_histogram_answers_as_the_sorted_values_do(values: list[int], q: float) -> None:
    histogram = Histogram()
    for value in values:
        seconds = value / 1e9
        histogram = histogram.merged(Histogram(1, seconds, seconds, ((_end(value) / 1e9, 1),)))
    assert histogram.count == len(values)
    if not values:
        assert histogram.quantile(q) == 0
        return
    exact = sorted(values)[max(-int(-q * len(values) // 1), 1) - 1] / 1e9
    assert abs(histogram.quantile(q) - exact) <= exact / 16 + 1e-9
    for bound in BOUNDS:
        assert histogram.at_most(bound) == sum(value / 1e9 < bound for value in values)


def _end(value: int) -> int:
    """Where the engine's bucket of a value ends."""
    if value < 8:
        return value + 1
    octave = value.bit_length() - 4
    return ((value >> octave) + 1) << octave


def test_prometheus_text_has_what_was_measured_and_units(engine: moontide.Engine) -> None:
    copy_once(engine)
    with moontide.Engine(config=moontide.load_config({}, environ={})) as other:
        copy_once(other, 2 * SIZE)
        collector = Collector(one=engine.metrics, two=other.metrics)
        text = page(collector).decode()
        samples = {
            (
                sample.name,
                sample.labels.get("engine"),
                sample.labels.get("op"),
                sample.labels.get("stage"),
            ): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if "le" not in sample.labels and "peer" not in sample.labels
        }
        assert samples["moontide_moved_bytes_total", "one", "write", None] == SIZE
        assert samples["moontide_moved_bytes_total", "two", "write", None] == 2 * SIZE
        assert samples["moontide_slice_seconds_count", "two", None, "copy"] == 2
        assert samples["moontide_transfers_in_flight", "one", None, None] == 0
    # one that is closed goes, those of the living stay
    text = page(collector).decode()
    assert 'engine="one"' in text
    assert 'engine="two"' not in text
    with pytest.raises(errors.Invalid, match="two engines"):
        collector.add("one", engine.metrics)
    collector.remove("one")
    assert 'engine="one"' not in page(collector).decode()


def test_histogram_buckets_add_up(engine: moontide.Engine) -> None:
    copy_once(engine)
    text = page(Collector(one=engine.metrics)).decode()
    buckets: dict[tuple[str, str], list[tuple[float, float]]] = {}
    counts: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            kind = (family.name, sample.labels.get("stage", ""))
            if sample.name.endswith("_bucket"):
                buckets.setdefault(kind, []).append((float(sample.labels["le"]), sample.value))
            elif family.type == "histogram" and sample.name.endswith("_count"):
                counts[kind] = sample.value
    assert counts["moontide_slice_seconds", "copy"] == 1
    for kind, count in counts.items():
        bounds, values = zip(*buckets[kind], strict=True)
        assert list(bounds) == sorted(bounds)
        assert list(values) == sorted(values)
        assert (bounds[-1], values[-1]) == (float("inf"), count)


def test_a_collector_registers_where_it_is_told_and_nowhere_else(engine: moontide.Engine) -> None:
    from prometheus_client import REGISTRY

    assert b"moontide_transfers" not in generate_latest(REGISTRY)
    registry = CollectorRegistry()
    registry.register(Collector(mine=engine.metrics))
    assert b'moontide_transfers_total{engine="mine"} 0.0' in generate_latest(registry)
    assert b"moontide_transfers" not in generate_latest(REGISTRY)


def test_the_documented_metrics_are_those_there_are(engine: moontide.Engine) -> None:
    store = moontide.Store(config=moontide.load_config({"lend": "16MiB"}, environ={}))
    try:
        counts = dict(store.stats())
    finally:
        store.close()
    node = dict.fromkeys(
        "capacity_bytes allocated_bytes largest_free_bytes entries pulls_under_way pulls pulled_bytes pulls_refused "
        "pulls_failed retired repairs repairs_failed "
        "hot_capacity_bytes hot_used_bytes hot_entries hot_hits hot_hit_bytes hot_misses hot_pulls "
        "hot_pulled_bytes hot_pulls_failed hot_evicted".split(),
        0,
    )
    text = page(
        Collector(one=engine.metrics),
        pool_collector(lambda: counts),
        node_collector(lambda: node),
        directory_collector(SegmentService().counts),
    ).decode()
    there = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and "_created" not in line}
    documented = set()
    for row in Path("docs/design/observability.md").read_text().splitlines():
        documented.update(re.findall(r"`(moontide_(?!router)[a-z_]+)`", row) if row.startswith("|") else [])
    assert documented == there


def test_a_trace_is_shown_and_bounded(engine: moontide.Engine) -> None:
    assert copy_once(engine, trace="request-7").trace == "request-7"
    first, second = copy_once(engine).trace, copy_once(engine).trace
    assert re.fullmatch("[0-9a-f]{16}", first)
    assert first != second
    assert trace_text(b"\x00\xff") == "00ff"
    for bad in ("a b", "x" * 65, "\n", "é", b"x" * 33):
        with pytest.raises(errors.Invalid, match="trace"):
            trace_text(bad)
    with pytest.raises(errors.Invalid, match="trace"):
        engine.read(b"", trace="a b")


def test_a_dump_of_an_idle_engine_is_one_line(engine: moontide.Engine) -> None:
    dump = engine.dump()
    assert (dump.transfers, dump.connecting, dump.hostages) == ((), (), 0)
    assert format_dump(dump).count("\n") == 1
    assert engine.address in format_dump(dump)
    engine.close()
    with pytest.raises(errors.Closed):
        engine.dump()
    with pytest.raises(errors.Closed):
        engine.metrics()


def test_slow_transfers_are_warned_about_once_per_kind(caplog: pytest.LogCaptureFixture) -> None:
    # Everything is slow here.
    with (
        caplog.at_level(logging.WARNING, "moontide"),
        moontide.Engine(config=moontide.load_config({"slow": "0.001ms"}, environ={})) as engine,
    ):
        for number in range(20):
            copy_once(engine, trace=f"call-{number}")
        assert engine.metrics().slow_operations >= 20
    lines = [record.getMessage() for record in caplog.records if "took" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("slow transfer: took 0.0")
    assert "code=OK" in lines[0]
    assert "trace=call-0" in lines[0]
    assert "path=self" in lines[0]


def test_slow_puts_and_gets_name_key_and_caller_down_to_the_copy(caplog: pytest.LogCaptureFixture) -> None:
    config = moontide.load_config({"slow": "0.001ms", "lend": "16MiB"}, environ={})
    with caplog.at_level(logging.WARNING, "moontide"), moontide.Store(config=config) as store:
        store.put("key", bytes(1 << 20), trace="put-1")
        assert len(store.get("key", trace="get-1")) == 1 << 20
        with pytest.raises(errors.Invalid, match="trace"):
            store.put("other", b"x", trace="a b")

        def lines(kind: str, trace: str) -> list[str]:
            found = [record.getMessage() for record in caplog.records]
            return [line for line in found if line.startswith(f"slow {kind}: ") and f"trace={trace}" in line]

        for kind in ("put", "get"):
            (line,) = wait_for(lambda kind=kind: lines(kind, f"{kind}-1"), 10, f"a warning about the {kind}")
            assert re.search(r"key=[0-9a-f]{16}", line)
            assert "code=OK" in line
        # the node's copy for the put has the putter's name
        assert lines("transfer", "put-1")


def test_no_thread_where_nothing_is_slow() -> None:
    import threading

    with moontide.Engine(config=moontide.load_config({"slow": "0"}, environ={})):
        assert "moontide-slow" not in [thread.name for thread in threading.enumerate()]
    with moontide.Engine(config=moontide.load_config({}, environ={})) as engine:
        assert "moontide-slow" in [thread.name for thread in threading.enumerate()]
        engine.close()
        assert "moontide-slow" not in [thread.name for thread in threading.enumerate()]


def test_an_engine_that_is_forgotten_ends_its_thread() -> None:
    import gc
    import threading

    engine = moontide.Engine(config=moontide.load_config({}, environ={}))
    assert engine.dump().links == 0
    del engine
    gc.collect()
    wait_for(lambda: "moontide-slow" not in [thread.name for thread in threading.enumerate()])


def test_a_forked_child_leaves_the_thread_alone() -> None:
    import gc
    import os
    import threading

    engines = [moontide.Engine(config=moontide.load_config({"slow": "0.001ms"}, environ={}))]
    child = os.fork()
    if child == 0:
        engines.clear()
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    copy_once(engines[0])
    assert "moontide-slow" in [thread.name for thread in threading.enumerate()]
    engines[0].close()


def test_a_rate_limit_lets_one_through_and_counts_the_rest() -> None:
    now = [0.0]
    limit = RateLimit(period=10, kinds_max=2, clock=lambda: now[0])
    assert [limit.admit("a") for _ in range(4)] == [0, None, None, None]
    assert limit.admit("b") == 0
    now[0] = 10.0
    assert limit.admit("a") == 3
    assert limit.admit("a") is None
    for kind in range(1000):
        limit.admit(kind)
    assert len(limit._kinds) == 2


def test_http_serves_metrics_and_transfers(engine: moontide.Engine) -> None:
    copy_once(engine)
    server = HttpThread("127.0.0.1:0", observe_routes([Collector(mine=engine.metrics)], {"mine": engine.dump}))
    try:
        url = f"http://{server.address}"
        with urllib.request.urlopen(url + "/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert b'moontide_transfers_total{engine="mine"} 1.0' in answer.read()
        with urllib.request.urlopen(url + "/debug/transfers") as answer:
            dumps = msgspec.json.decode(answer.read(), type=dict[str, EngineDump])
        assert dumps["mine"].instance_id == engine.instance_id
        with urllib.request.urlopen(url + "/debug/transfers?format=text") as answer:
            assert answer.read().decode().startswith(f"moontide engine {engine.address}")
        with pytest.raises(errors.Unavailable, match="cannot listen"):
            HttpThread(server.address, [])
    finally:
        server.close()
        server.close()
