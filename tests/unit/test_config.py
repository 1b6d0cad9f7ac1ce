"""The configuration: precedence, parsing, and errors that say what to do."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from moontide.cli.main import main
from moontide.config import Config, describe, load_config, load_with_sources, parse_duration, parse_size, show
from moontide.errors import Invalid

NAMES = [field.name for field in fields(Config)]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256MiB", 256 << 20),
        ("1.5GB", 1_500_000_000),
        ("64 KiB", 65536),
        ("64kib", 65536),
        ("0", 0),
        ("9007199254740993", 9007199254740993),
        ("9007199254740993B", 9007199254740993),
        (" 7 TB ", 7 * 10**12),
        (4096, 4096),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 MB B", "1e6", "1.GB", "12 parsec", "0x10", None, True, 1.5])
def test_bad_sizes(text: object) -> None:
    with pytest.raises(Invalid, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(("text", "seconds"), [("2s", 2), ("200ms", 0.2), ("1.5 min", 90), ("3", 3), ("50us", 5e-5)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-2s", "2 S", "2 years", None, False])
def test_bad_durations(text: object) -> None:
    with pytest.raises(Invalid, match="not a duration"):
        parse_duration(text)


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "moontide.toml"
    file.write_text('lend = "1GiB"\nspin_us = 5\nhold_ttl = 12.5\n')
    environ = {"MOONTIDE_CONFIG": str(file), "MOONTIDE_LEND": "2GiB", "MOONTIDE_LEASE": "7s", "HOME": "/x"}
    config, sources = load_with_sources({"lease": "8s", "listen": None}, environ=environ)
    assert (config.lend, config.spin_us, config.hold_ttl, config.lease) == (2 << 30, 5, 12.5, 8)
    assert config.listen == "127.0.0.1:0"
    assert sources["lend"] == "MOONTIDE_LEND"
    assert sources["spin_us"] == f"file {file}"
    assert sources["lease"] == "flag --lease"
    assert sources["listen"] == "default"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"lend": "-5"}, ["lend", "-5"]),
        ({"lend": 2**60}, ["lend", str(2**60), "0 to 1024TiB"]),
        ({"spin_us": "20000"}, ["spin_us", "20000", "0 to 10000"]),
        ({"spin_us": "2.5"}, ["spin_us", "2.5", "whole number"]),
        ({"tcp_streams": 0}, ["tcp_streams", "0", "1 to 16"]),
        ({"progress_timeout": "0"}, ["progress_timeout", "'0'", "10ms to 3600s"]),
        ({"local_reads": "rdma"}, ["local_reads", "rdma", "auto, shm, cma, off"]),
        ({"log_level": 3}, ["log_level", "3", "debug"]),
        ({"listen": "localhost"}, ["listen", "localhost", "HOST:PORT"]),
        ({"listen": "127.0.0.1:65536"}, ["listen", "65536"]),
        ({"listen": "::1:80"}, ["listen", "::1:80"]),
        ({"listen": ""}, ["listen", "HOST:PORT"]),
        ({"advertise": "host:port"}, ["advertise", "host:port", "HOST or HOST:PORT"]),
        ({"advertise": "10.0.0.1:65536"}, ["advertise", "65536"]),
        ({"insecure_listen": "maybe"}, ["insecure_listen", "maybe", "true, false"]),
        ({"insecure_listen": 1}, ["insecure_listen", "1"]),
        ({"secret_file": 7}, ["secret_file", "7", "path"]),
        ({"lende": "1"}, ["lende", "did you mean 'lend'"]),
    ],
)
def test_bad_values_name_option_value_and_range(flags: dict[str, object], words: list[str]) -> None:
    with pytest.raises(Invalid) as caught:
        load_config(flags, environ={})
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("address", ["127.0.0.1:7700", "[::1]:7700", "node-3.example:1", "inproc:a"])
def test_addresses(address: str) -> None:
    assert load_config({"listen": address, "master": address}, environ={}).master == address


@pytest.mark.parametrize("told", ["10.0.0.1", "10.0.0.1:7700", "[2001:db8::1]", "[2001:db8::1]:1", "node-3.example"])
def test_what_peers_are_told(told: str) -> None:
    assert load_config({"advertise": told}, environ={}).advertise == told


def test_flags_mean_what_they_say() -> None:
    for text, value in {"true": True, "FALSE": False, "false": False}.items():
        assert load_config(environ={"MOONTIDE_INSECURE_LISTEN": text}).insecure_listen is value


@pytest.mark.parametrize(
    "url",
    [
        "direct",
        "http://127.0.0.1:7701",
        "http://[::1]:7701/",
        "etcd://etcd-0.example:2379",
        "redis://127.0.0.1:6379",
        "redis://me:pass@[::1]:6379/12",
    ],
)
def test_directories(url: str) -> None:
    assert load_config({"directory": url}, environ={}).directory == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:7701",
        "Direct",
        "http://127.0.0.1",
        "http://127.0.0.1:0",
        "http://127.0.0.1:65536",
        "http://127.0.0.1:1/x",
        "http://me:pass@127.0.0.1:1",
        "https://127.0.0.1:1",
        "etcd://127.0.0.1:1/3",
        "etcd://::1:80",
        "redis://me:pass@127.0.0.1/1",
        "redis://me:pass@127.0.0.1:1/one",
    ],
)
def test_what_is_no_directory_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(Invalid, match="etcd://HOST:PORT") as caught:
        load_config({"directory": url}, environ={})
    assert "pass@" not in str(caught.value)


def test_the_password_of_a_directory_is_not_shown() -> None:
    result = CliRunner(env={"MOONTIDE_DIRECTORY": "redis://me:pass@127.0.0.1:1/2"}).invoke(main, ["config"])
    assert 'directory = "redis://***@127.0.0.1:1/2"' in result.output


def test_empty_master_is_none() -> None:
    assert load_config({"master": ""}, environ={"MOONTIDE_MASTER": "127.0.0.1:1"}).master is None


def test_unknown_variable_is_an_error() -> None:
    with pytest.raises(Invalid, match="MOONTIDE_LENDS"):
        load_config(environ={"MOONTIDE_LENDS": "1"})


def test_kubernetes_service_links_are_no_options() -> None:
    links = {
        "MOONTIDE_PORT": "tcp://10.0.0.1:7700",
        "MOONTIDE_SERVICE_HOST": "10.0.0.1",
        "MOONTIDE_MASTER_SERVICE_PORT_RPC": "7700",
        "MOONTIDE_MASTER_PORT_7700_TCP_ADDR": "10.0.0.1",
    }
    assert load_config(environ=links) == Config()


@pytest.mark.parametrize("text", ["lend = ", "bogus = 1", "[pool]\nlend = 1", 'lend = ["1"]'])
def test_bad_files(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(Invalid, match="bad.toml"):
        load_config(file=file, environ={})


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="No such file"):
        load_config(environ={"MOONTIDE_CONFIG": str(tmp_path / "none.toml")})


@pytest.mark.parametrize("name", NAMES)
def test_defaults_pass_their_own_check_and_are_described(name: str) -> None:
    default = getattr(Config(), name)
    assert getattr(load_config({name: show(name, default)}, environ={}), name) == default
    assert all(describe(name))


def test_command_prints_what_it_reads_back(tmp_path: Path) -> None:
    runner = CliRunner(env={"MOONTIDE_LEND": "1.5GB", "MOONTIDE_CONFIG": None})
    result = runner.invoke(main, ["config", "--progress-timeout", "200ms", "--master", "127.0.0.1:9"])
    assert result.exit_code == 0, result.output
    assert "# flag --progress-timeout" in result.output and "# MOONTIDE_LEND" in result.output
    file = tmp_path / "printed.toml"
    file.write_text(result.output)
    config = load_config(file=file, environ={})
    assert (config.lend, config.progress_timeout, config.master) == (1_500_000_000, 0.2, "127.0.0.1:9")


def test_command_error_is_one_line() -> None:
    result = CliRunner().invoke(main, ["config", "--lend", "lots"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: INVALID: lend = 'lots'")
    assert len(result.output.strip().splitlines()) == 1
