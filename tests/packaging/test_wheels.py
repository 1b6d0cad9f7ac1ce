"""Wheels: built, looked into, installed into a fresh environment and tried there."""

from __future__ import annotations

import sys

import pytest

from scripts import wheels

RUNNING = f"{sys.version_info[0]}.{sys.version_info[1]}"


def test_an_interpreter_is_found_by_what_it_is() -> None:
    python = wheels.find_python(RUNNING)
    assert python is not None
    assert RUNNING in wheels.run(python, "--version")
    assert wheels.find_python("2.99") is None


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_wheel_works_in_a_fresh_environment(version: str) -> None:
    python = wheels.find_python(version)
    if python is None:
        pytest.skip(f"Python {version} is not on this machine")
    wheel = wheels.build(python, version)
    assert f"cp{version.replace('.', '')}" in wheel.name
    assert f"works with Python {version}" in wheels.check(python, version, wheel)
