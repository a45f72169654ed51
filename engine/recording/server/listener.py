"""A subscriber that writes what it hears: one row per message, one per gap, and the account of it at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import orjson

from engine.errors import GapscopeError
from engine.recording.server.sequence import Ledger, Sequence, Step

Row = Mapping[str, Any]
_POLL_MS = 100
_SEQ_BYTES = 8


class Malformed(Exception):
    """A message that is not what the publisher's format says; its words follow "a message: "."""


class Listener:
    """Subscribes to a publisher that sends (topic, number in 8 bytes big end first, payload) and writes rows.

    A subclass says what a payload is: :meth:`decode` gives the stream that counts (a rank, a worker), the row, and
    how many events are in it. The methods that take frames need no socket.
    """

    def __init__(self, endpoint: str, path: Path, topic: str = "", bind: bool | None = None) -> None:
        """``bind`` says who waits for whom; None: this side binds where the endpoint has a wildcard."""
        self.endpoint, self.path, self.topic = endpoint, path, topic
        self.bind = "*" in endpoint if bind is None else bind
        self.ledger = Ledger()
        self.connected = threading.Event()
        """Set once a publisher is there: what one sent before nobody hears."""
        self._sequences: dict[Any, Sequence] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._file: IO[bytes] | None = None
        self._socket: Any = None
        self._monitor: Any = None
        self._failed: str | None = None

    # -- what a subclass says

    def decode(self, payload: bytes, seq: int, received_ns: int) -> tuple[Any, dict[str, Any], int]:
        """The stream that the message belongs to, its row, and its number of events.

        Raises:
            Malformed: it is something else.
        """
        raise NotImplementedError

    def missed(self, stream: Any, first: int, last: int) -> Iterable[tuple[int, bytes]]:
        """Messages ``first`` to ``last`` of a stream as far as they can be had again, in order."""
        return ()

    def tell(self, row: Row) -> None:
        """Write a row about the stream itself, not of it."""
        self.write(row)

    # -- without a socket

    def open(self) -> None:
        """Make the file.

        Raises:
            GapscopeError: it cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("wb")
        except OSError as error:
            raise GapscopeError(f"{self.path} cannot be written: {error.strerror or error}.") from error

    def write(self, row: Row) -> None:
        """Append a row."""
        assert self._file is not None
        self._file.write(orjson.dumps(row) + b"\n")

    def take(self, frames: list[bytes], received_ns: int) -> None:
        """One message as it came off the wire, with the time on the monotonic clock."""
        try:
            if len(frames) < 2 or len(frames[-2]) != _SEQ_BYTES:
                sizes = ", ".join(str(len(frame)) for frame in frames)
                raise Malformed(f"frames of {sizes} bytes, expected a topic, a number of {_SEQ_BYTES} and a payload")
            seq, payload = int.from_bytes(frames[-2], "big"), frames[-1]
            stream, row, events = self.decode(payload, seq, received_ns)
        except Malformed as error:
            self.ledger.malformed += 1
            self.tell({"kind": "malformed", "received_ns": received_ns, "why": str(error)})
            return
        sequence = self._sequences.setdefault(stream, Sequence())
        expected = sequence.expected
        step = sequence.take(seq, payload)
        if step is Step.DUPLICATE:
            self.ledger.duplicates += 1
            return
        if step is Step.FIRST:
            self.ledger.first_seq = seq if self.ledger.first_seq is None else self.ledger.first_seq
            self._first(stream, seq, received_ns)
        elif step is Step.RESTART:
            self.ledger.restarts += 1
            self.tell({"kind": "restart", "stream": stream, "expected": expected, "got": seq})
            self._gap(stream, 0, seq, received_ns)
        elif step is Step.GAP and expected is not None:
            self._gap(stream, expected, seq, received_ns)
        self._keep(row, events)
        self.ledger.last_seq = seq

    def _first(self, stream: Any, seq: int, received_ns: int) -> None:
        """What went before the first message is no loss: it was before this subscriber."""
        self.tell({"kind": "start", "stream": stream, "seq": seq, "received_ns": received_ns})

    def _keep(self, row: Row, events: int) -> None:
        self.write(row)
        self.ledger.messages += 1
        self.ledger.events += events

    def _gap(self, stream: Any, first: int, got: int, received_ns: int) -> None:
        """Fill the gap before message ``got`` where that is possible, and tell what stays missing."""
        if first == got:
            return
        self.ledger.gaps += 1
        for seq, payload in self.missed(stream, first, got - 1):
            try:
                whose, row, events = self.decode(payload, seq, received_ns)
            except Malformed:
                continue
            if whose == stream and first <= seq < got:
                self._missing(stream, first, seq)
                self._keep({**row, "replayed": True}, events)
                self.ledger.replayed += 1
                first = seq + 1
        self._missing(stream, first, got)

    def _missing(self, stream: Any, expected: int, got: int) -> None:
        if expected < got:
            self.ledger.lost_messages += got - expected
            self.tell({"kind": "gap", "stream": stream, "expected": expected, "got": got})

    def close(self) -> Ledger:
        """Write the account and close the file."""
        if self._file is not None:
            self.tell({"kind": "end", **self.ledger.as_dict()})
            self._file.close()
            self._file = None
        return self.ledger

    # -- with a socket

    def start(self) -> None:
        """Begin to listen, in a thread.

        Raises:
            GapscopeError: pyzmq is missing, the endpoint cannot be used, or the file not be written.
        """
        try:
            import zmq
        except ImportError:
            raise GapscopeError(
                "Listening to an engine needs pyzmq: install the extra, pip install 'gapscope[record]'."
            ) from None
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, 0)  # a message that waits here is not lost
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt_string(zmq.SUBSCRIBE, self.topic)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        try:
            (self._socket.bind if self.bind else self._socket.connect)(self.endpoint)
        except zmq.ZMQError as error:
            self._close_socket()
            how = "bound" if self.bind else "connected to"
            raise GapscopeError(
                f"{self.endpoint} cannot be {how}: {error.strerror}; expected an address like tcp://127.0.0.1:5557, "
                "that nobody else binds."
            ) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)  # the port that a wildcard became
        try:
            self.open()
        except GapscopeError:
            self._close_socket()
            raise
        self._thread = threading.Thread(target=self._run, daemon=True, name=type(self).__name__)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._drain(_POLL_MS)
            self._drain(0)
        except OSError as error:
            self._failed = f"{self.path} cannot be written: {error.strerror or error}"
        finally:
            self._close_socket()

    def _close_socket(self) -> None:
        self._socket.disable_monitor()
        self._socket.close()

    def _drain(self, wait_ms: int) -> None:
        """Everything that is there, after waiting for the first."""
        if not self.connected.is_set() and self._monitor.poll(0):
            self.connected.set()
        while self._socket.poll(wait_ms):
            self.take(self._socket.recv_multipart(), time.monotonic_ns())
            wait_ms = 0
        if self._file is not None:
            self._file.flush()

    def stop(self) -> Ledger:
        """Stop listening, and say what came.

        Raises:
            GapscopeError: the file could not be written to the end.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        try:
            ledger = self.close()
        except OSError as error:
            self._failed = self._failed or f"{self.path} cannot be written: {error.strerror or error}"
        if self._failed:
            raise GapscopeError(f"{self._failed}. What came until then is in the file.")
        return ledger
