"""The pool's stream of events, read by vLLM's own classes, and vLLM's own stream, read by ours."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import msgspec
import zmq
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch, ZmqEventPublisher

from moontide.events import EventIndex
from moontide.events.messages import Batch, Cleared, Removed, Stored, decode, encode
from support.pool_process import free_port
from support.waiting import wait_for


def test_vllm_reads_what_the_pool_publishes() -> None:
    events = [Cleared(), Stored([b"kv1:a", b"kv1:b"], [4096, 8192]), Removed([b"kv1:a"], "evicted")]
    read = msgspec.msgpack.Decoder(KVEventBatch).decode(encode(Batch(12.5, events, None, 3)))
    assert read.ts == 12.5
    cleared, stored, removed = read.events
    assert isinstance(cleared, AllBlocksCleared)
    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == [b"kv1:a", b"kv1:b"]
    assert (stored.medium, stored.locality, stored.ownership) == ("CPU", "REMOTE", "moontide")
    assert isinstance(removed, BlockRemoved)
    assert (removed.block_hashes, removed.medium) == ([b"kv1:a"], "CPU")


def test_the_pool_s_messages_are_those_of_vllm() -> None:
    theirs = KVEventBatch(
        ts=1.0,
        events=[
            BlockStored(
                block_hashes=[b"h"],
                parent_block_hash=None,
                token_ids=[1, 2],
                block_size=2,
                lora_id=None,
                medium="GPU",
                lora_name=None,
            ),
            BlockRemoved(block_hashes=[b"h"], medium="GPU"),
            AllBlocksCleared(),
        ],
    )
    stored, removed, cleared = decode(msgspec.msgpack.encode(theirs)).events
    assert isinstance(stored, Stored) and stored.block_hashes == [b"h"] and stored.token_ids == [1, 2]
    assert isinstance(removed, Removed) and removed.block_hashes == [b"h"]
    assert isinstance(cleared, Cleared)


@contextlib.contextmanager
def relay() -> Iterator[tuple[int, int]]:
    """Ports for who publishes and for who subscribes: vLLM's publisher connects where no wildcard is named."""
    context = zmq.Context()
    publishers, subscribers = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
    ports = tuple(socket.bind_to_random_port("tcp://127.0.0.1") for socket in (publishers, subscribers))

    def run() -> None:
        with publishers, subscribers, contextlib.suppress(zmq.ContextTerminated):
            publishers.linger = subscribers.linger = 0
            zmq.proxy(publishers, subscribers)

    thread = threading.Thread(target=run)
    thread.start()
    yield ports[0], ports[1]
    context.term()
    thread.join()


def test_the_index_speaks_to_vllm_s_publisher() -> None:
    """Frames, numbers and replays are the same, so what reads one reads the other."""
    replay = free_port()
    with relay() as (for_publishers, for_subscribers):
        publisher = ZmqEventPublisher(0, f"tcp://127.0.0.1:{for_publishers}", f"tcp://127.0.0.1:{replay}", topic="kv")
        try:
            publisher.publish(KVEventBatch(ts=time.time(), events=[AllBlocksCleared()]))
            publisher.publish(KVEventBatch(ts=time.time(), events=[BlockRemoved(block_hashes=[b"x"], medium="GPU")]))
            with EventIndex(f"127.0.0.1:{for_subscribers}", f"127.0.0.1:{replay}", topic="kv") as index:
                index.objects[b"x"] = 1
                wait_for(lambda: index.poll(0.05) >= 0 and index.whole, what="the replay")
                assert index.objects == {}
                index.objects[b"y"] = 1

                def cleared() -> bool:  # a subscriber that is not connected yet misses what is published
                    publisher.publish(KVEventBatch(ts=time.time(), events=[AllBlocksCleared()]))
                    index.poll(0.05)
                    return not index.objects

                wait_for(cleared, what="what is published")
        finally:
            publisher.shutdown()
