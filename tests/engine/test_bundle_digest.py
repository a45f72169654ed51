"""The content digest sees values, and nothing but values."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle.digest import TableDigest, compact, table_digest
from engine.bundle.schema import TABLES

MEMBER = pa.struct([("request_id", pa.string()), ("scheduled_tokens", pa.int64())])
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("u", pa.uint64()),
        ("f", pa.float64()),
        ("b", pa.bool_()),
        ("s", pa.string()),
        ("d", pa.dictionary(pa.int32(), pa.string())),
        ("h", pa.list_(pa.uint64())),
        ("m", pa.list_(MEMBER)),
    ]
)

_text = st.text(max_size=4)
_u64 = st.integers(0, 2**64 - 1)
_member = st.fixed_dictionaries({"request_id": st.none() | _text, "scheduled_tokens": st.none() | st.integers(0, 9)})
_row = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "u": st.none() | _u64,
        "f": st.none() | st.floats(allow_nan=False),
        "b": st.none() | st.booleans(),
        "s": st.none() | _text,
        "d": st.none() | st.sampled_from(["", "a", "b", "ab", "long value"]),
        "h": st.none() | st.lists(_u64, max_size=3),
        "m": st.none() | st.lists(st.none() | _member, max_size=3),
    }
)
_rows = st.lists(_row, min_size=1, max_size=12)


def digest(rows: list[dict]) -> str:
    return table_digest(pa.Table.from_pylist(rows, SCHEMA))


def by_the_book(values: list[Any], type_: str, parts: dict[str, str] | None = None) -> str:
    """The digest of one column, written value by value from the description in engine.bundle.digest."""

    def sha(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    digests = [sha(bytes(v is not None for v in values))]
    if type_ in ("int64", "uint64", "float64", "bool"):
        form = {"int64": "<q", "uint64": "<Q", "float64": "<d", "bool": "<B"}[type_]
        digests.append(sha(b"".join(struct.pack(form, v or 0) for v in values)))
    elif type_ == "text":
        encoded = ["" if v is None else v for v in values]
        digests.append(sha(b"".join(struct.pack("<q", len(e.encode())) for e in encoded)))
        digests.append(sha("".join(encoded).encode()))
    elif type_ == "dictionary text":
        entries = list(dict.fromkeys(v for v in values if v is not None))
        digests.append(sha(b"".join(struct.pack("<q", 0 if v is None else entries.index(v)) for v in values)))
        digests.append(by_the_book(entries, "text"))
    elif type_.startswith("list"):
        digests.append(sha(b"".join(struct.pack("<q", len(v or [])) for v in values)))
        digests.append(by_the_book([item for v in values for item in v or []], type_[5:-1], parts))
    else:
        assert parts is not None
        digests += [by_the_book([None if v is None else v[n] for v in values], t) for n, t in parts.items()]
    return sha("".join(digests).encode())


TYPES = {
    "i": "int64",
    "u": "uint64",
    "f": "float64",
    "b": "bool",
    "s": "text",
    "d": "dictionary text",
    "h": "list<uint64>",
    "m": "list<struct<request_id: text, scheduled_tokens: int64>>",
}


@settings(deadline=None)
@given(_rows)
def test_the_digest_is_the_one_described(rows: list[dict]) -> None:
    parts = {"request_id": "text", "scheduled_tokens": "int64"}
    columns = [
        [name, type_, by_the_book([r[name] for r in rows], type_, parts)]
        for name, type_ in TYPES.items()
        if any(r[name] is not None for r in rows)
    ]
    assert digest(rows) == hashlib.sha256(json.dumps([len(rows), columns]).encode()).hexdigest()


@settings(deadline=None)
@given(_rows, st.lists(st.integers(0, 12), max_size=4))
def test_batches_may_end_anywhere(rows: list[dict], cuts: list[int]) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    running = TableDigest(SCHEMA)
    edges = sorted({0, len(rows), *(min(c, len(rows)) for c in cuts)})
    for start, end in itertools.pairwise(edges):
        for batch in table.slice(start, end - start).to_batches():
            running.update(batch)
    assert running.hexdigest() == digest(rows)


@settings(deadline=None)
@given(_rows, st.permutations(["", "a", "b", "ab", "long value", "never used"]))
def test_the_order_of_a_dictionary_leaves_no_trace(rows: list[dict], entries: list[str]) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    codes = pa.array([None if r["d"] is None else entries.index(r["d"]) for r in rows], pa.int32())
    recoded = pa.DictionaryArray.from_arrays(codes, pa.array(entries))
    assert table_digest(table.set_column(5, SCHEMA.field("d"), recoded)) == digest(rows)


def test_repeated_and_null_entries_of_a_dictionary_leave_no_trace() -> None:
    plain = pa.array(["a", "b", "a", None, "b"]).dictionary_encode()
    odd = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3, 1], pa.int32()), pa.array(["a", "b", "a", None]))
    schema = pa.schema([("d", pa.dictionary(pa.int32(), pa.string()))])
    assert table_digest(pa.table([odd], schema=schema)) == table_digest(pa.table([plain], schema=schema))
    assert compact(odd).dictionary.to_pylist() == ["a", "b"]
    assert compact(odd).to_pylist() == ["a", "b", "a", None, "b"]


def _other(value: object, column: str) -> object:
    """A value that differs as little as it can."""
    if value is None:
        return {"i": 0, "u": 0, "f": 0.0, "b": False, "s": "", "d": "", "h": [], "m": []}[column]
    if column == "f":
        assert isinstance(value, float)
        return 0.0 if math.isinf(value) else math.nextafter(value, math.inf)
    if column in "iu":
        return value ^ 1  # type: ignore[operator]
    if column == "b":
        return not value
    if column in "sd":
        return f"{value}\0" if column == "s" else ("a" if value != "a" else "b")
    return [*value, None] if column == "m" else [*value, 0]  # type: ignore[misc]


@settings(deadline=None)
@given(_rows, st.data())
def test_any_changed_value_shows(rows: list[dict], data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.sampled_from(SCHEMA.names))
    changed = copy.deepcopy(rows)
    changed[row][column] = _other(rows[row][column], column)
    assert digest(changed) != digest(rows)


@settings(deadline=None)
@given(_rows, st.data())
def test_any_value_that_becomes_null_or_moves_shows(rows: list[dict], data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.sampled_from(SCHEMA.names))
    changed = copy.deepcopy(rows)
    changed[row][column] = None
    assert (digest(changed) == digest(rows)) == (rows[row][column] is None)
    assert digest(rows[::-1]) == digest(rows) if rows == rows[::-1] else digest(rows[::-1]) != digest(rows)
    assert digest([*rows, dict.fromkeys(SCHEMA.names)]) != digest(rows)


def test_text_is_not_confused_across_rows() -> None:
    def of(values: list) -> str:
        return table_digest(pa.table({"s": pa.array(values, pa.string())}))

    assert len({of(v) for v in (["ab", "c"], ["a", "bc"], ["abc", ""], ["abc", None], [None, "abc"], ["abc"])}) == 6


def test_lists_are_not_confused_across_rows() -> None:
    def of(values: list) -> str:
        return table_digest(pa.table({"h": pa.array(values, pa.list_(pa.uint64()))}))

    assert len({of(v) for v in ([[1], [2]], [[1, 2], []], [[], [1, 2]], [[1, 2], None], [[1, 2]])}) == 5


def test_a_column_without_values_counts_as_absent() -> None:
    full = TABLES["idle_shifts"].schema
    rows = [{"time_ns": 1, "shift_ns": 2}, {"time_ns": 3, "shift_ns": 4}]
    narrow = pa.schema([full.field("time_ns"), full.field("shift_ns")])
    assert table_digest(pa.Table.from_pylist(rows, full)) == table_digest(pa.Table.from_pylist(rows, narrow))


def test_zero_and_nan_have_one_form() -> None:
    def of(*values: float) -> str:
        return table_digest(pa.table({"f": pa.array(values, pa.float64())}))

    assert of(0.0) == of(-0.0)
    assert of(math.nan) == of(-math.nan) != of(0.0)


def test_slices_are_read_where_they_begin() -> None:
    rows = [
        {"i": k, "s": f"s{k}", "d": "a", "h": [k], "m": [{"request_id": "r", "scheduled_tokens": k}]} for k in range(9)
    ]
    table = pa.Table.from_pylist(rows, SCHEMA)
    assert table_digest(table.slice(3, 4)) == digest(rows[3:7])


def test_the_encoding_stays_what_it_is() -> None:
    """Run ids of bundles in the world rest on it."""
    rows = [
        {"i": 1, "u": 2**64 - 1, "f": 0.5, "b": True, "s": "x", "d": "y", "h": [7], "m": None},
        {"i": None, "u": 0, "f": None, "b": None, "s": None, "d": "y", "h": None, "m": [None]},
    ]
    assert digest(rows) == "28ec9af0a446f5eeec86dee74066a8d9dce0463dc0dc044149205e74cd9d54d7"


@pytest.mark.parametrize("name", TABLES)
def test_every_table_of_the_schema_has_a_digest(name: str) -> None:
    schema = TABLES[name].schema
    empty = pa.Table.from_pylist([], schema)
    nulls = pa.Table.from_pylist([dict.fromkeys(schema.names)], schema)
    assert table_digest(empty) != table_digest(nulls)
