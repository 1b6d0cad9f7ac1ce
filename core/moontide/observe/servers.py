"""What the long-running subcommands share: their HTTP listener and the signal that asks what is under way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from aiohttp import web

from moontide._http import HttpThread
from moontide.config import Config
from moontide.observe.dumps import EngineDump, dump_on_signal, format_dump
from moontide.observe.prometheus import Collector, CountsCollector
from moontide.observe.routes import observe_routes

__all__ = ["directory_collector", "node_collector", "observed", "pool_collector"]

_POOL_COUNTERS = {
    "sessions_refused": "Sessions refused for want of a place.",
    "located": "Objects found for clients; what they find by a lease they have is not counted.",
    "missed": "Objects that clients asked for and that were not there.",
    "evicted": "Objects evicted.",
    "removed": "Objects removed by clients.",
    "puts_granted": "Puts that were told a node.",
    "puts_committed": "Puts that became objects.",
    "puts_expired": "Puts given up because their client did not end them.",
    "puts_stale": "Ends of puts that were over already.",
    "puts_no_space": "Puts that were told to wait for room.",
    "adopted": "Objects taken over from the inventories of nodes.",
    "objects_lost": "Objects that went away with the last node that had them.",
    "repairs": "Replicas made again from one that was left.",
    "repairs_failed": "Repairs that came to nothing; they are tried again.",
    "drained": "Replicas given up on nodes that are drained, since they lie elsewhere.",
}
_POOL_GAUGES = {
    "term": "The reign of this master; it only grows.",
    "sessions": "Connected clients and nodes.",
    "answers_waiting": "Answers that wait for nodes to confirm that older entries are gone.",
    "nodes": "Nodes known.",
    "nodes_ready": "Nodes that have joined.",
    "nodes_draining": "Nodes whose objects go to others.",
    "capacity_bytes": "Bytes that nodes lend.",
    "allocated_bytes": "Bytes of the capacity in use: committed, unfinished, retiring and held together.",
    "committed_bytes": "Bytes of objects that can be read, headers and alignment included.",
    "unfinished_bytes": "Bytes of puts that were granted and have not ended.",
    "retiring_bytes": "Bytes of objects that are gone and whose node has not confirmed so.",
    "held_bytes": "Bytes of objects that are gone and that processes still look at in place.",
    "objects": "Objects that can be read.",
    "objects_unfinished": "Puts that were granted and have not ended.",
    "objects_retiring": "Replicas that are gone and whose node has not confirmed so.",
    "replicas": "Replicas of the objects that can be read.",
    "replicas_short": "Replicas that objects lack of what was asked for.",
    "hot_capacity_bytes": "Bytes of the hot caches of all nodes; they are not part of what is lent.",
    "hot_used_bytes": "Bytes of them in use.",
    "hot_entries": "Copies in them; no replicas.",
}
_NODE_COUNTERS = {
    "pulls": "Objects pulled from clients.",
    "pulled_bytes": "Bytes of them.",
    "pulls_refused": "Pulls refused: ticket, space, or the node is joining.",
    "pulls_failed": "Pulls that failed on the way.",
    "retired": "Entries ended on the master's order.",
    "repairs": "Entries pulled from other nodes on the master's order.",
    "repairs_failed": "Such pulls that failed.",
    "hot_hits": "Reads of this host that the hot cache served.",
    "hot_hit_bytes": "Bytes of them, which crossed no network.",
    "hot_misses": "Reads of this host from other hosts.",
    "hot_pulls": "Objects that came into the hot cache.",
    "hot_pulled_bytes": "Bytes of them.",
    "hot_pulls_failed": "Objects that did not: no room, or not what was read any more.",
    "hot_evicted": "Objects that left the hot cache for others.",
}
_NODE_GAUGES = {
    "capacity_bytes": "Bytes lent.",
    "allocated_bytes": "Bytes of extents in use: entries, pulls under way and what they left.",
    "largest_free_bytes": "The longest object, header included, that still fits.",
    "entries": "Objects that can be read here.",
    "pulls_under_way": "Requests of clients being served.",
    "hot_capacity_bytes": "Bytes of the hot cache; they are not part of what is lent.",
    "hot_used_bytes": "Bytes of it in use.",
    "hot_entries": "Objects in it.",
}
_DIRECTORY_COUNTERS = {
    "requests": "Requests for segments.",
    "refused": "Those that were refused: bounds, newer claims, bad requests.",
    "expired": "Records that nobody renewed.",
}
_DIRECTORY_GAUGES = {"segments": "Segments published.", "bytes": "Bytes of their records."}


def directory_collector(read: Callable[[], Mapping[str, int]]) -> CountsCollector:
    """moontide_directory_*, of a master's segments."""
    return CountsCollector("moontide_directory", read, _DIRECTORY_COUNTERS, _DIRECTORY_GAUGES)


def pool_collector(read: Callable[[], Mapping[str, int]]) -> CountsCollector:
    """moontide_pool_*, of a master's `stats`."""

    def values() -> dict[str, int]:
        counts = dict(read())
        counts["allocated_bytes"] = sum(counts[f"{kind}_bytes"] for kind in ("committed", "unfinished", "retiring"))
        return counts

    return CountsCollector("moontide_pool", values, _POOL_COUNTERS, _POOL_GAUGES)


def node_collector(read: Callable[[], Mapping[str, int]]) -> CountsCollector:
    """moontide_node_*, of a node's `stats`."""
    return CountsCollector("moontide_node", read, _NODE_COUNTERS, _NODE_GAUGES)


@contextlib.contextmanager
def observed(
    config: Config,
    collectors: Iterable[Collector | CountsCollector],
    dumps: Mapping[str, Callable[[], EngineDump]] | None = None,
    describe: Callable[[], str] | None = None,
    route_sets: Iterable[Iterable[web.RouteDef]] = (),
) -> Iterator[str]:
    """Listens while the block runs, if `http_listen` says where; yields what to add to the line of the address.

    `route_sets`: what else is served there. SIGUSR1 writes the dumps, or `describe`, unless `dump_on_signal` is off.
    Call it in the main thread.
    """
    sources = dict(dumps or {})

    def text() -> str:
        return "".join(format_dump(dump()) for dump in sources.values()) + (describe() if describe else "")

    if config.dump_on_signal != "off":
        dump_on_signal(text)
    if config.http_listen is None:
        yield ""
        return
    anywhere = config.http_reach == "anywhere"
    server = HttpThread(config.http_listen, observe_routes(collectors, sources), *route_sets, anywhere=anywhere)
    try:
        yield f", http://{server.address}"
    finally:
        server.close()
