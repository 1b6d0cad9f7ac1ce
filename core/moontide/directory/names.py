"""The blocking door to a directory: one daemon thread with an event loop of its own, made at the first use."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from moontide.directory.base import LIST_LIMIT, Directory
from moontide.directory.publication import Publication
from moontide.directory.record import Record
from moontide.errors import Closed

__all__ = ["Names"]

logger = logging.getLogger("moontide.directory")

T = TypeVar("T")
_CLOSE_SECONDS = 1.0


class Names:
    """`Directory` for code without an event loop. All methods may be called from any thread, and they wait.

    `url` is as for `connect`, `timeout` in seconds per call. Errors are those of `Directory`, and Closed.
    A forked child has no thread behind its copy: it answers Closed there.
    """

    def __init__(self, url: str, *, timeout: float = 2.0) -> None:
        self._url = url
        self._timeout = timeout
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._directory: Directory | None = None
        self._ended = asyncio.Event()
        self._changing = asyncio.Lock()
        self._publications: dict[str, Publication] = {}

    def publish(self, name: str, address: str, instance: str, *, ttl: float) -> Publication:
        """Claims the name and renews it until it is withdrawn; see `Directory.publish` and `Publication`.

        `ttl` is in seconds. Waits for the first answer. A name that this object has published already is claimed anew.
        """
        return self.run(self._publish(Record(name=name, address=address, instance=instance), ttl))

    def withdraw(self, name: str) -> None:
        """Ends what `publish` began. Nothing happens when it did not."""
        self.run(self._withdraw(name))

    def lookup(self, name: str) -> Record:
        """See `Directory.lookup`."""
        return self.run(self.directory().lookup(name))

    def list(self, prefix: str = "", *, start_after: str = "", limit: int = LIST_LIMIT) -> list[Record]:
        """See `Directory.list`."""
        return self.run(self.directory().list(prefix, start_after=start_after, limit=limit))

    def directory(self) -> Directory:
        """The asynchronous form, for coroutines that `submit` runs. Invalid, Unsupported, Closed."""
        with self._lock:
            if self._closed or self._pid != os.getpid():
                raise Closed("the directory's door is closed")
            if self._directory is None:
                self._start()
            assert self._directory is not None
            return self._directory

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it in the door's event loop and waits. Closed."""
        try:
            return self.submit(work).result()
        except concurrent.futures.CancelledError:
            raise Closed("the directory's door was closed meanwhile") from None

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Runs it in the door's event loop. Closed."""
        try:
            self.directory()
            assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise

    def close(self) -> None:
        """Withdraws what was published, waiting a second at most; a record left behind ends by itself. Idempotent."""
        with self._lock:
            if self._closed or self._pid != os.getpid():
                self._closed = True
                return
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(self._ended.set)
        thread.join(_CLOSE_SECONDS * 3)

    def _start(self) -> None:
        """Under the lock."""
        from moontide.directory import connect

        ready: concurrent.futures.Future[Directory] = concurrent.futures.Future()

        async def live() -> None:
            self._loop = asyncio.get_running_loop()
            try:
                directory = connect(self._url, timeout=self._timeout)
            except BaseException as error:
                ready.set_exception(error)
                return
            ready.set_result(directory)
            await self._ended.wait()
            await self._leave(directory)

        self._thread = threading.Thread(target=lambda: asyncio.run(live()), name="moontide-directory", daemon=True)
        self._thread.start()
        self._directory = ready.result()

    async def _leave(self, directory: Directory) -> None:
        leaving = [asyncio.ensure_future(publication.withdraw()) for publication in self._publications.values()]
        if leaving:
            _, late = await asyncio.wait(leaving, timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()
            for outcome in await asyncio.gather(*leaving, return_exceptions=True):
                if outcome is not None:
                    logger.info("a segment was not withdrawn and ends by itself: %r", outcome)
        await directory.close()

    async def _publish(self, record: Record, ttl: float) -> Publication:
        assert self._directory is not None
        publication = Publication(self._directory, record, ttl)
        async with self._changing:
            await self._end(record.name)
            await publication.start()
            self._publications[record.name] = publication
        return publication

    async def _withdraw(self, name: str) -> None:
        async with self._changing:
            await self._end(name)

    async def _end(self, name: str) -> None:
        publication = self._publications.pop(name, None)
        if publication is not None:
            await publication.withdraw()
