"""The exception tree agrees with the codes of the native core."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from moontide import errors

CSRC = Path(__file__).resolve().parents[2] / "csrc"


def codes_of_header() -> dict[str, int]:
    text = (CSRC / "base" / "status.h").read_text()
    body = text[text.index("enum class Code") : text.index("};")]
    return {name: int(number) for name, number in re.findall(r"\bk(\w+) = (\d+)", body)}


def names_of_source() -> list[str]:
    text = (CSRC / "base" / "status.cpp").read_text()
    body = text[text.index("kNames[]") : text.index("};")]
    return re.findall(r'"([A-Z_]+)"', body)


def test_every_code_has_its_exception() -> None:
    codes = codes_of_header()
    names = names_of_source()
    assert codes.pop("Ok") == 0 and names[0] == "OK"
    assert len(codes) >= 18
    for name, number in codes.items():
        error = errors.from_code(number, "why")
        assert type(error).__name__ == name
        assert (error.number, error.code, str(error)) == (number, names[number], f"{names[number]}: why")
        assert name in errors.__all__
    assert len(codes) == len(errors.MoontideError.__subclasses__())


def test_unknown_code_is_internal_and_says_so() -> None:
    error = errors.from_code(999, "why")
    assert isinstance(error, errors.Internal)
    assert "999" in str(error) and "why" in str(error)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.TimedOut, TimeoutError),
        (errors.PeerLost, ConnectionError),
        (errors.Denied, PermissionError),
        (errors.Invalid, ValueError),
        (errors.NotFound, LookupError),
    ],
)
def test_usual_builtins_catch_them(kind: type[errors.MoontideError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise kind("x")


def test_canceled_is_not_asyncio_cancellation() -> None:
    assert not issubclass(errors.Canceled, asyncio.CancelledError)
