"""What tasks of an event loop begin leaves together, also when an earlier loop ended before it could say so."""

from __future__ import annotations

import asyncio
from typing import cast

from moontide import _core
from moontide.store.procedures import LetGo


class Client:
    times = 0

    def let_go(self) -> None:
        self.times += 1


def test_once_per_turn_of_the_loop() -> None:
    client = Client()
    going = LetGo(cast(_core.StoreClient, client))

    async def begin_many() -> None:
        for _ in range(10):
            going.soon()
        assert client.times == 0
        await asyncio.sleep(0)
        assert client.times == 1
        going.soon()
        await asyncio.sleep(0)
        assert client.times == 2

    asyncio.run(begin_many())


def test_a_loop_that_ended_before_its_next_turn_holds_up_nobody() -> None:
    client = Client()
    going = LetGo(cast(_core.StoreClient, client))
    first = asyncio.new_event_loop()

    async def begin_and_end() -> None:
        going.soon()
        first.stop()

    begun = first.create_task(begin_and_end())
    first.run_forever()
    first.close()
    assert begun.done()
    assert client.times == 0

    async def begin() -> None:
        going.soon()
        await asyncio.sleep(0)

    asyncio.run(begin())
    assert client.times == 1
