"""What the Source page says of a run that streams of an engine were attached to."""

from __future__ import annotations

from pathlib import Path

from small_runs import request, write
from split_runs import a_pass

from dashboard.compare.source import source
from dashboard.metrics import HEADLINE
from dashboard.store import Store
from engine.definitions import INSIDE_ENGINE

SENTENCES = ["Figures of the server.", f"{INSIDE_ENGINE}: arrival, admission, preemption, passes and KV blocks."]


def not_recorded(root: Path, attached: bool, row: dict[str, None] | None = None, **tables: list) -> tuple[str, ...]:
    lineage = {"not_recorded": SENTENCES} | ({"attached_to": "client-0123456789ab"} if attached else {})
    run = write(root, "run", [request("a") | (row or {})], lineage=lineage, **tables)
    return source(Store([root]), run, HEADLINE).not_recorded


def test_what_attached_streams_record_is_not_missing(tmp_path: Path) -> None:
    passes = [a_pass(0, 10, 40, [("a", 0, 65)])]
    assert not_recorded(tmp_path / "alone", attached=False) == tuple(SENTENCES)
    found = not_recorded(tmp_path / "passes", attached=True, passes=passes)
    assert found == ("Figures of the server.", f"{INSIDE_ENGINE}: KV blocks.")
    bare = {"received_ns": None, "first_admit_ns": None, "preemptions": None}
    found = not_recorded(tmp_path / "bare", attached=True, row=bare, passes=passes)
    assert found[1] == f"{INSIDE_ENGINE}: arrival, admission, preemption, KV blocks."


def test_where_nothing_is_missing_nothing_is_said(tmp_path: Path) -> None:
    event = {"event_index": 0, "kind": "store", "time_ns": 0, "num_blocks": 1}
    tables = {"passes": [a_pass(0, 10, 40, [("a", 0, 65)])], "kv_events": [event]}
    assert not_recorded(tmp_path, attached=True, **tables) == ("Figures of the server.",)
