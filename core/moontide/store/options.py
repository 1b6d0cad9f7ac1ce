"""How and where objects are kept, as callers say it and as the native client is told."""

from __future__ import annotations

from collections.abc import Sequence

from moontide.errors import Invalid

__all__ = ["ANYWHERE", "NOT_RETAINED", "Placement", "Retained", "is_node_id", "placement", "retained"]

Retained = tuple[int, float]
"""How the native client is told to keep an object: (which pin, seconds to live; 0: no end)."""
NOT_RETAINED: Retained = (0, 0.0)
_PINS = {"none": 0, "soft": 1, "hard": 2}
_TTL_MAX_S = 100 * 365 * 86400


def retained(pin: str, ttl: float | None) -> Retained:
    """Invalid: another pin than none, soft, hard; a ttl that is not above 0 and at most 100 years."""
    if pin not in _PINS:
        raise Invalid(f"pin = {pin!r}: allowed are {', '.join(_PINS)}")
    if ttl is not None and not 0 < ttl <= _TTL_MAX_S:
        raise Invalid(f"ttl = {ttl!r} seconds: must be above 0 and at most {_TTL_MAX_S}; None is no end")
    return _PINS[pin], ttl or 0.0


Placement = tuple[int, list[str], list[str]]
"""Where the native client is told to put objects: (how many replicas, nodes tried first, nodes never used)."""
ANYWHERE: Placement = (1, [], [])
_REPLICAS_MAX = 8
_PLACEMENT_NODES_MAX = 64
_OWN_NODE = "own"


def placement(replicas: int, prefer: Sequence[str], avoid: Sequence[str]) -> Placement:
    """Invalid: not 1 to 8 replicas; over 64 nodes, or one that is no id of a node (to prefer: nor "own")."""
    if not 1 <= replicas <= _REPLICAS_MAX:
        raise Invalid(f"replicas = {replicas}: must be from 1 to {_REPLICAS_MAX}")
    for option, nodes in (("prefer", prefer), ("avoid", avoid)):
        if isinstance(nodes, str) or len(nodes) > _PLACEMENT_NODES_MAX:
            raise Invalid(f"{option} = {nodes!r}: must be a list of at most {_PLACEMENT_NODES_MAX} ids of nodes")
        for node in nodes:
            if not is_node_id(node) and (option, node) != ("prefer", _OWN_NODE):
                raise Invalid(f"{option} names {node!r}: the id of a node is 32 hexadecimal digits")
    return replicas, list(prefer), list(avoid)


def is_node_id(text: str) -> bool:
    return len(text) == 32 and all(digit in "0123456789abcdef" for digit in text)
