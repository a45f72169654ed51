"""Subscribers against byte streams with gaps, repeats, restarts and damage, with sockets and without."""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from socket import create_server
from typing import Any

import msgpack
import pytest

from engine.cli.recording_listen import add_listen
from engine.errors import GapscopeError
from engine.importers.fpm.records import is_record
from engine.recording import listeners
from engine.recording.listeners import Listening, Published
from engine.recording.server.fpm import FpmRecorder
from engine.recording.server.kv_events import KvEventRecorder
from engine.recording.server.listener import Listener

zmq = pytest.importorskip("zmq")


def kv_batch(seq: int, rank: int | None = 0, hashes: Sequence[Any] = (1, 2)) -> bytes:
    """A batch as vLLM's publisher encodes it: an array, its events maps with their type."""
    stored = {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": None,
        "token_ids": [seq] * 4,
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "session_id": f"s{seq}",
    }
    removed = {"type": "BlockRemoved", "block_hashes": [seq], "medium": "GPU"}
    batch: list[Any] = [1000.5 + seq, [stored, removed]]
    return msgpack.packb(batch if rank is None else [*batch, rank])


def fpm_record(counter: int, rank: int = 0) -> bytes:
    """A record as Dynamo encodes it: a map, by msgspec."""
    scheduled = {
        "num_prefill_requests": 1,
        "sum_prefill_tokens": 100 + counter,
        "var_prefill_length": 0.0,
        "sum_prefill_kv_tokens": 0,
        "num_decode_requests": 2,
        "sum_decode_kv_tokens": 300,
        "var_decode_kv_tokens": 1.0,
    }
    queued = {name: value for name, value in scheduled.items() if name != "sum_prefill_kv_tokens"}
    return msgpack.packb(
        {
            "version": 1,
            "worker_id": "w",
            "dp_rank": rank,
            "counter_id": counter,
            "wall_time": 0.01,
            "scheduled_requests": scheduled,
            "queued_requests": queued,
        }
    )


def message(seq: int, payload: bytes, topic: bytes = b"kv") -> list[bytes]:
    return [topic, seq.to_bytes(8, "big"), payload]


def rows_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def fed(listener: Listener, messages: Sequence[list[bytes]]) -> list[dict[str, Any]]:
    listener.open()
    for n, frames in enumerate(messages):
        listener.take(frames, 7_000 + n)
    listener.close()
    return rows_in(listener.path)


