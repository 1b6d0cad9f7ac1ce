"""Keeps a published name alive: renewal until it is withdrawn or somebody newer has it."""

from __future__ import annotations

import asyncio
import logging
import random

from moontide.directory.base import Directory
from moontide.directory.record import Record, check_ttl
from moontide.errors import MoontideError, Stale

__all__ = ["Publication"]

logger = logging.getLogger("moontide.directory")

_RETRY_FIRST = 0.1


class Publication:
    """A name that this process has published. Lives in one event loop; what it is may be read anywhere.

    Those of an engine or of `Names` are started there, and ended there by `withdraw` with the name.

    `state` is "live"; "away" while the directory does not answer (the record may be gone; renewal goes on and brings
    it back); "superseded" when another instance has claimed the name since, for good; "withdrawn".
    """

    def __init__(self, directory: Directory, record: Record, ttl: float) -> None:
        self._directory = directory
        self.ttl = check_ttl(ttl)
        self.record = record
        self.state = "away"
        self.error: MoontideError | None = None
        """Why it is "away" or "superseded"."""
        self._ended = asyncio.Event()
        self._renewal: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The segment's name."""
        return self.record.name

    async def start(self) -> None:
        """Claims the name, and renews the claim from then on. Errors of `Directory.publish`."""
        self.record = await self._directory.publish(self.record, self.ttl)
        self.state = "live"
        self._renewal = asyncio.get_running_loop().create_task(self._renew())

    async def withdraw(self) -> None:
        """Ends the renewal and removes the record; errors of `Directory.withdraw`. Idempotent."""
        self._ended.set()
        if self._renewal is None:
            return
        renewal, self._renewal = self._renewal, None
        await asyncio.wait([renewal])  # not cancelled: one under way could arrive late and put the record back
        if self.state != "superseded":
            self.state = "withdrawn"
            await self._directory.withdraw(self.record)

    async def _ends_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._ended.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    async def _renew(self) -> None:
        period = self.ttl / 3
        pause = period
        while not await self._ends_within(pause * random.uniform(0.8, 1.0)):
            try:
                await self._directory.publish(self.record, self.ttl)
            except Stale as error:
                self.state, self.error = "superseded", error
                logger.warning("segment %s is not renewed any more: %s", self.name, error)
                return
            except MoontideError as error:
                if self.state != "away":
                    logger.warning("segment %s cannot be renewed now: %s", self.name, error)
                    pause = _RETRY_FIRST
                self.state, self.error = "away", error
                pause = min(period, pause * 2)
                continue
            if self.state == "away":
                logger.info("segment %s is renewed again", self.name)
            self.state, self.error, pause = "live", None, period
