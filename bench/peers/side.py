"""One process of one contestant: the same clock, buffers and checks for all, whatever moves the bytes.

A contestant's file subclasses `Contestant` and calls `main(...)`. It runs twice per turn: as initiator (core 0) and as
target (core 1), with a plan (JSON) as its argument. Standard library only, since it runs in the peers' environments.

The clock of one iteration runs from the call that starts the batch until that call says "done" *and* the last word of
every entry is seen in the memory that changes: in the initiator's own for a read, in the target's (which is mapped
here as well) for a write. Those words are wiped before each iteration, outside the clock. At the end of each case the
whole window is wiped, moved once more and compared, by the target where the bytes landed there.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from ctypes import CDLL, addressof, c_char, c_size_t, c_void_p, memset
from pathlib import Path
from typing import Any

Entry = tuple[int, int, int]  # (offset in the local memory, offset in the remote memory, bytes)
# (submit a batch that was never seen, post a prepared one again, wait for either)
Submission = tuple[Callable[[], Any], Callable[[], Any], Callable[[Any], None]]

_memcmp = CDLL(None).memcmp
_memcmp.argtypes = (c_void_p, c_void_p, c_size_t)
_WORD = 8
_WARM_UPS = 3
_BATCHES_MIN = 3
_ASLEEP_AFTER_NS = 250_000  # a sleeper that has nothing to do for so long is asleep
_STUCK_AFTER_S = 20.0


class Memory:
    """A shared memory file, mapped and touched. `address` is what the contestants register."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self.map = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        self.address = addressof(c_char.from_buffer(self.map))
        self.nbytes = nbytes
        self.view = memoryview(self.map)
        self.words = self.view.cast("Q")


class Contestant:
    """What a contestant implements. `source` and `sink` are this process's memory of the two kinds."""

    name = "?"

    def __init__(self, plan: dict[str, Any], source: Memory, sink: Memory) -> None:
        """Makes the engine and registers both memories."""

    def hello(self) -> dict[str, Any]:
        """What the other side must know of this one (JSON)."""
        return {}

    def landing(self) -> str:
        """A file to map where writes into this process land, if that is not the sink."""
        return ""

    def connect(self, other: dict[str, Any]) -> None:
        """Takes the other side's hello."""

    def prepare(self, op: str, entries: Sequence[Entry]) -> Callable[[], None]:
        """A function that moves the entries and returns when this contestant calls the batch complete."""
        raise NotImplementedError

    def submission(self, entries: Sequence[Entry]) -> Submission:
        """What it costs to hand over a batch; see `Submission`."""
        raise NotImplementedError

    def progress(self) -> None:
        """The target's turn of the loop when it polls; the default leaves the core to the contestant's own threads."""
        time.sleep(0.001)

    def versions(self) -> dict[str, str]:
        return {}


class Channel:
    """JSON lines between the two processes, over a socket pair that the bench made."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._file = self._socket.makefile("r")

    def send(self, message: dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        line = self._file.readline()
        if not line:
            raise ConnectionError("the other side is gone")
        message: dict[str, Any] = json.loads(line)
        return message

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self.send(message)
        return self.receive()


def loopback_bytes() -> int:
    """Received on `lo` of this process's network namespace so far (/sys shows the one it was mounted in)."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return int(next(line for line in lines if line.strip().startswith("lo:")).partition(":")[2].split()[0])


def cpu_clock_of(pid: int) -> int:
    """The clock id of a process's CPU time: all of its threads, to the nanosecond."""
    return (~pid << 3) | 2


