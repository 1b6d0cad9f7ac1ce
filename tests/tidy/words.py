"""Words and calls that have no place in the project's files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tidy.sources import Source

# Written in pieces, so that this file does not name them.
_HOSTS = ["py" + "pi.org", "python" + "hosted.org", "deb." + "debian.org", "npm" + "js.org", "pytorch" + ".org"]
_PLACES = ["/wo" + "rk/", "/ro" + "ot/", "/opt/" + "wheels", "../sha" + "red", ".lib" + "rary/", "/ho" + "me/"]
_UNFINISHED = ["TO" + "DO", "FIX" + "ME", "XX" + "X"]
_SILENCED = ["no" + "qa", "NO" + "LINT", "pragma: no " + "cover", "pylint: dis" + "able", "fmt: " + "off"]
_FOREIGN = ["anth" + "ropic", "cla" + "ude", "chat" + "gpt", "co-authored" + "-by", "sub" + "agent"]
BANNED = re.compile(
    "|".join(re.escape(word) for word in [*_HOSTS, *_PLACES])
    + "|"
    + "|".join(rf"\b{re.escape(word)}\b" for word in [*_UNFINISHED, *_SILENCED])
    + "|(?i:"
    + "|".join(re.escape(word) for word in _FOREIGN)
    + ")"
)
# The installer falls back to PyTorch's own index, by its address; nothing else names a host.
EXCEPTIONS = {("scripts/install_vllm.py", _HOSTS[-1])}
BARE_IGNORE = re.compile(r"#\s*type:\s*ignore(?!\[)")

ENVIRONMENT_CPP = re.compile(r"\b(?:secure_)?getenv\s*\(|\benviron\b")
ENVIRONMENT_PYTHON = re.compile(r"\bos\.(?:environ|getenv|environb|putenv)\b|from os import .*\b(?:environ|getenv)\b")
ENVIRONMENT_READER = "core/moontide/config.py"

# What is received is never turned into objects of the sender's choice, nor run.
UNPICKLING = re.compile(
    r"\bimport (?:pickle|marshal|shelve|dill|cloudpickle)\b|\bfrom (?:pickle|marshal|shelve|dill|cloudpickle) import\b"
    r"|\btorch\.load\(|(?<![.\w])(?:eval|exec)\("
)

SLEEP_PYTHON = re.compile(r"\btime\.sleep\(|\basyncio\.sleep\((?!0\))|from time import .*\bsleep\b")
SLEEP_CPP = re.compile(r"\bsleep_(?:for|until)\s*\(|\b(?:u|nano)?sleep\s*\(")
SLEEPER = "tests/support/waiting.py"


def _lines(source: Source, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(source.text.splitlines(), 1):
        for match in pattern.finditer(line):
            yield number, match[0]


def check_words(source: Source) -> Iterator[str]:
    if source.path == "LICENSE":
        return
    for number, word in _lines(source, BANNED):
        if (source.path, word) not in EXCEPTIONS:
            yield f"{source.path}:{number}: {word!r}"
    if source.python:
        for number, _ in _lines(source, BARE_IGNORE):
            yield f"{source.path}:{number}: a type error is ignored without naming it"


def check_environment(source: Source) -> Iterator[str]:
    """Only the configuration reads the environment; tests, the demo and scripts set it for their children."""
    if not source.path.startswith(("core/", "plugins/", "csrc/")) or source.path == ENVIRONMENT_READER:
        return
    for number, call in _lines(source, ENVIRONMENT_CPP if source.cpp else ENVIRONMENT_PYTHON):
        yield f"{source.path}:{number}: {call}: only {ENVIRONMENT_READER} reads the environment"


def check_unpickling(source: Source) -> Iterator[str]:
    if not source.python or not source.path.startswith(("core/", "plugins/")):
        return
    for number, call in _lines(source, UNPICKLING):
        yield f"{source.path}:{number}: {call}: nothing is unpickled or run here"


def check_sleep(source: Source) -> Iterator[str]:
    if not source.test or source.path == SLEEPER or not (source.cpp or source.python):
        return
    for number, call in _lines(source, SLEEP_CPP if source.cpp else SLEEP_PYTHON):
        yield f"{source.path}:{number}: {call}...): wait for a condition, see {SLEEPER}"
