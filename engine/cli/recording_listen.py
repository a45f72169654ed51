"""``gapscope record listen``: write down what engines publish, without a load of our own."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli.shared import Commands, add_command
from engine.errors import GapscopeError

if TYPE_CHECKING:
    from engine.recording.server.listener import Listener


def add_listen(actions: Commands) -> None:
    """Add the action."""
    parser = add_command(
        actions,
        "listen",
        "write down KV events and forward pass metrics that engines publish",
        "Beside a load that another client makes. One file per address; gaps in the numbers are told in it (KV\n"
        "events) or beside it (passes). Ctrl-C ends it. Exit code 1: something is missing.\n\n"
        "  gapscope record listen --kv-events tcp://127.0.0.1:5557 --bind --out heard/\n"
        "  gapscope record listen --fpm tcp://127.0.0.1:20380 --fpm tcp://127.0.0.1:20381 --out heard/   # two ranks\n"
        "  gapscope attach RUN heard/                 # passes under the run of the client\n"
        "  gapscope record join FILES --rows rows/ --trace trace.jsonl --events heard/kv_events.jsonl",
    )
    several: Any = {"action": "append", "default": [], "metavar": "ENDPOINT"}
    parser.add_argument("--kv-events", **several, help="where an engine publishes KV events; once per rank")
    parser.add_argument("--fpm", **several, help="where a Dynamo worker publishes its passes; once per rank")
    parser.add_argument("--kv-replay", metavar="ENDPOINT", help="where missed KV events can be had (one --kv-events)")
    parser.add_argument("--topic", default="", help="only KV events of this topic (default: all)")
    parser.add_argument(
        "--bind", action="store_true", help="bind the addresses: the engine connects where its own has no wildcard"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the files go")
    parser.add_argument("--duration", type=float, metavar="S", help="stop then (default: at Ctrl-C)")
    parser.set_defaults(run=_listen)


def _listen(arguments: argparse.Namespace) -> int:
    listeners = _listeners(arguments)
    started: list[Listener] = []
    try:
        with _interrupted() as stopped:
            for listener in listeners:
                listener.start()
                started.append(listener)
                print(f"listening at {listener.endpoint}", file=sys.stderr)
            stopped.wait(arguments.duration)
    finally:
        ledgers = [(listener, listener.stop()) for listener in started]
    for listener, ledger in ledgers:
        print(f"{listener.path}: {ledger.words}")
    return 0 if all(ledger.complete for _, ledger in ledgers) else 1


def _listeners(arguments: argparse.Namespace) -> list[Listener]:
    from engine.recording.server.fpm import FpmRecorder
    from engine.recording.server.kv_events import KvEventRecorder

    if not arguments.kv_events and not arguments.fpm:
        raise GapscopeError("gapscope record listen needs --kv-events or --fpm: an address to listen at.")
    if arguments.kv_replay and len(arguments.kv_events) != 1:
        raise GapscopeError("--kv-replay goes with exactly one --kv-events: each rank has a replay socket of its own.")
    bind, topic, replay = arguments.bind, arguments.topic, arguments.kv_replay
    kv_files = _files(arguments.out, "kv_events", arguments.kv_events)
    fpm_files = _files(arguments.out, "fpm", arguments.fpm)
    return [
        *(KvEventRecorder(at, file, topic, bind, replay) for at, file in kv_files),
        *(FpmRecorder(at, file, bind=bind) for at, file in fpm_files),
    ]


def _files(folder: Path, name: str, endpoints: Sequence[str]) -> list[tuple[str, Path]]:
    """A file for each address, numbered where there are several."""
    many = len(endpoints) > 1
    return [(at, folder / f"{name}{f'-{n}' if many else ''}.jsonl") for n, at in enumerate(endpoints)]


@contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, in place of their exceptions."""
    event = threading.Event()
    before = {number: signal.signal(number, lambda *_: event.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
