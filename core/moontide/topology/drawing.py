"""A machine as an SVG: boxes for sockets, nodes, root complexes and switches, with the devices in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

from moontide.topology import Gpu, Nic, Node, Place, Ranked, Topology
from moontide.topology.words import cpu_ranges, nic_facts, size_text

__all__ = ["draw"]

_GAP = 10
_TITLE = 24
_LEAF_WIDTH = 218
_LEAF_HEIGHT = 40
_LINE = 18
_ROW_WIDTH = 4 * (_LEAF_WIDTH + 5 * _GAP)  # four switches beside each other
_NAMES_MAX = 12  # in a line of the ranking
_STYLE = """
text { font-family: sans-serif; font-size: 11px; fill: #1c2733 }
.title { font-weight: bold; font-size: 12px }
.small { font-size: 10px; fill: #46535f }
rect { stroke: #8793a0; stroke-width: 1 }
.socket { fill: #f4f6f8 } .node { fill: #ffffff } .root { fill: #eef3ee } .switch { fill: #dfe9df }
.loose { fill: #f4f6f8; stroke-dasharray: 4 3 }
.gpu { fill: #d7ecc9 } .nic { fill: #cfe3f7 } .disk { fill: #efe2cf } .memory { fill: #e6e1f2 }
.off { opacity: 0.5 }
"""


@dataclass
class _Box:
    """A rectangle with a title, words below it, and boxes inside; the place is set by `_arrange`."""

    kind: str
    title: str
    detail: str = ""
    inside: list[_Box] = field(default_factory=list)
    column: bool = False
    x: int = 0
    y: int = 0
    width: int = _LEAF_WIDTH
    height: int = _LEAF_HEIGHT


@dataclass
class _Branch:
    """A root complex or bridge with what hangs below it."""

    name: str
    devices: list[_Box] = field(default_factory=list)
    below: dict[str, _Branch] = field(default_factory=dict)

    def count(self) -> int:
        return len(self.devices) + sum(branch.count() for branch in self.below.values())

    def boxes(self, words: str = "root complex", below: str = "root port") -> Iterator[_Box]:
        """This branch as a box; only what it holds where it holds one thing, for then it joins nothing."""
        inside = [*self.devices]
        for branch in self.below.values():
            inside += branch.boxes(below, "PCIe switch")
        is_root = words == "root complex"
        if self.count() == 1 or (len(inside) == 1 and not self.devices and not is_root):
            yield from inside
        else:
            yield _Box("root" if is_root else "switch", f"{words} {self.name}", inside=inside, column=not is_root)


def _devices(found: Topology) -> Iterator[tuple[Place, _Box]]:
    def detail(place: Place, facts: str) -> str:
        return f"{place.pci}  {facts}" if place.pci else facts

    for gpu in found.gpus:
        yield gpu.place, _Box("gpu", _gpu_title(gpu), detail(gpu.place, f"{gpu.vendor_id:04x}:{gpu.device_id:04x}"))
    for nic in found.nics:
        kind = "nic" if nic.up and not nic.master else "nic off"
        yield nic.place, _Box(kind, _nic_title(nic), nic_facts(nic) if nic.physical else f"virtual, {nic.operstate}")
    for disk in found.disks:
        yield disk.place, _Box("disk", disk.name, detail(disk.place, disk.transport))


def _gpu_title(gpu: Gpu) -> str:
    return f"{gpu.name} {gpu.vendor}"


def _nic_title(nic: Nic) -> str:
    return f"{nic.name}  {nic.place.pci}"


def _node_box(node: Node, devices: Iterable[tuple[Place, _Box]]) -> _Box:
    memory = "no memory"
    if node.cpus or node.memory_bytes:
        memory = f"{'cpu' if node.cpus else 'cxl'}:{node.id}  {size_text(node.memory_bytes)}"
    box = _Box("node", f"NUMA node {node.id}")
    box.inside.append(_Box("memory", memory, f"CPUs {cpu_ranges(node.cpus)}" if node.cpus else "no CPUs"))
    roots: dict[str, _Branch] = {}
    for place, leaf in devices:
        if place.node != node.id:
            continue
        if not place.pci:
            box.inside.append(leaf)
            continue
        branch = roots.setdefault(place.root, _Branch(place.root))
        for bridge in place.bridges:
            branch = branch.below.setdefault(bridge, _Branch(bridge))
        branch.devices.append(leaf)
    for root in roots.values():
        box.inside += root.boxes()
    box.inside.sort(key=lambda inner: bool(inner.inside))
    return box


def _boxes(found: Topology) -> Iterator[_Box]:
    devices = list(_devices(found))
    for socket in sorted({node.socket for node in found.nodes}, key=lambda socket: (socket is None, socket)):
        title = "socket not known" if socket is None else f"socket {socket}"
        nodes = [_node_box(node, devices) for node in found.nodes if node.socket == socket]
        yield _Box("socket", title, inside=nodes, column=True)
    loose = [leaf for place, leaf in devices if place.node is None]
    if loose:
        yield _Box("loose", "at no known node", inside=loose)


def _arrange(box: _Box) -> None:
    """Sets the sizes, from the inside out, and the places inside: in a column, or in rows of about equal boxes."""
    if not box.inside:
        return
    x = y = row = width = 0
    previous = box.inside[0]
    for inner in box.inside:
        _arrange(inner)
        # boxes do not stand beside devices: a row would be as high as the boxes
        other_kind = bool(inner.inside) != bool(previous.inside)
        previous = inner
        if x and (box.column or other_kind or x + inner.width > _ROW_WIDTH):
            x, y, row = 0, y + row + _GAP, 0
        inner.x, inner.y = _GAP + x, _TITLE + y
        x += inner.width + _GAP
        row = max(row, inner.height)
        width = max(width, x - _GAP)
    box.width = width + 2 * _GAP
    box.height = _TITLE + y + row + _GAP


def _text(x: int, y: int, words: str, kind: str = "", width: int = 0) -> str:
    clean = "".join(c if c.isprintable() else "?" for c in words)
    shown = clean
    if width and len(clean) > width // 6:  # a letter is about six wide
        shown = clean[: width // 6 - 1] + "…"
    return f'<text x="{x}" y="{y}" class={quoteattr(kind or "plain")}>{escape(shown)}</text>'


def _draw_box(box: _Box, left: int, top: int) -> Iterator[str]:
    x, y = left + box.x, top + box.y
    title = escape("".join(c if c.isprintable() else "?" for c in f"{box.title} {box.detail}".strip()))
    yield f'<g><title>{title}</title><rect x="{x}" y="{y}" width="{box.width}" height="{box.height}" rx="3"'
    yield f"class={quoteattr(box.kind)}/>"
    yield _text(x + 8, y + 16, box.title, "title", box.width - 12)
    if box.detail:
        yield _text(x + 8, y + 32, box.detail, "small", box.width)
    for inner in box.inside:
        yield from _draw_box(inner, x, y)
    yield "</g>"


def _rank_line(location: str, nics: Sequence[Ranked]) -> str:
    best = [nic.name for nic in nics if nic.preferred]
    others = [nic.name for nic in nics if not nic.preferred and nic.usable]
    parts = []
    for names in (best, others):
        more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
        parts.append(" ".join(names[:_NAMES_MAX]) + more if names else "none")
    return f"{location}: {parts[0]}; then {parts[1]}" if others else f"{location}: {parts[0]}"


def draw(found: Topology) -> str:
    """The drawing as the text of an SVG file. Below it stands which NICs each memory prefers."""
    page = _Box("page", "", inside=list(_boxes(found)), column=True)
    _arrange(page)
    lines = [_rank_line(location, ranks.nics) for location, ranks in found.locations.items()]
    width = max(page.width, 2 * _GAP + max((6 * len(line) for line in lines), default=0))
    height = page.height + _TITLE + _LINE * len(lines) + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<title>Topology</title><style>{_STYLE}</style>",
        f'<rect x="0" y="0" width="{width}" height="{height}" fill="#ffffff" stroke="none"/>',
    ]
    for box in page.inside:
        parts += _draw_box(box, 0, -_TITLE + _GAP)
    parts.append(_text(_GAP, page.height + 8, "NICs by memory, best first", "title"))
    parts += [_text(_GAP, page.height + _TITLE + 2 + _LINE * i, line) for i, line in enumerate(lines)]
    return "\n".join([*parts, "</svg>\n"])
