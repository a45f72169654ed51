"""Rows collected in any order and any number: sorted as one table would be, in bounded memory."""

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle import Spool, spool, spooled
from engine.errors import GapscopeError

COLUMNS = ("request_id", "status", "dispatched_ns", "input_tokens", "end_after_ns", "error_message")

ROWS = st.lists(
    st.fixed_dictionaries(
        {"request_id": st.text("abc", min_size=1, max_size=2)},
        optional={
            "dispatched_ns": st.none() | st.integers(-5, 5) | st.sampled_from([2**60, -(2**60)]),
            "status": st.sampled_from(["ok", "error"]),
            "input_tokens": st.none() | st.integers(0, 9),
            "end_after_ns": st.none() | st.integers(0, 9),
            "error_message": st.none() | st.text(max_size=3),
        },
    ),
    max_size=60,
)


def in_order(rows: list[dict[str, Any]], shift: int) -> list[dict[str, Any]]:
    """By time and id, unknown times last; rows that are alike stay as they came."""

    def key(row: dict[str, Any]) -> tuple[bool, int, str]:
        time = row.get("dispatched_ns")
        return time is None, time or 0, row["request_id"]

    filled = [{name: row.get(name) for name in COLUMNS} for row in sorted(rows, key=key)]
    for row in filled:
        if row["dispatched_ns"] is not None:
            row["dispatched_ns"] -= shift
    return filled


def rows_of(found: Spool, shift: int) -> list[dict[str, Any]]:
    rows = [row for batch in found.batches(shift) for row in batch.to_pylist()]
    return [{name: row[name] for name in COLUMNS} for row in rows]


@given(rows=ROWS, shift=st.integers(-3, 3), pieces=st.integers(1, 7), cuts=st.lists(st.integers(0, 60), max_size=3))
@settings(max_examples=150, deadline=None)
def test_any_rows_come_out_in_order(rows: list[dict[str, Any]], shift: int, pieces: int, cuts: list[int]) -> None:
    """Row by row or in batches, in pieces of any size; asked for twice; times shifted, durations not."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "CHUNK", pieces)
        collected = Spool("requests", COLUMNS, Path(folder))
        bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
        for place, (start, end) in enumerate(itertools.pairwise(bounds)):
            if place % 2 and start < end:
                collected.extend(pa.RecordBatch.from_pylist([{n: r.get(n) for n in COLUMNS} for r in rows[start:end]]))
            else:
                for row in rows[start:end]:
                    collected.append(row)
        assert collected.rows == len(rows)
        assert rows_of(collected, shift) == in_order(rows, shift)
        assert rows_of(collected, 0) == in_order(rows, 0)
        assert collected.column("input_tokens").to_pylist() == [row.get("input_tokens") for row in rows]


def test_only_what_is_looked_at_is_in_memory(tmp_path: Path) -> None:
    """However large the other columns are: the keys and a few pieces."""
    before = pa.total_allocated_bytes()
    collected = Spool("requests", COLUMNS, tmp_path)
    for n in range(4 * spool.CHUNK):
        collected.append({"request_id": f"{n * 7919 % 10**9:012}", "dispatched_ns": n, "error_message": "x" * 200})
    piece = spool.CHUNK * (200 + 12 + 60)
    assert pa.total_allocated_bytes() - before < piece
    column = collected.column("dispatched_ns")
    assert pa.total_allocated_bytes() - before < 2 * column.nbytes
    del column
    most = 0
    for batch in collected.batches():
        assert batch.num_rows <= spool.CHUNK
        most = max(most, pa.total_allocated_bytes() - before)
    keys = 4 * spool.CHUNK * (8 + 16 + 8)
    assert most < keys + 5 * piece


def test_a_value_that_does_not_fit_is_a_sentence(tmp_path: Path) -> None:
    for column, value in (("input_tokens", "many"), ("dispatched_ns", 2**64), ("request_id", 1), ("input_tokens", 1.5)):
        with pytest.raises(GapscopeError, match=f"Table requests, column {column}: .*"):
            list(spooled("requests", [{"request_id": "a"} | {column: value}], COLUMNS, tmp_path).batches())


def test_columns_are_announced(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no column nothing"):
        Spool("requests", ["nothing"], tmp_path)
    with pytest.raises(ValueError, match="unannounced column flags"):
        Spool("requests", COLUMNS, tmp_path).append({"flags": "x"})


def test_times_out_of_range_are_told(tmp_path: Path) -> None:
    found = spooled("requests", [{"request_id": "a", "dispatched_ns": -(2**63)}], COLUMNS, tmp_path)
    with pytest.raises(GapscopeError, match="dispatched_ns"):
        list(found.batches(1))


def test_several_spools_of_a_table_do_not_meet(tmp_path: Path) -> None:
    first = spooled("requests", [{"request_id": "a"}], COLUMNS, tmp_path)
    second = spooled("requests", [{"request_id": "b"}], COLUMNS, tmp_path)
    assert [row["request_id"] for row in rows_of(first, 0) + rows_of(second, 0)] == ["a", "b"]
