"""Values as bytes and back: plain values, records of this program, arrays and tables.

The bytes hold data alone, and nothing in them is run: a record names a dataclass or an enumeration of this program,
whose fields are set. Arrays that are read back are views of the bytes, so those of a mapped file are read from the disk
only where they are looked at.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa

_MAGIC = b"gapscope"
_HEAD = len(_MAGIC) + 8
_ALIGN = 64
_PROGRAM = ("dashboard", "engine")


class NotPacked(Exception):
    """A value with a part that has no bytes of its own."""


def pack(value: Any, most_bytes: int) -> list[bytes | memoryview]:
    """The bytes of a value, in pieces to be written one after the other.

    Raises:
        NotPacked: it holds something else than plain values, records, arrays and tables, or more than ``most_bytes``.
    """
    pieces: list[bytes | memoryview] = []
    places: list[tuple[int, int]] = []
    end = 0

    def place(data: bytes | memoryview) -> int:
        nonlocal end
        gap = -end % _ALIGN
        places.append((end + gap, len(data)))
        pieces.extend((bytes(gap), data))
        end += gap + len(data)
        if end > most_bytes:
            raise NotPacked(f"more than {most_bytes} bytes")
        return len(places) - 1

    tree = _taken_apart(value, place)
    head = json.dumps({"value": tree, "places": places, "bytes": end}).encode()
    head += b" " * (-(_HEAD + len(head)) % _ALIGN)
    return [_MAGIC + len(head).to_bytes(8, "little"), head, *pieces]


def unpack(data: memoryview) -> Any:
    """The value of such bytes.

    Raises:
        ValueError: they are cut, or not what :func:`pack` made.
    """
    if bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise ValueError("not a packed value")
    body = _HEAD + int.from_bytes(data[len(_MAGIC) : _HEAD], "little")
    head = json.loads(bytes(data[_HEAD:body]))
    if len(data) != body + head["bytes"]:
        raise ValueError("a packed value that was cut")
    found = [data[body + start : body + start + length] for start, length in head["places"]]
    try:
        return _put_together(head["value"], found)
    except (KeyError, IndexError, TypeError, AttributeError, pa.ArrowException) as problem:
        raise ValueError(str(problem)) from None


def _taken_apart(value: Any, place: Callable[[bytes | memoryview], int]) -> Any:
    """What JSON holds of a value: lists that begin with their kind, and plain values."""

    def inner(one: Any) -> Any:
        return _taken_apart(one, place)

    if isinstance(value, Enum):
        return ["enum", *_name(type(value)), value.name]
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic):
        return ["scalar", inner(value.reshape(1))]
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return ["objects", value.shape, [inner(one) for one in value.ravel().tolist()]]
        if value.dtype.hasobject or value.dtype.names:
            raise NotPacked(str(value.dtype))
        data = np.ascontiguousarray(value)
        return ["array", value.dtype.str, value.shape, place(data.reshape(-1).view(np.uint8).data)]
    if isinstance(value, pa.Table):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write_table(value)
        return ["table", place(memoryview(sink.getvalue()))]
    if type(value) in (list, tuple, set, frozenset):
        return [type(value).__name__, [inner(one) for one in value]]
    if type(value) is dict:
        return ["dict", [[inner(key), inner(one)] for key, one in value.items()]]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: inner(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return ["record", *_name(type(value)), fields]
    raise NotPacked(type(value).__name__)


_COLLECTIONS: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def _put_together(tree: Any, places: list[memoryview]) -> Any:
    if not isinstance(tree, list):
        return tree
    kind, *rest = tree
    if kind in _COLLECTIONS:
        return _COLLECTIONS[kind](_put_together(one, places) for one in rest[0])
    if kind == "dict":
        return {_put_together(key, places): _put_together(one, places) for key, one in rest[0]}
    if kind == "array":
        dtype, shape, at = rest
        return np.frombuffer(places[at], dtype=np.dtype(dtype)).reshape(shape)
    if kind == "scalar":
        return _put_together(rest[0], places)[0]
    if kind == "objects":
        shape, members = rest
        array = np.empty(len(members), dtype=object)
        array[:] = [_put_together(one, places) for one in members]
        return array.reshape(shape)
    if kind == "table":
        with pa.ipc.open_stream(pa.py_buffer(places[rest[0]])) as reader:
            return reader.read_all()
    if kind == "enum":
        module, name, member = rest
        return _class(module, name, lambda found: issubclass(found, Enum))[member]
    if kind == "record":
        module, name, fields = rest
        cls = _class(module, name, dataclasses.is_dataclass)
        record = object.__new__(cls)
        for field in dataclasses.fields(cls):
            object.__setattr__(record, field.name, _put_together(fields[field.name], places))
        return record
    raise ValueError(f"a packed value of the kind {kind!r}")


def _name(cls: type) -> tuple[str, str]:
    """The module and the name of a class of this program, by which it is found again."""
    if (
        cls.__module__.partition(".")[0] not in _PROGRAM
        or getattr(sys.modules[cls.__module__], cls.__name__, 0) is not cls
    ):
        raise NotPacked(cls.__qualname__)
    return cls.__module__, cls.__name__


def _class(module: str, name: str, fits: Callable[[type], bool]) -> Any:
    if module.partition(".")[0] not in _PROGRAM:
        raise ValueError(f"a packed value of {module}")
    found = getattr(sys.modules.get(module), name)  # whoever asks for a record has imported it
    if not isinstance(found, type) or not fits(found):
        raise ValueError(f"{module}.{name} is no record")
    return found
