"""`moontide top`: what lies between two pages of /metrics."""

from __future__ import annotations

import pytest

from moontide.errors import Invalid
from moontide.observe.top import Look, Scrape, Watcher, compare, fetch, quantile, table

_PAGE = """\
# TYPE moontide_transfers_total counter
moontide_transfers_total{{engine="a"}} {transfers}
moontide_transfers_total{{engine="b"}} 5.0
# TYPE moontide_transfer_failures_total counter
moontide_transfer_failures_total{{engine="a",code="TIMED_OUT"}} {failures}
# TYPE moontide_transfers_in_flight gauge
moontide_transfers_in_flight{{engine="a"}} 2.0
moontide_transfers_in_flight{{engine="b"}} 1.0
# TYPE moontide_oldest_transfer_seconds gauge
moontide_oldest_transfer_seconds{{engine="a"}} 0.5
moontide_oldest_transfer_seconds{{engine="b"}} 7.0
# TYPE moontide_moved_bytes_total counter
moontide_moved_bytes_total{{engine="a",path="tcp",op="read"}} {bytes}
moontide_moved_bytes_total{{engine="a",path="tcp",op="write"}} 0.0
# TYPE moontide_slice_seconds histogram
moontide_slice_seconds_bucket{{engine="a",path="tcp",stage="wire",le="0.001"}} {fast}
moontide_slice_seconds_bucket{{engine="a",path="tcp",stage="wire",le="0.002"}} {slow}
moontide_slice_seconds_bucket{{engine="a",path="tcp",stage="wire",le="+Inf"}} {slow}
moontide_slice_seconds_count{{engine="a",path="tcp",stage="wire"}} {slow}
moontide_slice_seconds_sum{{engine="a",path="tcp",stage="wire"}} 1.0
# TYPE moontide_pool_objects gauge
moontide_pool_objects 12.0
"""


def page(at: float, **values: float) -> Scrape:
    return Scrape(_PAGE.format(**values), at)


BEFORE = page(100.0, transfers=10.0, failures=1.0, bytes=1e6, fast=100.0, slow=100.0)
NOW = page(102.0, transfers=30.0, failures=4.0, bytes=5e6, fast=150.0, slow=200.0)


def test_rates_are_of_the_time_between_and_sums_of_all_engines() -> None:
    look = compare("here", BEFORE, NOW)
    assert look.seconds == 2
    assert look.transfers_per_second == 10
    assert look.failures == 3
    assert look.in_flight == 3
    assert look.oldest_seconds == 7
    assert look.pool == {"objects": 12}
    (path,) = look.paths
    assert (path.path, path.read_bytes_per_second, path.written_bytes_per_second) == ("tcp", 2e6, 0)
    (stage,) = look.stages
    # half of the hundred that came in between took at most 1 ms
    assert (stage.path, stage.stage, stage.per_second) == ("tcp", "wire", 50)
    assert stage.p50_us == pytest.approx(1000)
    assert stage.p99_us == pytest.approx(1980)


def test_a_restarted_process_is_looked_at_anew() -> None:
    assert compare("here", NOW, BEFORE).transfers_per_second == 15
    assert compare("here", None, NOW).transfers_per_second == 35


def test_quantiles_within_buckets() -> None:
    buckets = {1.0: 10.0, 2.0: 10.0, 4.0: 20.0, float("inf"): 20.0}
    assert quantile(buckets, 0.25) == pytest.approx(0.5)
    assert quantile(buckets, 0.5) == pytest.approx(1.0)
    assert quantile(buckets, 0.75) == pytest.approx(3.0)
    assert quantile(buckets, 1.0) == pytest.approx(4.0)
    assert quantile({1.0: 0.0, float("inf"): 5.0}, 0.5) == 1.0
    assert quantile({}, 0.5) == 0


def test_what_does_not_answer_says_why() -> None:
    (look,) = Watcher(["127.0.0.1:1"]).look()
    assert look.error.startswith("URLError")
    with pytest.raises(Invalid, match="HOST:PORT"):
        fetch("file:///etc/passwd")


def test_the_table_has_a_line_per_path_and_stage() -> None:
    text = table([compare("here:1", BEFORE, NOW), Look("there:2", error="URLError: refused")])
    assert "here:1  10.0 transfers/s, 3 failed, 3 in flight, oldest 7.00 s" in text
    assert "tcp           2.0        0.0" in text
    assert "tcp    wire         50.0     1000.0     1980.0" in text
    assert "there:2  URLError: refused" in text