def told(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The course of a file in short: the number of each batch, and each row about the stream."""
    short: list[tuple[Any, ...]] = []
    for row in rows:
        kind = row.get("kind")
        if kind is None:
            short.append(("replayed" if row["replayed"] else "batch", row["seq"]))
        elif kind == "start":
            short.append((kind, row["seq"]))
        elif kind in ("gap", "restart"):
            short.append((kind, row["expected"], row["got"]))
        else:
            short.append((kind,))
    return short


# -- without sockets ---------------------------------------------------------------------------------------------------


def test_a_whole_stream(tmp_path: Path) -> None:
    listener = KvEventRecorder("tcp://127.0.0.1:1", tmp_path / "kv.jsonl")
    rows = fed(listener, [message(n, kv_batch(n)) for n in range(3)])
    assert told(rows) == [("start", 0), ("batch", 0), ("batch", 1), ("batch", 2), ("end",)]
    assert rows[2] == {
        "seq": 1,
        "dp_rank": 0,
        "ts": 1001.5,
        "received_ns": 7001,
        "replayed": False,
        "events": [
            {
                "type": "BlockStored",
                "block_hashes": ["0000000000000001", "0000000000000002"],
                "parent_block_hash": None,
                "token_ids": [1, 1, 1, 1],
                "block_size": 2,
                "session_id": "s1",
                "medium": "GPU",
            },
            {"type": "BlockRemoved", "block_hashes": ["0000000000000001"], "medium": "GPU"},
        ],
    }
    ledger = listener.ledger
    assert (ledger.messages, ledger.events, ledger.first_seq, ledger.last_seq) == (3, 6, 0, 2)
    assert ledger.complete
    assert ledger.words == "3 messages with 6 events, numbers 0 to 2, none missing"
    assert rows[-1] == {"kind": "end", **ledger.as_dict()}


def test_gaps_repeats_and_restarts_are_told_apart(tmp_path: Path) -> None:
    numbers = [5, 6, 9, 9, 10, 0, 1, 4]
    listener = KvEventRecorder("tcp://127.0.0.1:1", tmp_path / "kv.jsonl")
    stream = [message(n, kv_batch(n, hashes=[n, 100 * (place > 4)])) for place, n in enumerate(numbers)]
    assert told(fed(listener, stream)) == [
        ("start", 5),  # what was before this subscriber is no loss
        ("batch", 5),
        ("batch", 6),
        ("gap", 7, 9),
        ("batch", 9),
        ("batch", 10),
        ("restart", 11, 0),
        ("batch", 0),
        ("batch", 1),
        ("gap", 2, 4),
        ("batch", 4),
        ("end",),
    ]
    ledger = listener.ledger
    assert (ledger.gaps, ledger.lost_messages, ledger.duplicates, ledger.restarts) == (2, 4, 1, 1)
    assert not ledger.complete
    assert ledger.words == (
        "7 messages with 14 events, numbers 5 to 4, 4 lost in 2 gaps, 1 came twice, 1 restarts of the publisher"
    )


def test_a_publisher_that_begins_again_at_the_same_numbers(tmp_path: Path) -> None:
    listener = KvEventRecorder("tcp://127.0.0.1:1", tmp_path / "kv.jsonl")
    stream = [message(0, kv_batch(0)), message(1, kv_batch(1)), message(1, kv_batch(1, hashes=[77]))]
    assert told(fed(listener, stream)) == [
        ("start", 0),
        ("batch", 0),
        ("batch", 1),
        ("restart", 2, 1),
        ("gap", 0, 1),  # the new start's first message never came
        ("batch", 1),
        ("end",),
    ]


def test_each_rank_has_its_own_numbers(tmp_path: Path) -> None:
    listener = KvEventRecorder("tcp://127.0.0.1:1", tmp_path / "kv.jsonl")
    stream = [message(n, kv_batch(n, rank)) for n, rank in ((0, 0), (0, 1), (1, 0), (1, 1), (3, 1))]
    rows = fed(listener, stream)
    assert [row for row in rows if row.get("kind") == "gap"] == [{"kind": "gap", "stream": 1, "expected": 2, "got": 3}]
    assert listener.ledger.lost_messages == 1


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([b"kv"], "frames of 2 bytes, expected a topic, a number of 8 and a payload"),
        ([b"kv", b"\x00" * 4, kv_batch(1)], "frames of 2, 4, "),
        (message(1, kv_batch(1)[:-3]), "number 1 is no batch [time, events, rank]"),
        (message(1, b""), "number 1 is no batch"),
        (message(1, msgpack.packb({"a": 1})), "number 1 is no batch"),
        (message(1, msgpack.packb([1.0, [["Odd", 1]], 0])), "number 1 holds 'Odd', which is no event"),
        (message(1, msgpack.packb([1.0, [{"type": "BlockStored"}], 0])), "number 1 holds an event without its block"),
        (
            message(1, msgpack.packb([1.0, [["BlockRemoved", ["not hex"], "GPU"]], 0])),
            "number 1 holds an event without its block hashes",
        ),
    ],
)
def test_damage_is_told_and_the_rest_goes_on(tmp_path: Path, frames: list[bytes], why: str) -> None:
    listener = KvEventRecorder("tcp://127.0.0.1:1", tmp_path / "kv.jsonl")
    rows = fed(listener, [message(0, kv_batch(0)), frames, message(2, kv_batch(2))])
    assert told(rows) == [("start", 0), ("batch", 0), ("malformed",), ("gap", 1, 2), ("batch", 2), ("end",)]
    assert rows[2]["why"].startswith(why)
    assert listener.ledger.malformed == 1
    assert not listener.ledger.complete


def test_events_by_position_and_hashes_as_bytes(tmp_path: Path) -> None:
    """Older vLLM: events are arrays; hashes are whole digests where they are not cut to integers."""
    digest = bytes(range(32))
    batch = [3.0, [["BlockStored", [digest, 2**64 - 1], digest, [1, 2], 1, None, "GPU"], ["AllBlocksCleared"]]]
    listener = KvEventRecorder("tcp://127.0.0.1:1", tmp_path / "kv.jsonl")
    rows = fed(listener, [message(0, msgpack.packb(batch))])
    stored, cleared = rows[1]["events"]
    assert stored["block_hashes"] == ["18191a1b1c1d1e1f", "ffffffffffffffff"]
    assert stored["parent_block_hash"] == "18191a1b1c1d1e1f"
    assert (stored["token_ids"], stored["block_size"]) == ([1, 2], 1)
    assert cleared == {"type": "AllBlocksCleared"}
    assert rows[1]["dp_rank"] == 0


def test_passes_of_dynamo_are_written_as_the_importer_reads_them(tmp_path: Path) -> None:
    listener = FpmRecorder("tcp://127.0.0.1:1", tmp_path / "fpm.jsonl")
    stream = [message(n, fpm_record(n), b"") for n in (0, 1, 4)]
    before = time.time_ns()
    listener.open()
    for frames in [*stream, message(5, msgpack.packb({"x": 1}), b"")]:
        listener.take(frames, time.monotonic_ns())
    listener.close()
    rows = rows_in(listener.path)
    assert all(is_record(row) for row in rows)
    assert [(row["wire_counter"], row["metrics"]["counter_id"]) for row in rows] == [(0, 0), (1, 1), (4, 4)]
    assert all(before - 10**9 <= row["received_at_ns"] <= time.time_ns() + 10**9 for row in rows)
    account = json.loads((tmp_path / "fpm.ledger.json").read_text())["told"]
    assert [row["kind"] for row in account] == ["start", "gap", "malformed", "end"]
    assert account[1] == {"kind": "gap", "stream": "w/0", "expected": 2, "got": 4}
    assert account[-1]["lost_messages"] == 2


def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(GapscopeError, match="cannot be written"):
        KvEventRecorder("tcp://127.0.0.1:1", tmp_path / "taken" / "kv.jsonl").open()


# -- over loopback -----------------------------------------------------------------------------------------------------


@pytest.fixture
def socket_of() -> Iterator[Callable[[int], Any]]:
    context = zmq.Context()
    made: list[Any] = []

    def make(kind: int) -> Any:
        socket = context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        made.append(socket)
        return socket

    yield make
    for socket in made:
        socket.close()
    context.term()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "it did not come to it within ten seconds"
        time.sleep(0.005)


def joined(publisher: Any, listener: Listener) -> None:
    """Send until the subscription has reached the publisher: numbers from 0 on, all of one content."""
    until(lambda: publisher.send_multipart(message(0, kv_batch(0))) or listener.ledger.messages > 0)


def test_this_side_binds_and_the_engine_connects(tmp_path: Path, socket_of: Callable[[int], Any]) -> None:
    listener = KvEventRecorder("tcp://127.0.0.1:*", tmp_path / "kv.jsonl", topic="kv", bind=True)
    listener.start()
    publisher = socket_of(zmq.PUB)
    publisher.connect(listener.endpoint)
    joined(publisher, listener)
    publisher.send_multipart(message(1, kv_batch(1), b"other"))  # another topic: not for us
    for n in (1, 2, 5):
        publisher.send_multipart(message(n, kv_batch(n)))
    until(lambda: listener.ledger.last_seq == 5)
    ledger = listener.stop()
    assert told(rows_in(listener.path))[1:] == [
        ("batch", 0),
        ("batch", 1),
        ("batch", 2),
        ("gap", 3, 5),
        ("batch", 5),
        ("end",),
    ]
    assert (ledger.lost_messages, ledger.gaps) == (2, 1)


@pytest.mark.parametrize("topics", [True, False])
def test_what_is_missing_is_asked_for_again(tmp_path: Path, socket_of: Callable[[int], Any], topics: bool) -> None:
    """The replay socket still has 4 and 5 of 3 to 5; older publishers answer without the topic."""
    publisher, router = socket_of(zmq.PUB), socket_of(zmq.ROUTER)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    replay = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
    asked: list[int] = []

    def answer() -> None:
        if not router.poll(10_000):
            return
        client, empty, start = router.recv_multipart()
        asked.append(int.from_bytes(start, "big"))
        topic = [b"kv"] if topics else []
        for n in (4, 5, 6):
            router.send_multipart([client, empty, *topic, n.to_bytes(8, "big"), kv_batch(n)])
        router.send_multipart([client, empty, *([b""] if topics else []), b"\xff" * 8, b""])

    helper = threading.Thread(target=answer)
    helper.start()
    listener = KvEventRecorder(f"tcp://127.0.0.1:{port}", tmp_path / "kv.jsonl", topic="kv", replay=replay)
    listener.start()
    joined(publisher, listener)
    for n in (1, 2, 6):
        publisher.send_multipart(message(n, kv_batch(n)))
    until(lambda: listener.ledger.last_seq == 6)
    helper.join()
    ledger = listener.stop()
    assert asked == [3]
    assert told(rows_in(listener.path))[3:] == [
        ("batch", 2),
        ("gap", 3, 4),
        ("replayed", 4),
        ("replayed", 5),
        ("batch", 6),
        ("end",),
    ]
    assert (ledger.replayed, ledger.lost_messages, ledger.gaps) == (2, 1, 1)


def free_address() -> str:
    with create_server(("127.0.0.1", 0)) as taken:
        return f"tcp://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("bind", [True, False])
def test_a_load_begins_once_the_publisher_is_heard(tmp_path: Path, socket_of: Callable[[int], Any], bind: bool) -> None:
    """The very first message is heard, though a publisher that connects tries only now and then."""
    publisher = socket_of(zmq.PUB)
    address = free_address()
    if not bind:
        publisher.bind(address)
    published = Published((address,), bind=bind)

    async def heard() -> None:
        with Listening(tmp_path, published) as listening:
            if bind:
                publisher.connect(address)
            await listening.connected()
            publisher.send_multipart(message(0, kv_batch(0)))
            await asyncio.sleep(0.3)

    asyncio.run(heard())
    assert [row["seq"] for row in rows_in(tmp_path / "kv_raw-0.jsonl") if {"seq", "events"} <= row.keys()] == [0]


@pytest.mark.parametrize(("bind", "words"), [(True, "without --bind"), (False, "with --bind, if the engine connects")])
def test_a_load_without_a_publisher_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bind: bool, words: str
) -> None:
    monkeypatch.setattr(listeners, "CONNECTED_WITHIN_S", 0.2)
    address = free_address()

    async def waited() -> None:
        with Listening(tmp_path, Published((address,), bind=bind)) as listening:
            await listening.connected()

    with pytest.raises(GapscopeError, match=f"Nobody publishes at {address}: .*{words}"):
        asyncio.run(waited())


def test_an_address_in_use_is_said_in_a_sentence(tmp_path: Path, socket_of: Callable[[int], Any]) -> None:
    taken = socket_of(zmq.PUB)
    port = taken.bind_to_random_port("tcp://127.0.0.1")
    listener = KvEventRecorder(f"tcp://127.0.0.1:{port}", tmp_path / "kv.jsonl", bind=True)
    with pytest.raises(GapscopeError, match=f"tcp://127.0.0.1:{port} cannot be bound"):
        listener.start()
    assert not listener.path.exists()


def test_the_command_writes_a_file_per_address(
    tmp_path: Path, socket_of: Callable[[int], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    publishers = [socket_of(zmq.PUB) for _ in range(3)]
    ports = [publisher.bind_to_random_port("tcp://127.0.0.1") for publisher in publishers]
    done = threading.Event()

    def publish() -> None:
        n = 0
        while not done.wait(0.01):
            publishers[0].send_multipart(message(n, kv_batch(n)))
            for rank in (0, 1):
                publishers[1 + rank].send_multipart(message(n, fpm_record(n, rank), b""))
            n += 1

    helper = threading.Thread(target=publish)
    helper.start()
    parser = argparse.ArgumentParser()
    add_listen(parser.add_subparsers())
    kv, *fpm = (f"tcp://127.0.0.1:{port}" for port in ports)
    given = ["listen", "--out", str(tmp_path), "--duration", "0.5", "--kv-events", kv, "--fpm", fpm[0], "--fpm", fpm[1]]
    arguments = parser.parse_args(given)
    try:
        assert arguments.run(arguments) == 0
    finally:
        done.set()
        helper.join()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fpm-0.jsonl",
        "fpm-0.ledger.json",
        "fpm-1.jsonl",
        "fpm-1.ledger.json",
        "kv_events.jsonl",
    ]
    assert {row["metrics"]["dp_rank"] for row in rows_in(tmp_path / "fpm-1.jsonl")} == {1}
    assert capsys.readouterr().out.count("none missing") == 3


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], "needs --kv-events or --fpm"),
        (["--kv-events", "tcp://127.0.0.1:1", "--kv-events", "tcp://127.0.0.1:2", "--kv-replay", "x"], "exactly one"),
        (["--kv-events", "nowhere"], "nowhere cannot be connected to"),
    ],
)
def test_what_cannot_be_listened_to_is_said(tmp_path: Path, given: list[str], why: str) -> None:
    parser = argparse.ArgumentParser()
    add_listen(parser.add_subparsers())
    arguments = parser.parse_args(["listen", "--out", str(tmp_path / "heard"), *given])
    with pytest.raises(GapscopeError, match=why):
        arguments.run(arguments)
    assert not (tmp_path / "heard").exists()
