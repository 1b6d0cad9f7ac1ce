"""The stream of events: its form, replays, and an index that follows it through losses."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from moontide import errors
from moontide.events import EventIndex
from moontide.events.messages import ANEW, END, Cleared, Removed, Stored, decode, pack_seq, unpack_seq
from moontide.events.publisher import EventPublisher, Taken, batches
from support.waiting import wait_for


class Source:
    """A catalog as far as its events go."""

    term = 7

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[bytes, int] = {}
        self.events: deque[Taken] = deque([("cleared", "", b"", 0)])
        self.told_anew = 0

    def put(self, key: bytes, length: int = 1) -> None:
        with self.lock:
            self.objects[key] = length
            self.events.append(("stored", "", key, length))

    def remove(self, key: bytes) -> None:
        with self.lock:
            self.events.append(("removed", "removed", key, self.objects.pop(key)))

    def take_events(self, most: int) -> list[Taken]:
        with self.lock:
            return [self.events.popleft() for _ in range(min(most, len(self.events)))]

    def tell_events_anew(self) -> None:
        with self.lock:
            self.told_anew += 1
            self.events.clear()
            self.events.append(("cleared", "", b"", 0))
            self.events += [("stored", "", key, length) for key, length in self.objects.items()]


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def publisher(source: Source) -> Iterator[EventPublisher]:
    publisher = EventPublisher(source, "127.0.0.1:0", "127.0.0.1:0", topic="kv@pool")
    yield publisher
    publisher.close()


def follow(publisher: EventPublisher, topic: str = "kv@pool") -> EventIndex:
    return EventIndex(publisher.address, publisher.replay_address, topic=topic)


def caught_up(index: EventIndex, source: Source) -> bool:
    index.poll(0.05)
    return index.whole and index.objects == source.objects


def test_neighbours_of_one_kind_share_a_message() -> None:
    taken: list[Taken] = [
        ("cleared", "", b"", 0),
        ("stored", "", b"a", 1),
        ("stored", "", b"b", 2),
        ("removed", "evicted", b"a", 1),
        ("removed", "evicted", b"b", 2),
        ("removed", "lost", b"c", 3),
        ("stored", "", b"a", 4),
    ]
    assert batches(taken) == [
        Cleared(),
        Stored([b"a", b"b"], [1, 2]),
        Removed([b"a", b"b"], "evicted"),
        Removed([b"c"], "lost"),
        Stored([b"a"], [4]),
    ]


def test_an_index_follows_from_the_start_and_one_that_comes_late(source: Source, publisher: EventPublisher) -> None:
    with follow(publisher) as early:
        for number in range(2000):
            source.put(b"key %d" % number, number)
        source.remove(b"key 7")
        wait_for(lambda: caught_up(early, source), what="the one that was there")
        with follow(publisher) as late:
            wait_for(lambda: caught_up(late, source), what="the one that came late")
            source.remove(b"key 8")
            wait_for(lambda: caught_up(early, source) and caught_up(late, source), what="both")
            assert late.gaps == 0
    assert source.told_anew == 0, "what is kept is enough"


def test_a_gap_is_closed_by_a_replay(source: Source, publisher: EventPublisher) -> None:
    with follow(publisher) as index:
        source.put(b"a")
        wait_for(lambda: caught_up(index, source), what="following")
        index._sub.unsubscribe("kv@pool")
        for number in range(1500):
            source.put(b"missed %d" % number)
        wait_for(lambda: not source.events, what="the publisher")
        index._sub.subscribe("kv@pool")
        wait_for(lambda: source.put(b"next") is None and caught_up(index, source), what="the gap being closed")
        assert index.gaps == 1


def test_what_is_not_kept_any_more_is_told_anew(
    source: Source, publisher: EventPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moontide.events.publisher._KEPT_BATCHES", 2)
    for number in range(5000):
        source.put(b"key %d" % number)
    wait_for(lambda: not source.events, what="the publisher")
    with follow(publisher) as late:
        wait_for(lambda: caught_up(late, source), what="the one that came late")
    assert source.told_anew >= 1


def test_a_master_that_restarts_begins_anew(source: Source) -> None:
    first = EventPublisher(source, "127.0.0.1:0", "127.0.0.1:0")
    with EventIndex(first.address, first.replay_address) as index:
        for number in range(1000):
            source.put(b"old %d" % number)
        wait_for(lambda: caught_up(index, source), what="following")
        first.close()
        again = Source()
        again.term = 8
        assert first.replay_address is not None
        second = EventPublisher(again, first.address, first.replay_address)
        for number in range(3000):
            again.put(b"new %d" % number)
        wait_for(lambda: caught_up(index, again), 20, "the new master's objects")
        second.close()


def test_a_subscriber_without_a_topic_gets_all_and_of_another_topic_nothing(
    source: Source, publisher: EventPublisher
) -> None:
    with follow(publisher, topic="") as all_topics, follow(publisher, topic="other") as other:
        source.put(b"a")
        wait_for(lambda: caught_up(all_topics, source), what="following")
        # (what is replayed has no topic)
        other._asked_at = float("inf")
        source.put(b"b")
        wait_for(lambda: caught_up(all_topics, source), what="following")
        assert other.objects == {} or b"b" not in other.objects


def ask(publisher: EventPublisher, *frames: bytes) -> list[list[bytes]]:
    """What a replay answers until its end; nothing for half a second is the end as well."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(f"tcp://{publisher.replay_address}")
    try:
        socket.send_multipart(list(frames))
        out: list[list[bytes]] = []
        while socket.poll(500):
            out.append(socket.recv_multipart())
            if out[-1][-2] == END:
                break
        return out
    finally:
        socket.close()
        context.term()


