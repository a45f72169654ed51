"""A replay played again from its record: equal, and what is said where it is not, or cannot be played."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from engine.bundle import Bundle, find_bundle, open_bundle
from engine.errors import GapscopeError
from engine.replay.again import compared, first_difference, replay_again, why_not

SAMPLES = Path(__file__).parents[2] / "sample_runs"


@pytest.fixture(scope="module")
def predicted() -> Bundle:
    return find_bundle([SAMPLES], "ample8-predicted")


def test_a_sample_replay_comes_out_the_same(predicted: Bundle) -> None:
    found = replay_again(predicted, [SAMPLES])
    assert found.equal
    assert found.first is None
    assert [table.name for table in found.tables] == list(predicted.tables)
    recorded = {name.removesuffix(".parquet"): entry["content"] for name, entry in predicted.manifest["files"].items()}
    assert {table.name: table.again for table in found.tables} == recorded


def test_another_knob_is_seen_in_the_first_table(predicted: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    config = predicted.lineage["config"] | {"pass_scale": 1.5}
    monkeypatch.setitem(predicted.lineage, "config", config)
    found = replay_again(predicted, [SAMPLES])
    assert not found.equal
    assert found.first is not None
    assert found.first.name == "requests"
    assert found.first.difference.startswith("row ")
    assert " in the record, " in found.first.difference


def test_two_runs_are_compared_table_by_table(predicted: Bundle) -> None:
    other = find_bundle([SAMPLES], "tight8-predicted")
    found = compared(predicted, other)
    assert [table.equal for table in found.tables] == [False] * 6


def test_the_first_row_and_column_that_differ() -> None:
    left = pa.table({"a": [1, 2, 3, None], "b": [["x"], ["y"], ["z"], None]})
    right = pa.table({"a": [1, 2, 3, 4], "b": [["x"], ["y"], ["w"], None]})
    assert first_difference(left, right) == "row 2, column b: ['z'] in the record, ['w'] this time"
    assert first_difference(left, left.slice(0, 2)) == (
        "4 rows in the record, 2 this time; those that both have are equal"
    )
    one, other = (pa.table({"a": [value]}) for value in (1, 2))
    assert first_difference(one, other) == "row 0, column a: 1 in the record, 2 this time"


def test_what_cannot_be_played_again_says_why(predicted: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = find_bundle([SAMPLES], "ample8")
    assert "is no replay" in why_not(measured)
    with pytest.raises(GapscopeError, match="is no replay"):
        replay_again(measured, [SAMPLES])
    assert why_not(predicted) == ""
    monkeypatch.setitem(predicted.lineage, "ladder", {"measured": measured.run_id})
    assert "rung of a ladder" in why_not(predicted)
    monkeypatch.setitem(predicted.lineage, "ladder", None)
    monkeypatch.setitem(predicted.lineage, "config", {})
    assert "does not record the knobs" in why_not(predicted)


def test_without_its_trace_it_is_refused(predicted: Bundle, tmp_path: Path) -> None:
    shutil.copytree(predicted.path, tmp_path / predicted.run_id)
    with pytest.raises(GapscopeError, match="trace"):
        replay_again(open_bundle(tmp_path / predicted.run_id), [tmp_path])


def test_values_are_compared_however_they_are_coded() -> None:
    """Equal names in another order of the dictionary are equal; the first column that differs in value is named."""
    coded = [
        pa.DictionaryArray.from_arrays(pa.array(codes), words)
        for codes, words in (([0, 1], ["s", "t"]), ([1, 0], ["t", "s"]))
    ]
    left, right = (pa.table({"a": names, "b": [1, last]}) for names, last in zip(coded, (2, 3), strict=True))
    assert first_difference(left, right) == "row 1, column b: 2 in the record, 3 this time"


def test_the_cause_of_a_difference_is_named(predicted: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    other = open_bundle(predicted.path)
    timing = {"deployment": {"part": {"name": "p", "hbm_tb_s": 4.8}, "tp": 1}, "correction": {"digest": "a" * 64}}
    changed = {"deployment": {"part": {"name": "p", "hbm_tb_s": 5.2}, "tp": 1}, "correction": {"digest": "b" * 64}}
    monkeypatch.setitem(predicted.lineage, "timing", timing)
    monkeypatch.setitem(other.lineage, "timing", changed)
    causes = compared(predicted, other).causes
    assert [cause.split(" has another digest")[0] for cause in causes] == [
        "the deployment that is priced",
        "the correction",
    ]
    assert f"({'a' * 12} in the record, {'b' * 12} this time)" in causes[1]
    sourced = timing | {"deployment": {"part": {"name": "p", "hbm_tb_s": 4.8, "sources": {"hbm_tb_s": "me"}}, "tp": 1}}
    monkeypatch.setitem(other.lineage, "timing", sourced)
    assert compared(predicted, other).causes == ()
