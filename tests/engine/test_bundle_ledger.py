"""The ledger balances or says where it does not, and the label follows from the lineage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bundle_rows import identity, request, table, write
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle import (
    Bundle,
    BundleWriter,
    Check,
    ledger_of,
    ledger_problems,
    make_label,
    open_bundle,
    replay_lineage,
)
from engine.bundle.ledger import OUTCOMES, count_outcomes

ROWS = [
    request(0, phase="warmup"),
    request(1),
    request(2, status="error", output_tokens=None),
    request(3, status="canceled"),
    request(4, status="in_flight"),
    request(5, status="never_issued", phase=None, dispatched_ns=None),
]


def test_a_ledger_by_hand() -> None:
    profile = {"attempted": 4, "ok": 1, "error": 1, "rejected": 0, "canceled": 1, "in_flight": 1}
    warmup = {"attempted": 1, "ok": 1, "error": 0, "rejected": 0, "canceled": 0, "in_flight": 0}
    total = {"attempted": 5, "ok": 2, "error": 1, "rejected": 0, "canceled": 1, "in_flight": 1}
    assert ledger_of(table("requests", ROWS)) == {
        "warmup": warmup,
        "profile": profile,
        "total": {**total, "never_issued": 1, "in_graph": 6},
    }
    assert ledger_of(table("requests", ROWS), never_issued=7)["total"]["in_graph"] == 12
    nobody_counted = ledger_of(table("requests", ROWS[:5]))["total"]
    assert (nobody_counted["never_issued"], nobody_counted["in_graph"]) == (None, None)
    assert ledger_of(table("requests", ROWS[:5]), never_issued=0)["total"]["in_graph"] == 5


_outcome = st.tuples(st.sampled_from(["primer", "warmup", "profile"]), st.sampled_from(OUTCOMES))


@settings(deadline=None, max_examples=50)
@given(st.lists(_outcome), st.none() | st.integers(0, 9))
def test_a_computed_ledger_always_balances(outcomes: list[tuple[str, str]], never_issued: int | None) -> None:
    rows = table("requests", [request(k, phase=p, status=s) for k, (p, s) in enumerate(outcomes)] or ROWS[:1])
    ledger = ledger_of(rows, never_issued)
    assert ledger_problems(ledger, count_outcomes(rows)) == []
    for row in ledger.values():
        assert row["attempted"] == sum(row[name] for name in OUTCOMES)
    assert ledger["total"]["attempted"] == rows.num_rows


@pytest.mark.parametrize(
    ("phase", "name", "value", "words"),
    [
        ("profile", "attempted", 5, "profile: attempted 5 but outcomes sum to 4"),
        ("profile", "ok", 2, "profile: ok is 2 in the ledger, 1 in the rows"),
        ("warmup", "ok", None, "warmup: not every outcome is counted"),
        ("total", "in_graph", 9, "total: in_graph 9 is not attempted 5 + never_issued 1"),
        ("total", "never_issued", 0, "total: never_issued is 0, the rows hold 1"),
    ],
)
def test_what_does_not_balance_fails_qualification_in_words(
    tmp_path: Path, phase: str, name: str, value: int | None, words: str
) -> None:
    ledger = ledger_of(table("requests", ROWS))
    ledger[phase][name] = value
    with BundleWriter(tmp_path, "measured", "x", "X", identity()) as w:
        w.write_table("requests", table("requests", ROWS))
        run_id = w.seal(ledger=ledger, qualification=[Check("other", "pass")])
    other, check = open_bundle(tmp_path / run_id).qualification
    assert other == Check("other", "pass")
    assert (check.check, check.verdict) == ("ledger_balances", "fail")
    assert words in check.detail


def test_a_phase_that_only_one_side_has_is_told() -> None:
    ledger = ledger_of(table("requests", ROWS))
    missing = {name: row for name, row in ledger.items() if name != "warmup"}
    assert "warmup: ok is 0 in the ledger, 1 in the rows" in ledger_problems(
        missing, count_outcomes(table("requests", ROWS))
    )
    extra = {**ledger, "primer": {**dict.fromkeys(OUTCOMES, 0), "attempted": 2, "ok": 2}}
    assert "primer: ok is 2 in the ledger, 0 in the rows" in ledger_problems(
        extra, count_outcomes(table("requests", ROWS))
    )


def test_a_ledger_without_rows_is_checked_against_itself() -> None:
    ledger = {"total": {"attempted": 3, "ok": 2, "error": 0, "rejected": 0, "canceled": 0, "in_flight": 0}}
    assert ledger_problems(ledger, None) == ["total: attempted 3 but outcomes sum to 2"]


def test_the_writer_makes_the_ledger_from_the_rows(tmp_path: Path) -> None:
    with BundleWriter(tmp_path, "measured", "x", "X", identity()) as w:
        w.write_table("requests", table("requests", ROWS))
        run_id = w.seal(never_issued=4)
    bundle = open_bundle(tmp_path / run_id)
    assert bundle.ledger == ledger_of(table("requests", ROWS), never_issued=4)
    assert bundle.qualification == [Check("ledger_balances", "pass")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def measured(store: Path) -> Bundle:
    return open_bundle(store / write(store))


def replay(store: Path, lineage: dict[str, Any]) -> Bundle:
    with BundleWriter(store, "replay", "replay", "Replay", identity()) as w:
        w.write_table("requests", table("requests", [request(0)]))
        return open_bundle(store / w.seal(lineage=lineage))


def test_a_replay_that_never_saw_the_run_is_blind(store: Path, measured: Bundle) -> None:
    other = [{"run_id": "sweep-0123456789ab", "phases": None, "tables": {"passes": "0" * 64}}]
    assert (
        make_label(replay(store, replay_lineage(other, {}, {}, ["other-0123456789ab"])), measured) == "blind_prediction"
    )
    assert make_label(replay(store, replay_lineage([], {}, {}, [], rung=0)), measured) == "blind_prediction"


def test_a_replay_that_held_or_was_fitted_on_the_run_is_not(store: Path, measured: Bundle) -> None:
    content = measured.run_id.rpartition("-")[2]
    digest = measured.manifest["files"]["passes.parquet"]["content"]
    seen = [
        replay_lineage([], {}, {}, [measured.run_id]),
        replay_lineage([], {}, {}, [f"renamed-{content}"]),
        replay_lineage([{"run_id": measured.run_id, "phases": ["warmup"]}], {}, {}, []),
        replay_lineage([{"run_id": "copy-0123456789ab", "tables": {"passes": digest}}], {}, {}, []),
    ]
    for lineage in seen:
        assert make_label(replay(store, lineage), measured) == "post_result_exploratory"


def test_blindness_has_to_be_shown(store: Path, measured: Bundle) -> None:
    for lineage in ({}, {"fitted_on": []}, {"store_held_at_seal": []}, {"fitted_on": "none", "store_held_at_seal": []}):
        assert make_label(replay(store, lineage), measured) == "post_result_exploratory"


def test_a_rung_or_a_subset_is_diagnostic(store: Path, measured: Bundle) -> None:
    assert make_label(replay(store, replay_lineage([], {}, {}, [], rung=2)), measured) == "diagnostic"
    assert make_label(replay(store, replay_lineage([], {}, {}, [], subset="first 10 plays")), measured) == "diagnostic"
