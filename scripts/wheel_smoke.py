"""Whether an installed wheel works: run by the interpreter of an environment that has it, outside the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import moontide

SIZE = 1 << 20
# What reads of the peer's memory may use → the path that carries them. The peer lends one region in a memfd and one on
# its heap.
PATHS = [("shm", "arena", "shm"), ("cma", "heap", "cma"), ("off", "heap", "tcp")]


def check_package() -> None:
    place = Path(moontide.__file__).resolve()
    assert place.is_relative_to(Path(sys.prefix).resolve()), f"{place} is not what the wheel installed"
    assert (place.parent / "py.typed").exists()


def check_transfers() -> None:
    data = bytes(range(256)) * (SIZE // 256)
    for local_reads, region, path in PATHS:
        config = moontide.load_config({"local_reads": local_reads}, environ={})
        with moontide.Engine(config=config) as owner, moontide.Engine(config=config) as reader:
            arena = owner.allocate(SIZE, name="arena")
            heap = bytearray(data)
            arena.buffer[:] = data
            owner.register(heap, name="heap")
            target = reader.allocate(SIZE, name="target")
            transfer = reader.read([(target, reader.open(owner.address).region(region), 0, SIZE)])
            transfer.wait(30)
            assert transfer.path == path, f"{transfer.path} carried it, not {path}"
            assert bytes(target.buffer) == data, f"wrong bytes by {path}"


def check_store() -> None:
    with moontide.Store() as store:
        store.put(b"key", b"value" * 1000)
        assert store.get(b"key") == b"value" * 1000


def check_command() -> None:
    command = Path(sys.prefix) / "bin" / "moontide"
    for arguments, expected in ((["config"], "listen = "), (["topology", "--json"], '"cpu:0"')):
        result = subprocess.run([str(command), *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0 and expected in result.stdout, result.stdout + result.stderr


def main() -> None:
    check_package()
    check_transfers()
    check_store()
    check_command()
    print(f"moontide {moontide.__version__} works with Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
