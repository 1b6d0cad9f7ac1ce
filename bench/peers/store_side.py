"""One process of one contestant's pool: the same clock, keys, values and checks for all.

A contestant's file subclasses `StoreContestant` and calls `main(...)`. It runs three times per turn, with a plan (JSON)
as its argument: as master and as lender (core 1), and as client (core 0). Standard library only, since it runs in the
peers' environments.

The clock of a call runs from the call until it returns; what it returned is checked outside the clock, and at the end
of each case with bytes a whole batch is read into wiped memory and compared.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import mmap
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from ctypes import CDLL, addressof, c_char, c_size_t, c_void_p, memset
from pathlib import Path
from typing import Any

from side import cpu_clock_of, loopback_bytes, percentiles

_memcmp = CDLL(None).memcmp
_memcmp.argtypes = (c_void_p, c_void_p, c_size_t)
_WORD = 8
_PAGE = 4096
_WARM_UPS = 3
_CALLS_MIN = 3
_ASLEEP_AFTER_NS = 250_000  # a server that has nothing to do for so long is asleep
_FILL_BATCH = 512
_PIECE = 4  # times the depth: how many calls are started and awaited as one sample
_NO_POOL_BEFORE_S = 20.0


class Buffer:
    """Memory of the client that objects are put from or got into."""

    def __init__(self, view: memoryview, address: int) -> None:
        self.view, self.address, self.nbytes = view, address, len(view)

    @staticmethod
    def make(nbytes: int) -> Buffer:
        pages = mmap.mmap(-1, nbytes)
        return Buffer(memoryview(pages), addressof(c_char.from_buffer(pages)))


class StoreContestant:
    """What a contestant implements; the plan says which role this process has. Keys are texts."""

    def __init__(self, plan: dict[str, Any]) -> None:
        """Connects the client, and makes `source` and `sink` of `plan["buffer"]` bytes, registered."""
        self.source: Buffer
        self.sink: Buffer

    @staticmethod
    def serve_master(plan: dict[str, Any]) -> None:
        """Serves at 127.0.0.1:`plan["port"]` until it is killed."""
        raise NotImplementedError

    @staticmethod
    def lend(plan: dict[str, Any]) -> Callable[[], None]:
        """Lends `plan["lend"]` bytes. Returns what the process does from then on."""
        raise NotImplementedError

    def exists(self, key: str) -> bool:
        raise NotImplementedError

    def get(self, key: str) -> bytes:
        raise NotImplementedError

    def put(self, key: str, value: bytes) -> None:
        raise NotImplementedError

    def exists_many(self, keys: list[str]) -> list[bool]:
        raise NotImplementedError

    def get_many(self, keys: list[str]) -> list[bytes]:
        raise NotImplementedError

    def put_many(self, keys: list[str], values: list[bytes]) -> None:
        raise NotImplementedError

    def remove_many(self, keys: list[str]) -> None:
        raise NotImplementedError

    def at_once(self, op: str, keys: Sequence[str], values: Sequence[bytes], depth: int) -> list[Any]:
        """One call per key, `depth` of them under way at any time; what each returned, in order."""
        raise NotImplementedError

    def put_from(self, keys: list[str], size: int) -> None:
        """Object i from `size` bytes of the source, side by side."""
        raise NotImplementedError

    def get_into(self, keys: list[str], size: int) -> None:
        """Object i into `size` bytes of the sink, side by side."""
        raise NotImplementedError

    def look(self, key: str) -> Callable[[], bytes]:
        """A view of the object in place, open until the answer was called: what ends it, and gives its last bytes."""
        raise NotImplementedError

    def versions(self) -> dict[str, str]:
        return {}


def key_of(name: str, number: int) -> str:
    """64 characters that lie anywhere among the others, as hashes of content do."""
    return hashlib.sha256(f"{name} {number}".encode()).hexdigest()


def value_of(key: str) -> bytes:
    return key.encode()[::-1]


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def fill_pattern(buffer: Buffer) -> None:
    """Every page says which one it is, so that an object in the wrong place is seen."""
    noise = random.Random(20261130).randbytes(_PAGE)
    for at in range(0, buffer.nbytes, _PAGE):
        mark = (at // _PAGE + (1 << 40)).to_bytes(_WORD, "little")
        buffer.view[at : at + _PAGE] = mark + noise[_WORD:-_WORD] + mark


class Client:
    """Runs the cases of a plan and reports each."""

    def __init__(self, plan: dict[str, Any], contestant: StoreContestant) -> None:
        self._plan, self._pool = plan, contestant
        self._master = cpu_clock_of(plan["master_pid"])
        self._clocks = (cpu_clock_of(os.getpid()), self._master, cpu_clock_of(plan["node_pid"]))
        self._there: list[str] = []  # keys of the objects in the pool
        self._next = 0  # of them, for the next read
        self._put = 0  # objects put so far by the cases

    # --- what lies in the pool

    def fill(self, count: int) -> float:
        """The master's memory per object, over those that came."""
        before, had = resident_bytes(self._plan["master_pid"]), len(self._there)
        while len(self._there) < count:
            some = range(len(self._there), min(count, len(self._there) + _FILL_BATCH))
            keys = [key_of("there", number) for number in some]
            self._pool.put_many(keys, [value_of(key) for key in keys])
            self._there += keys
        grown = resident_bytes(self._plan["master_pid"]) - before
        return grown / (count - had) if count > had else 0.0

    def _known(self, count: int) -> list[str]:
        """The next keys that are there, in turn; they are hashes, so they lie anywhere in the master's tables."""
        keys = [self._there[(self._next + i) % len(self._there)] for i in range(count)]
        self._next = (self._next + count) % len(self._there)
        return keys

    def _fresh(self, count: int) -> list[str]:
        keys = [key_of("put", self._put + i) for i in range(count)]
        self._put += count
        return keys

    def _keys(self, op: str, count: int) -> list[str]:
        return self._fresh(count) if op == "put" else self._known(count)

    # --- the clock

    def _timed(self, call: Callable[[], Any], out: dict[str, Any]) -> Any:
        """One call on the clock: its time, the CPU time of all and that of the master."""
        master, cpu = time.clock_gettime_ns(self._master), sum(map(time.clock_gettime_ns, self._clocks))
        start = time.perf_counter_ns()
        answer = call()
        out["samples"].append(time.perf_counter_ns() - start)
        out["cpu"] += sum(map(time.clock_gettime_ns, self._clocks)) - cpu
        out["master"] += time.clock_gettime_ns(self._master) - master
        return answer

    def _calls(self, case: dict[str, Any], once: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """`once` again and again, as often as the case says or its time allows."""
        warming = _nothing_yet()
        for _ in range(_WARM_UPS):
            once(warming)
        out = _nothing_yet()
        until = time.perf_counter() + case["seconds"]
        loopback = loopback_bytes()
        for k in range(case["iterations"]):
            if k >= _CALLS_MIN and time.perf_counter() > until:
                break
            once(out)
        samples = out["samples"]
        return {
            **percentiles(samples),
            "calls": len(samples),
            "mean_us": sum(samples) / len(samples) / 1e3,
            "cpu_s": out["cpu"] / 1e9,
            "master_cpu_s": out["master"] / 1e9,
            "lo_bytes": loopback_bytes() - loopback,
        }

    def _let_sleep(self) -> None:
        until = time.perf_counter_ns() + _ASLEEP_AFTER_NS
        while time.perf_counter_ns() < until:
            pass

    # --- the kinds of cases

    def single(self, case: dict[str, Any]) -> dict[str, Any]:
        op, sleeps = case["op"], self._plan["wait"] == "sleep"
        pool = self._pool

        def once(out: dict[str, Any]) -> None:
            key = self._keys(op, 1)[0]
            value = value_of(key)
            if sleeps:
                self._let_sleep()
            if op == "put":
                self._timed(lambda: pool.put(key, value), out)
            elif op == "get":
                _expect(case, self._timed(lambda: pool.get(key), out) == value)
            else:
                _expect(case, self._timed(lambda: pool.exists(key), out))

        return {**self._calls(case, once), "keys_per_call": 1}

    def batch(self, case: dict[str, Any]) -> dict[str, Any]:
        op, count, pool = case["op"], case["count"], self._pool

        def once(out: dict[str, Any]) -> None:
            keys = self._keys(op, count)
            values = [value_of(key) for key in keys]
            if op == "put":
                self._timed(lambda: pool.put_many(keys, values), out)
            elif op == "get":
                _expect(case, self._timed(lambda: pool.get_many(keys), out) == values)
            else:
                _expect(case, all(self._timed(lambda: pool.exists_many(keys), out)))

        return {**self._calls(case, once), "keys_per_call": count}

    def pipelined(self, case: dict[str, Any]) -> dict[str, Any]:
        """In pieces of several times the depth; each piece is one sample."""
        op, depth, pool = case["op"], case["count"], self._pool
        piece = depth * _PIECE

        def once(out: dict[str, Any]) -> None:
            keys = self._keys(op, piece)
            values = [value_of(key) for key in keys]
            answers = self._timed(lambda: pool.at_once(op, keys, values, depth), out)
            _expect(case, op == "put" or answers == (values if op == "get" else [True] * piece))

        few = {**case, "iterations": max(_CALLS_MIN, case["iterations"] // piece)}
        return {**self._calls(few, once), "keys_per_call": piece}

    def data(self, case: dict[str, Any]) -> dict[str, Any]:
        op, size, count, pool = case["op"], case["size"], case["count"], self._pool
        total = size * count
        tails = pool.sink.view.cast("Q")[size // _WORD - 1 : total // _WORD : size // _WORD]
        want = pool.source.view.cast("Q")[size // _WORD - 1 : total // _WORD : size // _WORD].tobytes()
        zeros = memoryview(bytes(count * _WORD)).cast("Q")
        last: list[str] = []

        def put(out: dict[str, Any]) -> None:
            if last:
                pool.remove_many(last)
            last[:] = self._fresh(count)
            self._timed(lambda: pool.put_from(last, size), out)

        def get(out: dict[str, Any]) -> None:
            tails[:] = zeros
            self._timed(lambda: pool.get_into(last, size), out)
            _expect(case, tails.tobytes() == want)

        if op == "get":
            put(_nothing_yet())
        out = self._calls(case, put if op == "put" else get)
        memset(pool.sink.address, 0, total)
        pool.get_into(last, size)
        _expect(case, _memcmp(pool.source.address, pool.sink.address, total) == 0)
        pool.remove_many(last)
        return {**out, "keys_per_call": count, "payload_bytes": total * out["calls"]}

    def view(self, case: dict[str, Any]) -> dict[str, Any]:
        size, pool = case["size"], self._pool
        want = pool.source.view[size - _WORD : size].tobytes()
        (key,) = self._fresh(1)
        pool.put_from([key], size)

        def once(out: dict[str, Any]) -> None:
            _expect(case, self._timed(lambda: pool.look(key), out)() == want)

        out = self._calls(case, once)
        pool.remove_many([key])
        return {**out, "keys_per_call": 1}


def _nothing_yet() -> dict[str, Any]:
    """Times of calls, CPU nanoseconds of all processes and of the master."""
    return {"samples": [], "cpu": 0, "master": 0}


def _expect(case: dict[str, Any], right: bool) -> None:
    if not right:
        raise ValueError(f"{case['name']}: the answer is not what was put")


def _run_client(plan: dict[str, Any], make: type[StoreContestant]) -> None:
    contestant = make(plan)
    fill_pattern(contestant.source)
    client = Client(plan, contestant)
    # A pool that has just begun may have to wait for leases of an earlier master; nobody measures that.
    deadline = time.monotonic() + _NO_POOL_BEFORE_S
    for number in itertools.count():
        try:
            contestant.put_many([key_of("first", number)], [b"first"])
            break
        except Exception:
            if time.monotonic() > deadline:
                raise
    print(json.dumps({"event": "start", "versions": contestant.versions()}), flush=True)
    for stage in plan["stages"]:
        each = client.fill(stage["keys"])
        print(json.dumps({"event": "filled", "keys": stage["keys"], "bytes_per_object": each}), flush=True)
        for case in stage["cases"]:
            result = getattr(client, case["kind"])(case)
            print(json.dumps({"event": "case", "case": case["name"], "keys": stage["keys"], **result}), flush=True)
    print(json.dumps({"event": "end"}), flush=True)


def main(make: type[StoreContestant]) -> None:
    plan: dict[str, Any] = json.loads(sys.argv[1])
    os.sched_setaffinity(0, {plan["core"]})
    if plan["role"] == "master":
        make.serve_master(plan)
    elif plan["role"] == "node":
        goes_on = make.lend(plan)
        print(json.dumps({"event": "ready"}), flush=True)
        goes_on()
    else:
        _run_client(plan, make)
    # Interpreter exit is not part of the contest, and one peer is known to crash in it.
    os._exit(0)