def test_replays_are_as_vllm_sends_them(source: Source, publisher: EventPublisher) -> None:
    source.put(b"a", 5)
    wait_for(lambda: not source.events and ask(publisher, b"", pack_seq(0))[0][1] != END, what="the publisher")
    answers = ask(publisher, b"", pack_seq(0))
    assert [len(frames) for frames in answers] == [3] * len(answers), "an empty frame, the number, the batch"
    numbers = [unpack_seq(frames[1]) for frames in answers[:-1]]
    assert numbers == list(range(len(numbers)))
    assert answers[-1][1:] == [END, b""]
    assert all(frames[2] for frames in answers[:-1])
    events = [event for frames in answers[:-1] for event in decode(frames[2]).events]
    assert events == [Cleared(), Stored([b"a"], [5])]
    assert ask(publisher, b"", pack_seq(10**6)) == [[b"", END, b""]]
    assert ask(publisher, pack_seq(0))[-1] == [END, b""], "a request without an empty frame is answered so"


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"x"],
        [b"", b"1234567"],
        [b"", b"123456789"],
        [b"x", pack_seq(0)],
        [b"", b"", b"", pack_seq(0)],
        [b""] * 9,
    ],
)
def test_requests_that_are_none_are_not_answered(
    source: Source, publisher: EventPublisher, frames: list[bytes]
) -> None:
    assert ask(publisher, *frames) == []
    source.put(b"a")
    with follow(publisher) as index:
        wait_for(lambda: caught_up(index, source), what="others being served")


def test_telling_anew_is_not_done_as_often_as_it_is_asked_for(source: Source, publisher: EventPublisher) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(f"tcp://{publisher.replay_address}")
    for _ in range(500):
        socket.send_multipart([b"", ANEW])
    socket.send_multipart([b"", pack_seq(2**64 - 1)])
    assert socket.poll(10_000)
    assert source.told_anew <= 3
    socket.close()
    context.term()


def test_many_that_ask_and_do_not_read_keep_nobody_from_it(source: Source, publisher: EventPublisher) -> None:
    for number in range(3000):
        source.put(b"key %d" % number)
    context = zmq.Context()
    crowd = []
    for _ in range(100):
        socket = context.socket(zmq.DEALER)
        socket.linger, socket.rcvhwm = 0, 1
        socket.connect(f"tcp://{publisher.replay_address}")
        socket.send_multipart([b"", pack_seq(0)])
        crowd.append(socket)
    with follow(publisher) as index:
        wait_for(lambda: caught_up(index, source), 40, "others being served")
    for socket in crowd:
        socket.close()
    context.term()


def test_garbage_on_the_stream_is_passed_over() -> None:
    context = zmq.Context()
    socket = context.socket(zmq.PUB)
    socket.linger = 0
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    with EventIndex(f"127.0.0.1:{port}") as index:
        good = msgspec.msgpack.encode([0.0, [{"type": "AllBlocksCleared"}], None, 1])

        def sent() -> bool:
            for frames in ([b"x"], [b"", b"1", b""], [b"", pack_seq(0), b"\xc1"], [b"", pack_seq(0), b"\x93\x00"]):
                socket.send_multipart(frames)
            socket.send_multipart([b"", pack_seq(0), good])
            index.poll(0.05)
            return index.whole

        wait_for(sent, what="the good one")
    socket.close()
    context.term()


@pytest.mark.parametrize("option", ["events_listen", "events_replay_listen"])
def test_off_loopback_only_by_name(source: Source, option: str) -> None:
    where = ("0.0.0.0:0", None) if option == "events_listen" else ("127.0.0.1:0", "0.0.0.0:0")
    with pytest.raises(errors.Denied, match=option):
        EventPublisher(source, *where)
    EventPublisher(source, *where, anywhere=True).close()


def test_an_address_in_use_is_said(source: Source, publisher: EventPublisher) -> None:
    with pytest.raises(errors.Unavailable, match="events_listen"):
        EventPublisher(source, publisher.address, None)
