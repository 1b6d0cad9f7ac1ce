"""`moontide topology`: text, JSON, SVG and recordings, of this machine and of recorded ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from click.testing import CliRunner

from moontide.cli.main import main
from moontide.config import Config, load_config
from moontide.errors import Invalid, NotFound, Unavailable
from moontide.topology import Topology, discover, rails, record
from moontide.topology.drawing import draw
from moontide.topology.words import cpu_ranges, size_text, speed_text

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "topology"
NAMES = sorted(path.name for path in FIXTURES.glob("*.txt"))
SVG = "{http://www.w3.org/2000/svg}"


def run(*arguments: str | Path, status: int = 0) -> str:
    result = CliRunner().invoke(main, ["topology", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output


def names(found: Topology, location: str, *, preferred: bool) -> list[str]:
    return [nic.name for nic in found.locations[location].nics if nic.preferred == preferred]


def test_fixtures_are_there() -> None:
    assert {"hgx-2x8.txt", "laptop.txt", "cxl.txt", "hostile.txt", "virtual-machine.txt"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_json_has_the_documented_form(name: str) -> None:
    output = run("--json", "--fixture", FIXTURES / name)
    found = msgspec.json.decode(output, type=Topology, strict=True)
    assert found == discover(fixture=FIXTURES / name)
    # Nothing that the types do not know, and every name leads to a device.
    assert json.loads(output) == json.loads(msgspec.json.encode(found))
    for ranks in found.locations.values():
        assert {nic.name for nic in ranks.nics} == {nic.name for nic in found.nics}
        assert {disk.name for disk in ranks.disks} == {disk.name for disk in found.disks}


@pytest.mark.parametrize("name", NAMES)
def test_text_is_printable_and_complete(name: str) -> None:
    found = discover(fixture=FIXTURES / name)
    output = run("--fixture", FIXTURES / name)
    assert all(line.isprintable() for line in output.splitlines())
    for device in (*found.nics, *found.gpus, *found.disks):
        assert re.search(rf"^{re.escape(device.name)} ", output, re.MULTILINE)
    for location in found.locations:
        assert f"\n{location}\n" in output
    assert output.count("\nnote: ") == len(found.notes)


def test_text_of_a_rail() -> None:
    output = run("--fixture", FIXTURES / "hgx-2x8.txt")
    assert "CPUs 0-55,112-167, 1007.3 GiB, distances [10, 21]" in output
    assert (
        "gpu:4\n  NICs   ibp154s0  (same-switch, preferred)\n         ibp192s0 ibp206s0 ibp220s0  (same-node)\n"
        in output
    )
    assert "docker0  (not usable)" in output


@pytest.mark.parametrize("name", NAMES)
def test_svg_is_well_formed_and_shows_every_device_once(name: str, tmp_path: Path) -> None:
    file = tmp_path / "drawing.svg"
    assert run("--svg", file, "--fixture", FIXTURES / name) == ""
    root = ElementTree.parse(file).getroot()
    assert root.tag == f"{SVG}svg"
    width, height = int(root.attrib["width"]), int(root.attrib["height"])
    titles = [element.text or "" for element in root.iter(f"{SVG}text") if element.get("class") == "title"]
    found = discover(fixture=FIXTURES / name)
    for device in (*found.nics, *found.gpus, *found.disks):
        assert sum(title.split()[0] == device.name for title in titles) == 1, device.name
    for rect in root.iter(f"{SVG}rect"):
        x, y, w, h = (int(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and w > 0 and h > 0 and x + w <= width and y + h <= height


def rectangles(root: ElementTree.Element, kind: str) -> list[tuple[int, int, int, int]]:
    keys = ("x", "y", "width", "height")
    return [
        (int(r.attrib["x"]), int(r.attrib["y"]), *(int(r.attrib[key]) for key in keys[2:]))
        for r in root.iter(f"{SVG}rect")
        if kind in (r.get("class") or "").split()
    ]


def test_svg_puts_a_gpu_and_its_nic_into_one_switch_and_nothing_on_top_of_another() -> None:
    root = ElementTree.fromstring(draw(discover(fixture=FIXTURES / "hgx-2x8.txt")))
    switches = [
        group for group in root.iter(f"{SVG}g") if (group.findtext(f"{SVG}title") or "").startswith("PCIe switch")
    ]
    assert len(switches) == 8
    for switch in switches:
        inside = [group.findtext(f"{SVG}title") or "" for group in switch.findall(f"{SVG}g")]
        assert sorted(title[:3] for title in inside) == ["gpu", "ibp"]
    leaves = [rectangle for kind in ("gpu", "nic", "disk", "memory") for rectangle in rectangles(root, kind)]
    assert len(leaves) == 8 + 9 + 1 + 8 + 2
    for i, (x, y, w, h) in enumerate(leaves):
        for other_x, other_y, other_w, other_h in leaves[:i]:
            apart = x + w <= other_x or other_x + other_w <= x or y + h <= other_y or other_y + other_h <= y
            assert apart


def test_svg_says_what_a_box_is() -> None:
    root = ElementTree.fromstring(draw(discover(fixture=FIXTURES / "cxl.txt")))
    titles = [element.text for element in root.iter(f"{SVG}text") if element.get("class") == "title"]
    assert {"root port 0000:15:01.0", "root complex pci0000:80", "cxl:3  500.0 GiB", "no memory"} <= set(titles)
    assert "NUMA node 4" in titles and "socket 1" in titles and "at no known node" in titles


def test_hundreds_of_devices_are_drawn(tmp_path: Path) -> None:
    lines = ["moontide-sysfs 1", "devices/system/node/node0/cpulist = 0-255"]
    for i in range(400):
        folder = f"devices/pci0000:{i // 32:02x}/0000:{i // 32:02x}:{i % 32:02x}.0/net/eth{i}"
        lines += [f"class/net/eth{i} -> {folder}", f"{folder}/type = 1", f"{folder}/operstate = up"]
    file = tmp_path / "many.txt"
    file.write_text("\n".join(lines))
    found = discover(fixture=file)
    assert len(found.nics) == 400
    drawing = draw(found)
    assert "and 388 more" in drawing
    ElementTree.fromstring(drawing)


def test_names_cannot_break_the_drawing(tmp_path: Path) -> None:
    folder = "devices/virtual/net/<a&\"b'>]]>"
    file = tmp_path / "names.txt"
    file.write_text(
        f"moontide-sysfs 1\nclass/net/x -> {folder}\n{folder}/type = 1\n{folder}/operstate = \\x00\\x1b<up>\n"
    )
    found = discover(fixture=file)
    root = ElementTree.fromstring(draw(found))
    assert any("<up>" in (element.text or "") for element in root.iter(f"{SVG}text"))
    ElementTree.fromstring(
        draw(msgspec.structs.replace(found, nics=[msgspec.structs.replace(found.nics[0], name="<&\x00")]))
    )


def test_this_machine_and_its_recording(tmp_path: Path) -> None:
    file = tmp_path / "recorded.txt"
    assert run("--record", file) == ""
    here, there = discover(), discover(fixture=file)
    assert there.nodes and [node.cpus for node in there.nodes] == [node.cpus for node in here.nodes]
    assert len(there.nics) == len(here.nics) and there.gpus == here.gpus and there.disks == here.disks
    text = file.read_text()
    for address in Path("/sys/class/net").glob("*/address"):
        mac = address.read_text().strip()
        if mac.strip("0:"):
            assert mac not in text and mac.replace(":", "") not in text
    assert Path("/proc/sys/kernel/hostname").read_text().strip() not in text.split()
    # Recorded again, it is the same.
    assert record(fixture=file) == text


def test_a_folder_is_as_good_as_a_recording(tmp_path: Path) -> None:
    for line in (FIXTURES / "laptop.txt").read_text().splitlines()[1:]:
        path, equals, value = line.partition(" = ")
        link, arrow, target = line.partition(" -> ")
        if equals:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(value.replace("\\n", "\n") + "\n")
        elif arrow and not line.startswith("#"):
            (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / link).symlink_to(tmp_path / target)
    assert discover(fixture=tmp_path) == discover(fixture=FIXTURES / "laptop.txt")


def test_the_configuration_chooses_the_nics() -> None:
    fixture = FIXTURES / "hgx-2x8.txt"

    def found(nics: str = "", excluded: str = "") -> Topology:
        return discover(load_config({"nics": nics, "nics_excluded": excluded}, environ={}), fixture=fixture)

    assert names(found(), "gpu:0", preferred=True) == ["ibp24s0"]
    assert names(found(excluded="mlx5_0"), "gpu:0", preferred=True) == ["ibp64s0", "ibp79s0", "ibp94s0"]
    only = found(nics="mlx5_1?, eno*", excluded="ibp220s0")
    assert [nic.name for nic in only.nics] == ["eno3", "ibp206s0"]
    assert not only.notes
    assert any("mlx4_9" in note for note in found(nics="mlx5_0,mlx4_9").notes)
    with pytest.raises(NotFound, match="no NIC is called eth7; there are: docker0 eno3"):
        found(nics="eth7")
    output = run("--fixture", fixture, "--nics", "ibp24s0,ibp64s0", "--nics-excluded", "ibp64s0")
    assert "ibp24s0" in output and "ibp79s0" not in output and "ibp64s0" not in output


@pytest.mark.parametrize("value", ["a b", "x" * 65, "a/b", ",".join("abc" for _ in range(65)), 'quo"te'])
def test_bad_names_are_refused(value: str) -> None:
    with pytest.raises(Invalid, match="nics = "):
        load_config({"nics": value}, environ={})
    with pytest.raises(Invalid, match="nics = "):
        load_config({"nics": [value]} if "," not in value else {"nics": 7}, environ={})


def test_a_file_that_is_no_recording_is_one_line_of_error(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    wrong = tmp_path / "wrong"
    wrong.write_text("moontide-sysfs 1\nwhat is this\n")
    for path, said in ((binary, "no plain text"), (wrong, "line 2"), (tmp_path / "none", "No such file")):
        output = run("--fixture", path, status=1)
        assert output.startswith("Error: ") and said in output and len(output.strip().splitlines()) == 1
    assert "No such file" in run("--svg", tmp_path / "none" / "x.svg", status=1)


def test_words() -> None:
    assert cpu_ranges([0, 1, 2, 8]) == "0-2,8"
    assert cpu_ranges([]) == ""
    assert (size_text(1 << 30), size_text(512 << 20)) == ("1.0 GiB", "512 MiB")
    assert (speed_text(2500), speed_text(0)) == ("2.5 Gb/s", "speed not known")


def test_rails_may_be_addresses_or_interfaces() -> None:
    assert rails.rail_addresses(Config(rails=("127.0.0.1:7801", "lo:0", "[::1]:7802"))) == [
        "127.0.0.1:7801",
        "127.0.0.1:0",
        "[::1]:7802",
    ]
    with pytest.raises(Unavailable, match="cannot be resolved"):
        rails.rail_addresses(Config(rails=("no-such-interface:0",)))


def test_auto_rails_need_an_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = discover(fixture=FIXTURES / "laptop.txt")
    monkeypatch.setattr(rails, "discover", lambda _: alone)
    monkeypatch.setattr(rails, "_address_of", lambda _: None)
    with pytest.raises(Invalid, match="no network interface with an IPv4 address"):
        rails.rail_addresses(Config(rails=("auto:0",)))
