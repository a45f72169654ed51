"""Streams of messages: JSON Lines, or msgpack with each message right after the other or behind its length."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal

import msgpack

from engine.intake import BadRows, InputFile
from engine.intake.rows import BLOCK, lines, parse
from engine.intake.streams import CutOff

Framing = Literal["json", "msgpack", "big", "little"]
"""JSON Lines; msgpack one after the other; msgpack behind a length of four bytes, big or little end first."""

MAX_MESSAGE = 64 << 20
# First bytes of msgpack maps and arrays (a message is one of them), and of bytes that hold a message.
_CONTAINERS = frozenset([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])
_BYTES = frozenset([0xC4, 0xC5, 0xC6])
_DAMAGED = (ValueError, msgpack.exceptions.UnpackException, RecursionError, TypeError)


def framing(head: bytes) -> Framing | None:
    """How the messages of a stream follow each other, by its first bytes; None where it is no such stream."""
    for order in ("big", "little"):
        size = int.from_bytes(head[:4], order)
        if 0 < size <= MAX_MESSAGE and head[4:5] and head[4] in _CONTAINERS and _whole(head[4:], size):
            return order
    if head.lstrip(b" \t\r\n")[:1] in (b"{", b"["):  # after the lengths, whose first byte may be one of these
        return "json"
    if head and head[0] in _CONTAINERS | _BYTES:
        return "msgpack"
    return None


def _whole(data: bytes, size: int) -> bool:
    """Whether the first message of ``data`` is of this size, as far as the data go."""
    unpacker = _unpacker()
    unpacker.feed(data)
    try:
        unpacker.skip()
    except msgpack.OutOfData:
        return size > len(data)
    except _DAMAGED:
        return False
    return bool(unpacker.tell() == size)


def noun(file: InputFile) -> str:
    """What a message of the file is called where it is named: a line, or a message."""
    return "line" if framing(file.head) == "json" else "message"


def peek(file: InputFile, most: int = 3) -> list[Any]:
    """The first messages, as far as they lie in the head of the file whole."""
    how, head = framing(file.head), file.head
    if how == "json":
        whole = head.splitlines() if len(head) < 1 << 16 else head.splitlines()[:-1]
        found = (parse(line) for line in whole if line.strip())
        return [value for value, problem in islice(found, most) if problem is None]
    if how == "msgpack":
        unpacker = _unpacker()
        unpacker.feed(head)
        return list(islice(_until_damaged(unpacker), most))
    if how is None:
        return []
    values: list[Any] = []
    at = 0
    while len(values) < most and at + 4 < len(head):
        size = int.from_bytes(head[at : at + 4], how)
        value = one_message(head[at + 4 : at + 4 + size]) if 0 < size <= len(head) - at - 4 else None
        if value is None:
            break
        values.append(value)
        at += 4 + size
    return values


def messages(file: InputFile, bad: BadRows) -> Iterator[tuple[int, Any]]:
    """Number (of the line, or of the message from 1) and value of each message; what cannot be read is a bad row."""
    how = framing(file.head)
    if how == "json":
        for number, text, broken in lines(file):
            if broken is None and not text.strip():
                continue
            value, problem = (None, broken) if broken else parse(text)
            if problem is None:
                yield number, value
            else:
                bad.add(f"{file.name} line {number}", problem)
    elif how == "msgpack":
        yield from _one_after_the_other(file, bad)
    elif how is not None:
        yield from _behind_lengths(file, bad, how)
    elif file.size:
        bad.add(file.name, "neither JSON Lines nor msgpack")


def _one_after_the_other(file: InputFile, bad: BadRows) -> Iterator[tuple[int, Any]]:
    unpacker, fed, number = _unpacker(), 0, 0
    for block in _blocks(file, bad):
        try:
            unpacker.feed(block)
            fed += len(block)
            for value in unpacker:
                number += 1
                if type(value) is bytes:
                    value = one_message(value)
                if type(value) not in (dict, list):  # out of step: what follows cannot be told apart
                    raise ValueError("expected a map or an array")
                yield number, value
        except _DAMAGED as error:
            bad.add(f"{file.name} message {number + 1}", f"not msgpack ({error or type(error).__name__})")
            return
    if unpacker.tell() != fed:
        bad.add(f"{file.name} message {number + 1}", "cut off in its middle")


def _behind_lengths(file: InputFile, bad: BadRows, order: Literal["big", "little"]) -> Iterator[tuple[int, Any]]:
    rest, number = bytearray(), 0
    for block in _blocks(file, bad):
        rest += block
        at = 0
        while len(rest) - at >= 4:
            size = int.from_bytes(rest[at : at + 4], order)
            if not 0 < size <= MAX_MESSAGE:
                bad.add(f"{file.name} message {number + 1}", f"its length is {size:,} bytes, expected 1 to 64 MiB")
                return
            if len(rest) - at - 4 < size:
                break
            number += 1
            value = one_message(bytes(rest[at + 4 : at + 4 + size]))
            if value is None:
                bad.add(f"{file.name} message {number}", "not msgpack")
            else:
                yield number, value
            at += 4 + size
        del rest[:at]
    if rest:
        bad.add(f"{file.name} message {number + 1}", "cut off in its middle")


def _blocks(file: InputFile, bad: BadRows) -> Iterator[bytes]:
    with file.open() as stream:
        while True:
            try:
                block = stream.read(BLOCK)
            except CutOff as error:
                bad.add(file.name, str(error))
                return
            if not block:
                return
            yield block


def one_message(data: bytes) -> Any:
    """The one value that ``data`` is, None where it is none."""
    unpacker = _unpacker()
    unpacker.feed(data)
    found = list(islice(_until_damaged(unpacker), 2))
    return found[0] if len(found) == 1 and unpacker.tell() == len(data) else None


def _until_damaged(unpacker: msgpack.Unpacker) -> Iterator[Any]:
    try:
        yield from unpacker
    except _DAMAGED:
        return


def _unpacker() -> msgpack.Unpacker:
    # Text that is no UTF-8 (hashes of old producers) survives as surrogates.
    return msgpack.Unpacker(
        raw=False, strict_map_key=False, unicode_errors="surrogateescape", max_buffer_size=MAX_MESSAGE
    )
