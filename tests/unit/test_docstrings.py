"""The public doors say what they do: a docstring each, with the unit of every time and length that they take."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator

import pytest

from moontide import errors

DOORS = [
    "moontide.engine",
    "moontide.store",
    "moontide.errors",
    "moontide.config",
    "moontide.directory",
    "moontide.events",
]
SECONDS = {"timeout", "ttl", "seconds"}
# "As for `x`" and "See `X.y`" send the reader to where it is said.
_SENT_ON = re.compile(r"\b(?:[Ss]ee|[Aa]s(?: for)?|[Oo]f) `")


def members(name: str) -> Iterator[tuple[str, object]]:
    """(dotted name, object) of what a door exports and of the public methods and properties of its classes."""
    door = importlib.import_module(name)
    for exported in door.__all__:
        thing = getattr(door, exported)
        if not (inspect.isclass(thing) or inspect.isfunction(thing)) or thing.__module__ == "moontide._core":
            continue
        yield f"{name}.{exported}", thing
        if inspect.isclass(thing):
            for member, value in inspect.getmembers(thing, lambda v: inspect.isfunction(v) or isinstance(v, property)):
                if not member.startswith("_") and not _foreign(value):
                    yield f"{name}.{exported}.{member}", value


def _foreign(value: object) -> bool:
    function = value.fget if isinstance(value, property) else value
    return not str(getattr(function, "__module__", "")).startswith("moontide")


def said(thing: object) -> str:
    return inspect.cleandoc(getattr(thing, "__doc__", None) or "")


def lacking(thing: object) -> Iterator[str]:
    """What the docstring of a class, function or property does not say and has to."""
    text = said(thing)
    if _SENT_ON.search(text):
        return
    if len(text.split()) < 3:
        yield "a sentence"
    if not inspect.isfunction(thing):
        return
    parameters = set(inspect.signature(thing).parameters)
    if parameters & SECONDS and "second" not in text:
        yield "seconds"
    if any("bytes" in parameter for parameter in parameters) and "bytes" not in text:
        yield "bytes"


ALL = [item for door in DOORS for item in members(door)]


@pytest.mark.parametrize(("name", "thing"), ALL, ids=[name for name, _ in ALL])
def test_it_says_what_it_does(name: str, thing: object) -> None:
    assert not list(lacking(thing))


def test_what_is_missing_is_noticed() -> None:
    def silent(timeout: float) -> None: ...

    def unitless(timeout: float, nbytes: int) -> None:
        """Waits for so long."""

    def whole(timeout: float, nbytes: int) -> None:
        """Waits `timeout` seconds for `nbytes` bytes."""

    assert list(lacking(silent)) == ["a sentence", "seconds"]
    assert list(lacking(unitless)) == ["seconds", "bytes"]
    assert not list(lacking(whole))


def test_the_doors_are_all_there() -> None:
    names = {name for name, _ in ALL}
    assert {"moontide.engine.Engine.read", "moontide.engine.Transfer.wait", "moontide.store.Store.put"} <= names
    assert len(names) > 100


@pytest.mark.parametrize("name", [name for name, thing in ALL if inspect.isfunction(thing)])
def test_errors_that_are_named_are_errors(name: str) -> None:
    """In a sentence "TimedOut, PeerLost: ..." each is a class of `moontide.errors`."""
    text = said(dict(ALL)[name])
    for word in re.findall(r"(?:^|\. )([A-Z][a-z]+[A-Z][a-zA-Z]*)\b(?=[,;:.( ])", text, re.MULTILINE):
        assert word in errors.__all__, f"{name} names {word}"