def percentiles(samples: list[int]) -> dict[str, Any]:
    """Median and 99th percentile of nanoseconds, in microseconds."""
    ranked = sorted(samples)
    middle, high = ranked[len(ranked) // 2], ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))]
    return {"p50_us": middle / 1e3, "p99_us": high / 1e3}


def slots(count: int, order: str) -> list[int]:
    """Where in the remote window entry i lies: a fixed shuffle, or side by side."""
    out = list(range(count))
    x = 88172645463325252
    for i in range(count - 1, 0, -1) if order == "shuffled" else ():
        x ^= x << 13 & (1 << 64) - 1
        x ^= x >> 7
        x ^= x << 17 & (1 << 64) - 1
        j = x % (i + 1)
        out[i], out[j] = out[j], out[i]
    return out


class Window:
    """One batch at one place of the memories: its entries, how to wipe its last words and what they must become."""

    def __init__(self, case: dict[str, Any], index: int, source: Memory, sink: Memory) -> None:
        size, count, reading = case["size"], case["count"], case["op"] == "read"
        base = index * size * count
        self.base, self.nbytes = base, size * count
        remote = slots(count, case["order"])
        self.entries = [(base + i * size, base + remote[i] * size, size) for i in range(count)]
        # (offset in the source, offset in the sink) of each entry
        self.pairs = [(far, near) if reading else (near, far) for near, far, _ in self.entries]
        step = size // _WORD
        self._tails = sink.words[base // _WORD + step - 1 : (base + self.nbytes) // _WORD : step]
        self._zeros = memoryview(bytes(count * _WORD)).cast("Q")
        lasts = {at: source.words[(of + size) // _WORD - 1] for of, at in self.pairs}
        self._want = b"".join(lasts[base + i * size].to_bytes(_WORD, sys.byteorder) for i in range(count))
        self._source, self._sink, self._size = source, sink, size

    def wipe(self) -> None:
        self._tails[:] = self._zeros

    def wipe_all(self) -> None:
        memset(self._sink.address + self.base, 0, self.nbytes)

    def arrived(self) -> bool:
        return self._tails.tobytes() == self._want

    def intact(self) -> bool:
        """Whether every byte of the sink's window is as it must be."""
        pairs = ((self._source.address + of, self._sink.address + at) for of, at in self.pairs)
        return all(_memcmp(of, at, self._size) == 0 for of, at in pairs)


class Initiator:
    def __init__(self, plan: dict[str, Any], contestant: Contestant, channel: Channel, target_pid: int) -> None:
        self._plan = plan
        self._contestant = contestant
        self._channel = channel
        self._clocks = (cpu_clock_of(os.getpid()), cpu_clock_of(target_pid))
        self.board = Memory(plan["board"], mmap.PAGESIZE)

    def spin_target(self) -> None:
        """Lets the target drive its engine until `stop_target`."""
        self.board.words[0] = 0
        self._channel.send({"do": "drive"})

    def stop_target(self) -> None:
        self.board.words[0] = 1
        self._channel.ask({"do": "stop"})

    def _cpu_ns(self) -> int:
        return sum(time.clock_gettime_ns(clock) for clock in self._clocks)

    def _once(self, window: Window, move: Callable[[], None]) -> tuple[int, bool]:
        """(nanoseconds until the bytes were there, whether they came after the contestant had said "done")."""
        start = time.perf_counter_ns()
        move()
        end = time.perf_counter_ns()
        late = False
        while not window.arrived():
            late = True
            end = time.perf_counter_ns()
            if end - start > _STUCK_AFTER_S * 1e9:
                raise TimeoutError("the contestant said done, but the bytes never came")
        return end - start, late

    def _let_sleep(self) -> None:
        until = time.perf_counter_ns() + _ASLEEP_AFTER_NS
        while time.perf_counter_ns() < until:
            pass

    def transfer(self, case: dict[str, Any], source: Memory, sink: Memory) -> dict[str, Any]:
        self.spin_target()
        windows = [Window(case, i, source, sink) for i in range(case["windows"])]
        moves = [self._contestant.prepare(case["op"], w.entries) for w in windows]
        self._warm_up(case, windows, moves)
        before = loopback_bytes()
        out = (self._at_once if case["threads"] > 1 else self._in_turn)(case, windows, moves)
        out["lo_bytes"] = loopback_bytes() - before
        out["payload_bytes"] = case["size"] * case["count"] * out["batches"]
        last = case["threads"]
        for window, move in zip(windows[-last:], moves[-last:], strict=True):
            window.wipe_all()
            move()
            self._once(window, lambda: None)
        self.stop_target()
        for i in range(len(windows))[-last:]:
            # By the target where the bytes landed there.
            question = {"do": "compare", "case": case, "window": i}
            if not (windows[i].intact() if case["op"] == "read" else self._channel.ask(question)["intact"]):
                raise ValueError(f"{case['name']}: the bytes that arrived are not the bytes that were sent")
        return out

    def _warm_up(self, case: dict[str, Any], windows: list[Window], moves: list[Callable[[], None]]) -> None:
        """Goes through all windows once: what is touched for the first time costs page faults, not cache misses."""
        until = time.perf_counter() + case["seconds"]
        for k in range(max(_WARM_UPS, len(windows))):
            windows[k % len(windows)].wipe()
            self._once(windows[k % len(windows)], moves[k % len(windows)])
            if time.perf_counter() > until:
                return

    def _in_turn(self, case: dict[str, Any], windows: list[Window], moves: list[Callable[[], None]]) -> dict[str, Any]:
        """One batch after the other; wiping is outside the clock."""
        samples: list[int] = []
        late = cpu = 0
        sleeps = self._plan["wait"] == "sleep"
        until = time.perf_counter() + case["seconds"]
        for k in range(case["iterations"]):
            if k >= _BATCHES_MIN and time.perf_counter() > until:
                break
            at = k % len(windows)
            windows[at].wipe()
            if sleeps:
                self._let_sleep()
            cpu -= self._cpu_ns()
            nanoseconds, was_late = self._once(windows[at], moves[at])
            cpu += self._cpu_ns()
            samples.append(nanoseconds)
            late += was_late
        return {**percentiles(samples), "cpu_s": cpu / 1e9, "batches": len(samples), "late": late}

    def _at_once(self, case: dict[str, Any], windows: list[Window], moves: list[Callable[[], None]]) -> dict[str, Any]:
        """A thread per window, each with its own batches one after the other.

        Of one entry it is the latency that counts, as each thread sees it. Of larger batches it is the rate of all
        together: the clock runs from the start of the first to the end of the last, and wiping is inside it.
        """
        samples: list[list[int]] = [[] for _ in windows]
        late = [0] * len(windows)
        failed: list[BaseException] = []
        together = threading.Barrier(len(windows))
        until = time.perf_counter() + case["seconds"]

        def go(i: int) -> None:
            try:
                together.wait()
                while len(samples[i]) < case["iterations"]:
                    if len(samples[i]) >= _BATCHES_MIN and time.perf_counter() > until:
                        return
                    windows[i].wipe()
                    nanoseconds, was_late = self._once(windows[i], moves[i])
                    samples[i].append(nanoseconds)
                    late[i] += was_late
            except BaseException as error:
                failed.append(error)
                together.abort()

        threads = [threading.Thread(target=go, args=(i,)) for i in range(len(windows))]
        cpu, start = -self._cpu_ns(), time.perf_counter_ns()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall, cpu = time.perf_counter_ns() - start, cpu + self._cpu_ns()
        if failed:
            raise failed[0]
        out = percentiles([sample for each in samples for sample in each])
        batches = sum(len(each) for each in samples)
        if case["count"] > 1:
            out["p50_us"] = wall / 1e3 / (batches / len(windows))
        return {**out, "cpu_s": cpu / 1e9, "batches": batches, "late": sum(late)}

    def submission(self, case: dict[str, Any], source: Memory, sink: Memory) -> dict[str, Any]:
        """What one call costs the caller: a batch built and submitted, and a prepared one posted again."""
        self.spin_target()
        window = Window(case, 0, source, sink)
        submit, repost, wait = self._contestant.submission(window.entries)
        out: dict[str, Any] = {}
        for name, post in (("submit", submit), ("repost", repost)):
            samples = []
            for k in range(-_WARM_UPS, case["iterations"]):
                start = time.perf_counter_ns()
                ticket = post()
                end = time.perf_counter_ns()
                wait(ticket)
                if k >= 0:
                    samples.append(end - start)
            out[f"{name}_us"] = percentiles(samples)["p50_us"]
        self.stop_target()
        return out


def _mapped(path: str, nbytes: int) -> Memory:
    fd = os.open(path, os.O_RDWR)
    try:
        return Memory(fd, nbytes)
    finally:
        os.close(fd)


def _run_initiator(plan: dict[str, Any], make: type[Contestant], channel: Channel, memory: dict[str, Memory]) -> None:
    contestant = make(plan, memory["initiator_source"], memory["initiator_sink"])
    other = channel.ask({**contestant.hello(), "pid": os.getpid()})
    if other["landing"]:
        memory["target_sink"] = _mapped(other["landing"], plan["pool"])
    initiator = Initiator(plan, contestant, channel, other["pid"])
    initiator.spin_target()
    contestant.connect(other)
    initiator.stop_target()
    print(json.dumps({"event": "start", "versions": contestant.versions()}), flush=True)
    for case in plan["cases"]:
        if case["op"] == "read":
            source, sink = memory["target_source"], memory["initiator_sink"]
        else:
            source, sink = memory["initiator_source"], memory["target_sink"]
        try:
            result = (initiator.submission if case["kind"] == "submission" else initiator.transfer)(case, source, sink)
        except NotImplementedError:
            continue
        print(json.dumps({"event": "case", "case": case["name"], **result}), flush=True)
    print(json.dumps({"event": "end"}), flush=True)
    channel.send({"do": "quit"})


def _run_target(plan: dict[str, Any], make: type[Contestant], channel: Channel, memory: dict[str, Memory]) -> None:
    contestant = make(plan, memory["target_source"], memory["target_sink"])
    board = Memory(plan["board"], mmap.PAGESIZE).words
    other = channel.receive()
    landing = contestant.landing()
    if landing:
        memory["target_sink"] = _mapped(landing, plan["pool"])
    channel.send({**contestant.hello(), "pid": os.getpid(), "landing": landing})
    contestant.connect(other)
    polls = plan["wait"] == "poll"
    while True:
        message = channel.receive()
        if message["do"] == "quit":
            return
        if message["do"] == "compare":
            window = Window(message["case"], message["window"], memory["initiator_source"], memory["target_sink"])
            channel.send({"intact": window.intact()})
            continue
        # "drive": a poller runs its engine until told by the board; a sleeper leaves that to the engine's own threads.
        while polls and not board[0]:
            contestant.progress()
        channel.receive()
        channel.send({"stopped": True})


def main(make: type[Contestant]) -> None:
    plan: dict[str, Any] = json.loads(sys.argv[1])
    os.sched_setaffinity(0, {plan["core"]})
    memory = {name: Memory(fd, plan["pool"]) for name, fd in plan["memory"].items()}
    run = _run_initiator if plan["role"] == "initiator" else _run_target
    run(plan, make, Channel(plan["control"]), memory)
    # Interpreter exit is not part of the contest, and one peer is known to crash in it.
    os._exit(0)
