"""What `Store` and `AsyncStore` share: how they are made, and the batches that are started and waited for later."""

from __future__ import annotations

from collections.abc import Sequence

from moontide import _core
from moontide.access import resolve
from moontide.config import Config, load_config
from moontide.engine import Engine, Operation
from moontide.errors import Invalid, MoontideError
from moontide.observe.traces import Trace, trace_text
from moontide.store.options import placement, retained
from moontide.store.procedures import Key, LetGo, Procedures, encode_key, operation_of

__all__ = ["Part", "StoreBase"]

Part = tuple[int, int]
"""(address, bytes) inside registered memory of the store's engine"""

_EMBEDDED_BYTES = 256 << 20
_COMMITS = {"sync": False, "async": True}


class StoreBase:
    """What `Store` and `AsyncStore` share; `Store` says what the arguments are."""

    _gathers = False

    def __init__(
        self, master: str | None = None, *, lend: int = 0, engine: Engine | None = None, config: Config | None = None
    ) -> None:
        config = config if config is not None else engine.config if engine is not None else load_config()
        if master is None and lend == 0:
            lend = config.lend or _EMBEDDED_BYTES
        self._own_engine = engine is None
        self.engine = Engine(config=config) if engine is None else engine
        try:
            where = resolve(master, option="master") if master else ""
            self._client = _core.StoreClient(
                self.engine._runtime, where, lend, config.lease, config.eviction, self._gathers
            )
        except BaseException:
            if self._own_engine:
                self.engine.close()
            raise
        self._procedures = Procedures(self._client)
        self._let_go = LetGo(self._client)

    def put_parts(
        self,
        keys: Sequence[Key],
        parts: Sequence[Sequence[Part]],
        *,
        commit: str = "sync",
        prefix: bool = False,
        pin: str = "none",
        ttl: float | None = None,
        replicas: int = 1,
        prefer: Sequence[str] = (),
        avoid: Sequence[str] = (),
        trace: Trace = "",
    ) -> Operation[list[MoontideError | None]]:
        """Starts putting objects whose bytes lie in several places; returns at once.

        `parts`: per key its (address, bytes) in order, registered with the engine and unchanged until the operation is
        quiet. commit="async" is done when the bytes are placed; the pool learns of them soon after, over reconnects
        too. prefix=True: each object is worthless without the one before it, as blocks of a KV cache are; the pool
        then gives up the last ones first. `pin`, `ttl`, `replicas`, `prefer` and `avoid` are as for `Store.put`. The
        result has one item per key: None or the error of `Store.put`. At once: Denied (memory that is not registered),
        Invalid (a key, an option), Closed. `trace` is as for `Engine.read`.
        """
        if commit not in _COMMITS:
            raise Invalid(f"commit = {commit!r}: allowed are sync, async")
        raw = [encode_key(key) for key in keys]
        batch = self._client.put(
            raw,
            _as_lists(parts),
            _COMMITS[commit],
            registered=True,
            trace=trace_text(trace),
            prefix=prefix,
            retained=retained(pin, ttl),
            placement=placement(replicas, prefer, avoid),
        )
        self._client.let_go()
        return operation_of(batch)

    def get_parts(
        self, keys: Sequence[Key], parts: Sequence[Sequence[Part]], *, trace: Trace = ""
    ) -> Operation[list[MoontideError | None]]:
        """Starts reading objects into registered memory, each into its parts in order; returns at once.

        The parts of a key are (address, bytes), as for `put_parts`, and must add up to the object's length; else
        Invalid. NotFound is a miss: absent, evicted, or the bytes that came were not those of the put. At once: as
        `put_parts`.
        """
        raw = [encode_key(key) for key in keys]
        batch = self._client.get(raw, _as_lists(parts), registered=True, trace=trace_text(trace))
        self._client.let_go()
        return operation_of(batch)

    def counters(self) -> dict[str, int]:
        """What this client did: numbers of calls, misses and failures; bytes where the name says so."""
        return self._client.counters()

    def _close(self) -> None:
        self._client.close()
        if self._own_engine:
            self.engine.close()


def _as_lists(parts: Sequence[Sequence[Part]]) -> list[list[Part]]:
    return [list(each) for each in parts]
