"""`moontide doctor`: recorded systems and what is said about them, the reading of files, and the command itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moontide.config import proxy_variables
from moontide.doctor import Finding, HugePages, Library, Nic, Port, Server, System, examine
from moontide.doctor.probe import _huge_pages, _nics, _privileges
from support.directory_servers import MasterServer
from support.pool_process import free_port

CUDA = Library(name="libcuda.so.1", purpose="NVIDIA GPUs")
IBVERBS = Library(name="libibverbs.so.1", purpose="RDMA")
HEALTHY = System(host_addresses=["192.0.2.1"], nics=[Nic(name="eth0", mtu=1500)], libraries=[CUDA, IBVERBS])

# As `moontide doctor --facts` has it in a container with its runtime's defaults, which was not given the GPUs' library.
CONTAINER = b"""{"host_name":"3f2a","host_addresses":["172.17.0.2"],
"nics":[{"name":"eth0","mtu":1500,"physical":false}],
"clock_synchronized":null,"clock_error":"Operation not permitted","kernel":"5.15.0-91-generic",
"io_uring_error":"Operation not permitted","io_uring_disabled":null,"ptrace_scope":1,
"cross_memory_error":"Operation not permitted","capabilities":[],"seccomp":true,"memlock_bytes":65536,
"open_files":1024,"open_files_max":1048576,"shm_bytes":67108864,"shm_free_bytes":67108864,
"proxies":{"http_proxy":"http://***@proxy.example:3128","no_proxy":"10.0.0.0/8"},
"libraries":[{"name":"libcuda.so.1","purpose":"NVIDIA GPUs","missing":true,"devices":["nvidia0","nvidia1"],
"error":"libcuda.so.1: cannot open shared object file: No such file or directory"}]}"""


def changed(**facts: Any) -> System:
    return msgspec.structs.replace(HEALTHY, **facts)


def library(**facts: Any) -> System:
    return changed(libraries=[msgspec.structs.replace(CUDA, **facts)])


def rdma(providers: int) -> System:
    return changed(libraries=[msgspec.structs.replace(IBVERBS, devices=["mlx5_0"])], rdma_providers=providers)


def test_nothing_is_wrong_with_a_healthy_system() -> None:
    findings = examine(HEALTHY)
    assert {finding.status for finding in findings} == {"ok"}
    assert {finding.check for finding in findings} == {
        "host name",
        "mtu",
        "proxies",
        "clock",
        "kernel",
        "cross-memory reads",
        "locked memory",
        "open files",
        "shared memory",
        "huge pages",
        "io_uring",
        "device library",
    }


CASES: list[tuple[System, str, str, list[str]]] = [
    # facts, check, status, words of the text and the remedy
    (changed(host_addresses=["127.0.1.1"]), "host name", "warn", ["127.0.1.1", "/etc/hosts"]),
    (changed(host_addresses=["127.0.0.1", "::1"]), "host name", "warn", ["themselves"]),
    (changed(host_addresses=["127.0.1.1", "10.0.0.1"]), "host name", "ok", ["10.0.0.1"]),
    (changed(host_addresses=[], host_error="Name or service not known"), "host name", "warn", ["not resolve"]),
    (
        changed(ports=[Port(option="listen", address="127.0.0.1:7700", error="Address already in use")]),
        "port",
        "fail",
        ["listen = 127.0.0.1:7700", "sport = :7700"],
    ),
    (
        changed(ports=[Port(option="listen", address="127.0.0.1:80", error="Permission denied")]),
        "port",
        "fail",
        ["above 1023"],
    ),
    (
        changed(ports=[Port(option="listen", address="10.9.9.9:80", error="Cannot assign requested address")]),
        "port",
        "fail",
        ["no address of this host"],
    ),
    (changed(ports=[Port(option="listen", address="127.0.0.1:7700")]), "port", "ok", ["free"]),
    (
        changed(servers=[Server(option="master", address="10.0.0.2:7700", error="Connection refused")]),
        "server",
        "fail",
        ["master = 10.0.0.2:7700", "nothing listens"],
    ),
    (
        changed(servers=[Server(option="master", address="10.0.0.2:7700", error="timed out")]),
        "server",
        "fail",
        ["firewall"],
    ),
    (
        changed(servers=[Server(option="master", address="x.invalid:1", error="Name or service not known")]),
        "server",
        "fail",
        ["does not resolve"],
    ),
    (changed(servers=[Server(option="master", address="10.0.0.2:7700")]), "server", "ok", ["answers"]),
    (changed(nics=[Nic(name="a", mtu=1500), Nic(name="b", mtu=9000)]), "mtu", "warn", ["a 1500, b 9000", "ping"]),
    (
        changed(nics=[Nic(name="a", mtu=9000), Nic(name="docker0", mtu=1500, physical=False)]),
        "mtu",
        "ok",
        ["a 9000"],
    ),
    (changed(nics=[]), "mtu", "warn", ["loopback"]),
    (changed(proxies={"http_proxy": "http://p:1"}), "proxies", "warn", ["127.0.0.1 and localhost", "http_proxy"]),
    (
        changed(proxies={"HTTPS_PROXY": "http://p:1", "no_proxy": "localhost"}),
        "proxies",
        "warn",
        ["without 127.0.0.1 in"],
    ),
    (changed(proxies={"http_proxy": "http://p:1", "NO_PROXY": "127.0.0.1, localhost"}), "proxies", "ok", ["out"]),
    (changed(proxies={"http_proxy": "http://p:1", "no_proxy": "127.0.0.0/8,localhost"}), "proxies", "ok", ["out"]),
    (changed(proxies={"http_proxy": "http://p:1", "no_proxy": "*"}), "proxies", "ok", ["out"]),
    (changed(proxies={"no_proxy": "x"}), "proxies", "ok", ["none"]),
    (changed(clock_synchronized=False), "clock", "warn", ["not synchronized", "chrony"]),
    (changed(clock_synchronized=None, clock_error="nope"), "clock", "warn", ["nope"]),
    (changed(pidfd_error="Function not implemented", kernel="4.19"), "kernel", "warn", ["4.19", "5.3", "newer kernel"]),
    (changed(pidfd_error="Function not implemented", seccomp=True), "kernel", "warn", ["seccomp"]),
    (changed(memfd_error="Invalid argument"), "kernel", "fail", ["F_SEAL_FUTURE_WRITE", "no memory can be lent"]),
    (changed(ptrace_scope=1), "cross-memory reads", "warn", ["ptrace_scope = 1", "descendants", "tcp", "sysctl"]),
    (changed(ptrace_scope=2), "cross-memory reads", "warn", ["administrators"]),
    (changed(ptrace_scope=2, capabilities=["CAP_SYS_PTRACE"]), "cross-memory reads", "ok", []),
    (changed(ptrace_scope=3, capabilities=["CAP_SYS_PTRACE"]), "cross-memory reads", "warn", ["nobody", "reboot"]),
    (changed(ptrace_scope=None), "cross-memory reads", "ok", []),
    (changed(cross_memory_error="Operation not permitted"), "cross-memory reads", "warn", ["SYS_PTRACE"]),
    (changed(memlock_bytes=65536), "locked memory", "warn", ["64 KiB", "ulimit -l", "LimitMEMLOCK"]),
    (changed(memlock_bytes=65536, capabilities=["CAP_IPC_LOCK"]), "locked memory", "ok", ["CAP_IPC_LOCK"]),
    (changed(memlock_bytes=8 << 30), "locked memory", "ok", ["8 GiB"]),
    (changed(open_files=1024, open_files_max=4096), "open files", "warn", ["1024", "ulimit -n 4096"]),
    (changed(open_files=64, open_files_max=64), "open files", "fail", ["64", "LimitNOFILE"]),
    (changed(shm_bytes=None, shm_free_bytes=None), "shared memory", "warn", ["no /dev/shm"]),
    (changed(shm_bytes=64 << 20, shm_free_bytes=64 << 20), "shared memory", "warn", ["64 MiB", "--shm-size"]),
    (changed(shm_free_bytes=1 << 20), "shared memory", "warn", ["1 MiB free", "ls -l"]),
    (changed(huge_pages=[HugePages(size=2 << 20, total=8, free=3)]), "huge pages", "ok", ["3 of 8 of 2 MiB"]),
    (
        changed(io_uring_error="Operation not permitted", io_uring_disabled=2),
        "io_uring",
        "ok",
        ["io_uring_disabled = 2"],
    ),
    (changed(io_uring_error="Operation not permitted", seccomp=True), "io_uring", "ok", ["seccomp"]),
    (changed(io_uring_error="Function not implemented"), "io_uring", "ok", ["5.1"]),
    (library(missing=True, error="x"), "device library", "ok", ["no libcuda.so.1", "no device needs it"]),
    (library(missing=True, error="x", devices=["nvidia0"]), "device library", "warn", ["libcuda.so.1", "nvidia0"]),
    (library(error="libfoo.so.2: cannot open"), "device library", "warn", ["does not load", "libfoo.so.2"]),
    (rdma(0), "rdma", "warn", ["0 usable RDMA devices of 1", "provider files", "ibverbs-providers"]),
    (rdma(3), "rdma", "ok", ["1 devices"]),
]


@pytest.mark.parametrize(("system", "check", "status", "words"), CASES)
def test_what_is_said_about_a_system(system: System, check: str, status: str, words: list[str]) -> None:
    (finding,) = [finding for finding in examine(system) if finding.check == check]
    assert finding.status == status, finding
    for word in words:
        assert word in f"{finding.text} {finding.remedy}"
    assert status == "ok" or finding.remedy, "what is wrong has a remedy"
    others = [other for other in examine(system) if other.check != check]
    assert {other.status for other in others} == {"ok"}


def test_a_container_with_its_runtimes_defaults() -> None:
    findings = examine(msgspec.json.decode(CONTAINER, type=System))
    wrong = {finding.check for finding in findings if finding.status == "warn"}
    assert wrong == {
        "proxies",
        "clock",
        "cross-memory reads",
        "locked memory",
        "open files",
        "shared memory",
        "device library",
    }
    assert not [finding for finding in findings if finding.status == "fail"]


# --- how the machine is read ---


def test_interfaces_are_read_as_sysfs_has_them(tmp_path: Path) -> None:
    def nic(name: str, mtu: int, kind: int = 1, state: str = "up", folder: str = "device") -> None:
        place = tmp_path / name
        (place / folder).mkdir(parents=True)
        for file, text in (("mtu", mtu), ("type", kind), ("operstate", state)):
            (place / file).write_text(f"{text}\n")

    nic("eth0", 9000)
    nic("eth1", 1500, state="down")
    nic("veth0", 1400, state="unknown", folder="queues")
    nic("docker0", 1500, folder="bridge")
    nic("lo", 65536, kind=772, state="unknown", folder="queues")
    assert _nics(tmp_path) == [Nic(name="eth0", mtu=9000), Nic(name="veth0", mtu=1400, physical=False)]


def test_huge_pages_are_read_as_sysfs_has_them(tmp_path: Path) -> None:
    place = tmp_path / "hugepages-2048kB"
    place.mkdir()
    (place / "nr_hugepages").write_text("512\n")
    (place / "free_hugepages").write_text("12\n")
    assert _huge_pages(tmp_path) == [HugePages(size=2 << 20, total=512, free=12)]
    assert _huge_pages(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("Name:\tx\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n", (["CAP_IPC_LOCK", "CAP_SYS_PTRACE"], False)),
        ("CapEff:\t00000000a80425fb\nSeccomp:\t2\n", ([], True)),
        ("CapEff:\t0000000000004000\nSeccomp:\t2\n", (["CAP_IPC_LOCK"], True)),
        ("", ([], False)),
    ],
)
def test_privileges_are_read_as_proc_has_them(status: str, expected: tuple[list[str], bool]) -> None:
    assert _privileges(status) == expected


def test_proxies_are_read_by_the_configuration() -> None:
    environ = {"http_proxy": "a", "HTTPS_PROXY": "b", "ALL_PROXY": "", "No_Proxy": "c", "ftp_proxy": "d", "PROXY": "e"}
    assert proxy_variables(environ) == {"HTTPS_PROXY": "b", "No_Proxy": "c", "http_proxy": "a"}


# --- the command, here ---


def doctor(*arguments: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "moontide.cli", "doctor", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def findings_of(output: str) -> list[Finding]:
    return [msgspec.json.decode(line, type=Finding) for line in output.splitlines()]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MasterServer]:
    server = MasterServer(tmp_path)
    yield server
    server.kill()


def test_the_command_says_what_it_found_here_in_every_form() -> None:
    status, facts = doctor("--facts")
    assert status == 0
    system = msgspec.json.decode(facts, type=System)
    assert system.host_name == socket.gethostname()
    assert system.kernel == os.uname().release
    expected = examine(system)
    failed = any(finding.status == "fail" for finding in expected)
    status, output = doctor("--json")
    found = findings_of(output)
    assert status == failed
    assert [(each.check, each.status) for each in found] == [(each.check, each.status) for each in expected]
    status, text = doctor()
    assert status == failed
    heads = [line.split()[0] for line in text.splitlines() if not line.startswith(" ")]
    assert heads == [finding.status for finding in expected]
    assert text.count("→") == sum(1 for finding in expected if finding.remedy)


def test_the_command_tries_the_addresses_of_the_configuration(master: MasterServer) -> None:
    status, output = doctor(
        "--json", "--master", master.address, "--directory", master.url, "--http-listen", f"127.0.0.1:{free_port()}"
    )
    assert [(each.check, each.status) for each in findings_of(output) if each.check in ("port", "server")] == [
        ("port", "ok"),
        ("server", "ok"),
        ("server", "ok"),
    ]
    status, output = doctor("--json", "--listen", master.address)
    assert status == 1
    (port,) = [each for each in findings_of(output) if each.check == "port"]
    assert (port.status, master.address in port.text, "in use" in port.text) == ("fail", True, True)
    master.stop()
    status, output = doctor("--json", "--directory", master.url, "--timeout", "300ms")
    assert status == 1
    (server,) = [each for each in findings_of(output) if each.check == "server"]
    assert (server.status, "firewall" in server.remedy) == ("fail", True)
    master.go_on()


def test_the_command_shows_no_password() -> None:
    secret = "hunter2"
    nobody = f"127.0.0.1:{free_port()}"
    for form in ("--json", "--facts"):
        status, output = doctor(
            form, "--directory", f"redis://me:{secret}@{nobody}", http_proxy=f"http://me:{secret}@127.0.0.1:9"
        )
        assert nobody in output and "http_proxy" in output
        assert secret not in output
        assert status == (form == "--json")
