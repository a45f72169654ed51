"""ForwardPassMetrics records, version 1 and the variant before it, as blocks of columns.

A record is a map or its values by position, bare or inside a recorder's ``{received_at_ns, wire_counter, metrics}``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from engine.arrays import numbers
from engine.importers.messages import messages, noun
from engine.intake import BadRows, InputFile

BLOCK_ROWS = 4_000  # enough to do things by columns; as objects they take a hundred times their size in columns
VERSION = 1

SCHEDULED = (
    "num_prefill_requests",
    "sum_prefill_tokens",
    "var_prefill_length",
    "sum_prefill_kv_tokens",
    "num_decode_requests",
    "sum_decode_kv_tokens",
    "var_decode_kv_tokens",
)
QUEUED = tuple(name for name in SCHEDULED if name != "sum_prefill_kv_tokens")
_HEADS = (
    ("received_ns", pa.int64()),
    ("wire_counter", pa.int64()),
    ("version", pa.int64()),
    ("worker_id", pa.string()),
    ("dp_rank", pa.int64()),
    ("counter", pa.int64()),
    ("wall_s", pa.float64()),
)
_COUNTS = (*SCHEDULED, *(f"queued_{name}" for name in QUEUED))
SCHEMA = pa.schema(
    [*_HEADS, *((name, pa.float64() if "var_" in name else pa.int64()) for name in _COUNTS), ("segment", pa.string())]
)
"""A record as columns: ``received_ns`` is the recorder's clock, ``wall_s`` seconds, the rest as the record has it."""

_KINDS = {"received_at_ns", "wire_counter", "metrics"}
_ENVELOPE = itemgetter("received_at_ns", "metrics")
_METRICS = itemgetter("version", "worker_id", "dp_rank", "counter_id", "wall_time", "scheduled_requests")
_SCHEDULED, _QUEUED = itemgetter(*SCHEDULED), itemgetter(*QUEUED)
_NOTHING = (None,) * len(QUEUED)


@dataclass
class Told:
    """What the records say of themselves beside their values."""

    versions: Counter[int | None] = field(default_factory=Counter)
    scopes: Counter[str] = field(default_factory=Counter)
    """The timing scope that records name."""
    wrapped: int = 0
    """Records in a recorder's envelope."""


def is_record(value: Any) -> bool:
    """Whether a message is a record in any of the forms that are read."""
    try:
        flat(value)
    except ValueError:
        return False
    return True


def looks_like_record(value: Any) -> bool:
    """Whether a message means to be a record, though its values may be wrong."""
    if type(value) is dict:
        inner = value.get("metrics") if _KINDS & value.keys() - {"metrics"} else value
        return (type(inner) is dict and "scheduled_requests" in inner) or (inner is not value and is_record(value))
    return is_record(value)


def read_records(file: InputFile, bad: BadRows, told: Told) -> Iterator[tuple[Sequence[int], pa.RecordBatch]]:
    """Numbers and columns (``SCHEMA``) of the records of a stream, block by block; others are bad rows."""
    stream, word = messages(file, bad), noun(file)
    while block := list(islice(stream, BLOCK_ROWS)):
        yield as_batch(block, f"{file.name} {word}", bad, told)


def as_batch(
    block: Sequence[tuple[int, Any]], where: str, bad: BadRows, told: Told
) -> tuple[Sequence[int], pa.RecordBatch]:
    """The messages of a block as columns, all at once where all are of the usual form, else one by one."""
    places = [number for number, _ in block]
    try:
        return places, _all_at_once([value for _, value in block], told)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, pa.ArrowException):
        pass
    good, rows = [], []
    for number, value in block:
        try:
            row, scope = flat(value)
        except ValueError as error:
            bad.add(f"{where} {number}", str(error))
            continue
        good.append(number)
        rows.append(row)
        told.versions[row[2]] += 1
        told.wrapped += row[0] is not None
        if scope:
            told.scopes[scope] += 1
    columns = zip(*rows, strict=True) if rows else ([] for _ in SCHEMA)
    return good, pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def _all_at_once(values: list[Any], told: Told) -> pa.RecordBatch:
    received: Sequence[Any]
    if "metrics" in values[0]:
        received, metrics = zip(*map(_ENVELOPE, values), strict=True)
        wire: Sequence[Any] = [value.get("wire_counter") for value in values]
    else:
        metrics = tuple(values)
        received = wire = [None] * len(values)
    version, worker, rank, counter, wall, scheduled = zip(*map(_METRICS, metrics), strict=True)
    if set(version) != {VERSION}:
        raise ValueError
    queued = [_QUEUED(q) if (q := m.get("queued_requests")) is not None else _NOTHING for m in metrics]
    counts = [*zip(*map(_SCHEDULED, scheduled), strict=True), *zip(*queued, strict=True)]
    columns = [received, wire, version, worker, rank, counter, wall, *counts, [None] * len(values)]
    arrays = [_typed(column, f.type) for column, f in zip(columns, SCHEMA, strict=True)]
    told.scopes.update(scope for m in metrics if (scope := m.get("timing_scope")))
    told.versions[VERSION] += len(values)
    told.wrapped += len(values) if "metrics" in values[0] else 0
    return pa.record_batch(arrays, schema=SCHEMA)


