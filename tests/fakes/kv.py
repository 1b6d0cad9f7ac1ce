"""An engine and a store inside one process, for tests of moontide.kv: same surface, plain copies, faults on demand."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from moontide.errors import AlreadyExists, Expired, MoontideError, NotFound, PeerLost, TimedOut, Unavailable


class FakeTransfer:
    """Runs when it is made, unless a gate keeps it from being done or quiet."""

    def __init__(self, results: Sequence[Exception | None], path: str = "self") -> None:
        self.results = list(results)
        self.path = path
        self.finish = threading.Event()
        self.settle = threading.Event()
        self.canceled = False

    def open_gates(self) -> FakeTransfer:
        self.finish.set()
        self.settle.set()
        return self

    @property
    def done(self) -> bool:
        return self.finish.is_set()

    @property
    def quiet(self) -> bool:
        return self.settle.is_set()

    def wait(self, timeout: float | None = None) -> list[Exception | None]:
        if not self.finish.wait(timeout):
            raise TimedOut("the gate is shut")
        return self.results

    def wait_quiet(self, timeout: float | None = None) -> None:
        if not self.settle.wait(timeout):
            raise TimedOut("not quiet")

    def cancel(self) -> None:
        self.canceled = True


class FakeReads(FakeTransfer):
    def wait(self, timeout: float | None = None) -> Any:
        for result in super().wait(timeout):
            if result is not None:
                raise result


class Fabric:
    """All engines of a test. ``faults`` maps a step's name to a callable that may raise or wait."""

    def __init__(self) -> None:
        self.engines: dict[str, FakeEngine] = {}
        self.faults: dict[str, Callable[[], None]] = {}
        self.opened = 0
        self.path_bytes: dict[str, int] = {}

    def step(self, name: str) -> None:
        fault = self.faults.get(name)
        if fault is not None:
            fault()


class FakePeer:
    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self.instance_id = str(id(engine))
        self.closed = False

    @property
    def open(self) -> bool:
        return not self.closed and not self._engine.dead

    @property
    def regions(self) -> dict[str, Any]:
        return {name: (self._engine, start, length) for name, (start, length) in self._engine.registered.items()}

    def _check(self) -> None:
        if self.closed or self._engine.dead:
            raise PeerLost("the peer is gone")

    def claim(self, hold_id: bytes, *, timeout: float | None = None) -> bytes:
        self._engine.fabric.step("claim")
        self._check()
        if hold_id not in self._engine.holds:
            raise NotFound(f"no hold {hold_id.hex()}")
        return self._engine.holds[hold_id]

    def release(self, hold_id: bytes, *, timeout: float | None = None) -> None:
        self._engine.fabric.step("release")
        self._check()
        if hold_id not in self._engine.holds:
            raise Expired(f"hold {hold_id.hex()} is over")
        self._engine.finish_hold(hold_id, "released")

    def close(self) -> None:
        self.closed = True


class FakeEngine:
    def __init__(self, fabric: Fabric, address: str) -> None:
        self.fabric = fabric
        self.address = address
        self.registered: dict[str, tuple[int, int]] = {}
        self.holds: dict[bytes, bytes] = {}
        self.ended: list[tuple[bytes, str]] = []
        self.dead = False
        self.read_gate: Callable[[FakeTransfer], None] = lambda transfer: None
        fabric.engines[address] = self

    def register(self, buffer_or_range: Any, *, name: str = "", readable: bool = True, writable: bool = False) -> None:
        self.registered[name] = buffer_or_range

    def open(self, address: str, *, timeout: float | None = None) -> FakePeer:
        self.fabric.step("open")
        engine = self.fabric.engines.get(address)
        if engine is None or engine.dead:
            raise Unavailable(f"nobody listens on {address}")
        self.fabric.opened += 1
        return FakePeer(engine)

    def read(self, entries: Iterable[tuple[int, Any, int, int]], *, timeout: float | None = None) -> FakeTransfer:
        result: Exception | None = None
        try:
            self.fabric.step("read")
        except MoontideError as error:
            result = error
        for local, (engine, start, size), offset, length in entries:
            assert offset >= 0 and offset + length <= size
            if engine.dead:
                result = PeerLost("the peer died")
            if result is None:
                ctypes.memmove(local, start + offset, length)
        transfer = FakeReads([result], "fake").open_gates()
        self.read_gate(transfer)
        return transfer

    def hold(self, hold_id: bytes, payload: bytes, *, ttl: float) -> None:
        self.fabric.step("hold")
        self.holds[hold_id] = payload

    def end_hold(self, hold_id: bytes) -> None:
        self.finish_hold(hold_id, "ended")

    def finish_hold(self, hold_id: bytes, reason: str) -> None:
        del self.holds[hold_id]
        self.ended.append((hold_id, reason))

    def drain_holds(self) -> list[tuple[bytes, str]]:
        ended, self.ended = self.ended, []
        return ended

    def stats(self) -> dict[str, int]:
        return {"bytes_read": self.fabric.opened, "bytes_fake": len(self.fabric.engines), **self.fabric.path_bytes}

    def close(self) -> None:
        self.dead = True


class FakeStore:
    """A dictionary. ``gate`` sees each put before it is done; ``down`` makes every call fail."""

    def __init__(self, objects: dict[bytes, bytes] | None = None) -> None:
        self.objects: dict[bytes, bytes] = {} if objects is None else objects
        self.gate: Callable[[FakeTransfer], None] | None = None
        self.before_exists: Callable[[], None] = lambda: None
        self.down = False
        self.calls: list[tuple[str, int]] = []

    def _check(self, name: str, count: int) -> None:
        self.calls.append((name, count))
        if self.down:
            raise Unavailable("the master is away")

    def exists_many(self, keys: Sequence[bytes]) -> list[bool]:
        self.before_exists()
        self._check("exists", len(keys))
        return [key in self.objects for key in keys]

    def put_parts(
        self,
        keys: Sequence[bytes],
        parts: Sequence[Sequence[tuple[int, int]]],
        *,
        commit: str = "sync",
        prefix: bool = False,
    ) -> FakeTransfer:
        self._check("put", len(keys))
        results: list[Exception | None] = []
        for key, pieces in zip(keys, parts, strict=True):
            results.append(AlreadyExists("there") if key in self.objects else None)
            self.objects.setdefault(key, b"".join(ctypes.string_at(address, length) for address, length in pieces))
        transfer = FakeTransfer(results)
        if self.gate is None:
            return transfer.open_gates()
        self.gate(transfer)
        return transfer

    def get_parts(self, keys: Sequence[bytes], parts: Sequence[Sequence[tuple[int, int]]]) -> FakeTransfer:
        self._check("get", len(keys))
        results: list[Exception | None] = []
        for key, pieces in zip(keys, parts, strict=True):
            data = self.objects.get(key)
            results.append(NotFound("evicted") if data is None else None)
            at = 0
            for address, length in pieces if data is not None else ():
                ctypes.memmove(address, (data or b"")[at : at + length], length)
                at += length
        return FakeTransfer(results, "fake").open_gates()

    def close(self) -> None:
        pass
