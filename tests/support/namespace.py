"""Runs a function of a test file on a host of its own: a network namespace with addresses off loopback that nobody else
reaches. `alone` here, `main` there."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable

from support.waiting import wait_for

ADDRESS = "10.77.0.1"
ADDRESS_6 = "fd77::1"

# Values of the kernel's headers.
_SIOCSIFFLAGS, _SIOCSIFADDR = 0x8914, 0x8916
_IFF_UP = 1


def alone(function: Callable[..., None], *arguments: str) -> None:
    """Calls it with the arguments in a process of its own, and fails with what that says when it fails."""
    code = function.__code__
    command = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-m", "support.namespace"]
    done = subprocess.run(
        [*command, code.co_filename, function.__name__, *arguments],
        cwd=os.path.dirname(os.path.dirname(__file__)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def _add_addresses() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
        address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(ADDRESS))
        fcntl.ioctl(control, _SIOCSIFADDR, struct.pack("16s16s", b"lo:1", address))
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as control:
        where = struct.pack("16sIi", socket.inet_pton(socket.AF_INET6, ADDRESS_6), 128, socket.if_nametoindex("lo"))
        fcntl.ioctl(control, _SIOCSIFADDR, where)
    wait_for(_usable, what=ADDRESS_6)  # the kernel looks first whether somebody else has it


def _usable() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind((ADDRESS_6, 0))
        except OSError:
            return False
    return True


def main() -> None:
    path, name, *arguments = sys.argv[1:]
    _add_addresses()
    spec = importlib.util.spec_from_file_location("alone", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    getattr(module, name)(*arguments)


if __name__ == "__main__":
    main()
