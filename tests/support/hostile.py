"""Openings of connections that no honest peer makes, for every port."""

from __future__ import annotations

import random
import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

MAGIC = 0x314D544D
REQUEST = 1
MESSAGES = {"probe": 1, "hello": 2, "data stream": 3, "client hello": 300, "node hello": 320, "challenge": 0xF000}


def header(length: int, *, kind: int = REQUEST, message: int = 1, number: int = 1, magic: int = MAGIC) -> bytes:
    return struct.pack("<IIBBHIQ", magic, length, kind, 0, message, 0, number)


def openings(seed: int) -> Iterator[tuple[str, bytes]]:
    """(what it is, the bytes): noise, frames cut anywhere, lengths that nobody has memory for, nested ones too."""
    chance = random.Random(seed)
    for size in (1, 23, 24, 100, 5000, 70000):
        yield f"{size} random bytes", chance.randbytes(size)
        yield f"{size} random bytes behind the magic", struct.pack("<I", MAGIC) + chance.randbytes(size)
        yield f"{size} random bytes like TLS", b"\x16\x03\x01" + chance.randbytes(size)
    for name, message in MESSAGES.items():
        for length in (0, 1, 1 << 14, 1 << 24, (1 << 24) + 1, 1 << 31, (1 << 32) - 1):
            yield f"{name} of {length} bytes, not sent", header(length, message=message)
            yield f"{name} of {length} bytes, some sent", header(length, message=message) + chance.randbytes(100)
        for inner in (1 << 31, (1 << 32) - 1):
            body = struct.pack("<HHI", 1, 1, inner) + b"x" * 20
            yield f"{name} with {inner} bytes within", header(len(body), message=message) + body
        for inner in (1 << 63, (1 << 64) - 8):
            body = struct.pack("<HHQQ", 1, 1, inner, inner)
            yield f"{name} with {inner} within", header(len(body), message=message) + body
        whole = header(60, message=message) + chance.randbytes(60)
        for cut in range(1, len(whole), 7):
            yield f"{name} cut at {cut}", whole[:cut]


def assault(address: str, seed: int) -> int:
    """Makes every opening and closes half of them at once; how many there were. Never waits for an answer."""
    host, port = address.rsplit(":", 1)
    count = 0
    kept = []
    for _, opening in openings(seed):
        count += 1
        stranger = socket.create_connection((host.strip("[]"), int(port)), timeout=10)
        with suppress(ConnectionError):
            stranger.sendall(opening)
        if count % 2:
            stranger.close()
        else:
            kept.append(stranger)
    for stranger in kept:
        stranger.close()
    return count


@contextmanager
def descriptors(count: int) -> Iterator[int]:
    """How many of `count` this process, and those that it starts meanwhile, may open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = count + 200 if before[1] == resource.RLIM_INFINITY else min(count + 200, before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(most, before[0]), before[1]))
    try:
        yield min(count, most - 200)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def crowd(address: str, count: int) -> list[socket.socket]:
    """So many connections on which nothing is said."""
    host, port = address.rsplit(":", 1)
    made = []
    for _ in range(count):
        stranger = socket.socket(socket.AF_INET6 if host.startswith("[") else socket.AF_INET)
        stranger.settimeout(10)
        stranger.connect((host.strip("[]"), int(port)))
        made.append(stranger)
    return made


def ended(stranger: socket.socket, seconds: float) -> bool:
    """Whether the other end closes the connection in time, whatever it says before."""
    deadline = time.monotonic() + seconds
    with closing(stranger):
        while time.monotonic() < deadline:
            stranger.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                if not stranger.recv(65536):
                    return True
            except TimeoutError:
                return False
            except ConnectionError:
                return True
    return False


def resident_bytes(pid: int) -> int:
    """Memory of a process that is there now."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096
