"""What an engine's Python object has for being looked at."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from moontide import _core
from moontide.config import Config
from moontide.observe.slow import SlowWatch

if TYPE_CHECKING:  # loaded by those who look
    from moontide.observe.dumps import EngineDump
    from moontide.observe.metrics import EngineMetrics

__all__ = ["ObservedEngine"]

_watched: weakref.WeakSet[ObservedEngine] = weakref.WeakSet()


def _dump_all() -> str:
    from moontide.observe.dumps import dumps_text

    return dumps_text([engine._runtime for engine in list(_watched)])


class ObservedEngine:
    """The part of `Engine` that measures, dumps and warns."""

    _runtime: _core.Runtime
    _slow_watch: SlowWatch | None = None

    def _start_watching(self, config: Config) -> None:
        if config.slow > 0:
            self._slow_watch = SlowWatch(self, self._runtime, config.slow)
        if config.dump_on_signal == "on":
            from moontide.observe.dumps import dump_on_signal

            dump_on_signal(_dump_all)
            _watched.add(self)

    def _stop_watching(self) -> None:
        _watched.discard(self)
        if self._slow_watch is not None and not self._runtime.closed:
            self._slow_watch.close()

    def metrics(self) -> EngineMetrics:
        """What was measured since the start: times per stage, path and peer, bytes, failures by cause. Closed."""
        from moontide.observe.metrics import read_metrics

        return read_metrics(self._runtime)

    def dump(self) -> EngineDump:
        """What is under way now, to find what is stuck; `moontide.observe.format_dump` makes text of it. Closed."""
        from moontide.observe.dumps import dump_engine

        return dump_engine(self._runtime)
