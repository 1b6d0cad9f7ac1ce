"""The one place of the tests that sleeps: between two looks at a condition, never instead of one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], seconds: float = 10, what: str = "the condition") -> T:
    """Polls until the condition is true and returns its value; fails the test at the deadline."""
    deadline = time.monotonic() + seconds
    pause = 0.001
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not hold within {seconds:g} s")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    return value


async def wait_for_async(condition: Callable[[], T], seconds: float = 10, what: str = "the condition") -> T:
    """The same without blocking the event loop."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not hold within {seconds:g} s")
        await asyncio.sleep(0.005)
    return value


async def wait_for_answer(question: Callable[[], Awaitable[T]], seconds: float = 10, what: str = "the answer") -> T:
    """Asks over and over until the answer is true."""
    deadline = time.monotonic() + seconds
    while not (answer := await question()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {seconds:g} s")
        await asyncio.sleep(0.02)
    return answer