_PYTHON: dict[pa.DataType, set[type]] = {
    pa.int64(): {int, type(None)},
    pa.float64(): {int, float, type(None)},
    pa.string(): {str, type(None)},
}


def _typed(column: Sequence[Any], type_: pa.DataType) -> pa.Array:
    kinds = set(map(type, column))
    if not kinds <= _PYTHON[type_]:
        raise TypeError
    if type_ == pa.int64() and kinds == {int}:
        return numbers(np.fromiter(column, np.int64, len(column)))
    return pa.array(column, type_)


def flat(value: Any) -> tuple[tuple[Any, ...], str | None]:
    """The values of one record in the order of ``SCHEMA``, and the timing scope that it names.

    Raises:
        ValueError: no such record; the reason in words that follow "line 7: ".
    """
    received = wire = None
    if type(value) is dict and "metrics" in value:
        received, wire, value = value.get("received_at_ns"), value.get("wire_counter"), value["metrics"]
    elif type(value) is list and len(value) == 3 and type(value[2]) in (list, dict):
        received, wire, value = value
    record = value if type(value) is dict else _named(value)
    scheduled = _part(record, "scheduled_requests", SCHEDULED)
    queued = _part(record, "queued_requests", QUEUED)
    if scheduled is None:
        raise ValueError("no scheduled_requests, expected a forward pass metrics record")
    version = _whole(record.get("version"), "version")
    if version not in (None, VERSION):
        raise ValueError(f"version {version} of forward pass metrics, expected {VERSION}")
    worker = record.get("worker_id")
    if type(worker) is int:
        worker = str(worker)
    if worker is not None and type(worker) is not str:
        raise ValueError(f"worker_id is {worker!r:.40}, expected text")
    if scheduled["num_prefill_requests"] is None or scheduled["num_decode_requests"] is None:
        raise ValueError("num_prefill_requests or num_decode_requests is missing")
    scope = record.get("timing_scope", record.get("scope"))
    row = (
        _whole(received, "received_at_ns"),
        _whole(wire, "wire_counter"),
        version,
        worker,
        _whole(record.get("dp_rank"), "dp_rank"),
        _whole(record.get("counter_id"), "counter_id"),
        _real(record.get("wall_time"), "wall_time"),
        *scheduled.values(),
        *(queued.values() if queued is not None else _NOTHING),
        None,
    )
    return row, scope if type(scope) is str else None


def _named(value: Any) -> dict[str, Any]:
    """A record given by position: with version and counter, or the variant without them."""
    if type(value) is list:
        if len(value) >= 7 and type(value[5]) in (list, dict):
            names = ("version", "worker_id", "dp_rank", "counter_id", "wall_time", "scheduled_requests")
            return {
                **dict(zip(names, value, strict=False)),
                "queued_requests": value[6],
                "timing_scope": value[7] if len(value) > 7 else None,
            }
        if len(value) == 5 and type(value[3]) in (list, dict):
            before = ("worker_id", "dp_rank", "wall_time", "scheduled_requests", "queued_requests")
            return dict(zip(before, value, strict=True))
    raise ValueError("expected a forward pass metrics record, as a map or by position")


def _part(record: dict[str, Any], name: str, fields: Sequence[str]) -> dict[str, Any] | None:
    part = record.get(name)
    if part is None:
        return None
    if type(part) is list:
        if len(part) != len(fields):
            raise ValueError(f"{name} has {len(part)} values, expected {len(fields)}")
        part = dict(zip(fields, part, strict=True))
    if type(part) is not dict:
        raise ValueError(f"{name} is {part!r:.40}, expected an object")
    return {field: (_real if "var_" in field else _whole)(part.get(field), f"{name}.{field}") for field in fields}


def _whole(value: Any, name: str) -> int | None:
    if value is None or (type(value) is int and -(2**63) <= value < 2**63):
        return value
    if type(value) is float and value.is_integer() and abs(value) < 2**53:
        return int(value)
    raise ValueError(f"{name} is {value!r:.40}, expected a whole number")


def _real(value: Any, name: str) -> float | None:
    if value is None or type(value) is float:
        return value
    if type(value) is int and abs(value) < 2**53:
        return float(value)
    raise ValueError(f"{name} is {value!r:.40}, expected a number")
