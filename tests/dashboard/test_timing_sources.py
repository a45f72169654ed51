"""Errors of several sources on what all of them cover, and the measured points of each kind of model, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_runs import identity, request, write

from dashboard.charts.style import ROLES
from dashboard.charts.timing.timing import shared_support
from dashboard.compare.timing_regime import timing_regime
from dashboard.store import Store
from dashboard.timing_sources import Asked, MeasuredPasses, error_rows, nearest_on_decodes
from engine.timing.coverage import measured_points
from engine.timing.model_file import ANCHOR_KIND, TABLE_KIND

MS = 1e6
DECODE = np.array(["decode_only"] * 3 + ["mixed"])


def passes() -> MeasuredPasses:
    return MeasuredPasses(DECODE, np.array(["profile"] * 4), {}, np.array([10.0, 20.0, 30.0, 40.0]) * MS, "")


def source(name: str, ms: list[float], covered: list[bool]) -> Asked:
    return Asked(name, None, np.array(ms) * MS, np.array(covered))


def test_errors_are_those_of_the_shared_passes() -> None:
    a = source("a", [11.0, 18.0, 60.0, 40.0], [True, True, True, True])
    b = source("b", [10.0, 20.0, 30.0, 30.0], [True, True, False, True])
    everything = np.ones(4, bool)
    shared, words = shared_support(passes(), everything, [(ROLES[1], a), (ROLES[2], b)])
    assert shared.tolist() == [True, True, False, True]
    assert words == (
        "3 of 4 measured passes are covered by every source and compared. Left out: b does not cover 1 of them "
        "(30.0 % of the time)."
    )
    first, mixed, *of_b = error_rows(passes(), everything, [a, b], shared)
    assert (first.source, first.pass_class, first.passes, first.left_out) == ("a", "decode_only", 2, 0)
    assert first.mean == pytest.approx(0.1)  # 1 of 10 and 2 of 20
    assert first.weighted == pytest.approx(0.1)  # 3 of 30
    assert first.total == pytest.approx(29 / 30 - 1)
    assert (mixed.passes, mixed.total) == (1, 0.0)
    assert (of_b[0].left_out, of_b[0].left_out_share) == (1, 0.5)  # 30 of 60 ms
    assert of_b[1].total == pytest.approx(-0.25)


def test_the_source_that_predicts_decodes_best() -> None:
    everything = np.ones(4, bool)
    a = source("a", [11.0, 18.0, 60.0, 40.0], [True] * 4)  # off by 33 ms in decodes
    b = source("b", [15.0, 25.0, 35.0, 90.0], [True] * 4)  # off by 15 ms
    assert nearest_on_decodes(passes(), everything, [a, b]) == 1
    assert nearest_on_decodes(passes(), everything, []) is None
    assert nearest_on_decodes(passes(), DECODE == "mixed", [a, b]) is None


def test_a_class_that_nobody_shares_has_no_error() -> None:
    a = source("a", [11.0, 18.0, 60.0, 40.0], [False] * 4)
    rows = error_rows(passes(), np.ones(4, bool), [a], np.zeros(4, bool))
    assert [(row.passes, row.mean, row.total, row.left_out_share) for row in rows] == [(0, None, None, 1.0)] * 2


def test_measured_points_of_an_anchor_and_of_a_table() -> None:
    artefact = {
        "backend": "vllm",
        "meta": {
            "model": "toy",
            "input_len": 100,
            "output_len": 20,
            "prefill_anchor": {"points": [{"input_len": 64, "ms": 4.0}, {"input_len": 128, "ms": 6.0}]},
        },
        "sweep": [{"batch": 1, "decode_ms": 5.0}, {"batch": 4, "decode_ms": 6.0}],
    }
    told = measured_points({"kind": ANCHOR_KIND, "name": "toy", "artefact": artefact})
    assert told["decode"] == {"batch": [1, 4], "kv_per_request": [110.0, 110.0]}  # the prompt and half of the output
    assert told["prefill"] == {"batch": [1, 1], "kv_per_prompt": [0.0, 0.0], "new_tokens": [64.0, 128.0]}
    rows = {"prefill": [[2, 300, 1024, 20.0]], "decode": [[4, 0, 2000, 8.0]]}
    told = measured_points({"kind": TABLE_KIND, **rows})
    assert told["decode"] == {"batch": [4], "kv_per_request": [500.0]}
    assert told["prefill"] == {"batch": [2], "kv_per_prompt": [512.0], "new_tokens": [300]}
    assert measured_points({"kind": "another"})["decode"]["batch"] == []


def test_a_refused_part_of_an_anchor_keeps_its_reason(tmp_path: Path) -> None:
    row = {"axis": "part", "anchor": "h100", "target": "b200", "state": "differs", "rule": "r", "allowed": True}
    finding = {"code": "probe_too_short", "sentence": "Too short.", "figures": {}}
    timing = {
        "kind": "anchor",
        "anchor": "a",
        "decode_source": "anchor",
        "prefill_source": "analytic",
        "acceptance": {
            "accepted": {"decode": True, "prefill": False, "packed": False},
            "rows": [row, {**row, "axis": "engine", "allowed": False}],
            "refusals": [],
            "prefill_refusals": [finding],
            "packed_refusals": [],
            "warnings": [{"code": "allowed_part", "sentence": "Allowed.", "figures": {}}],
        },
        "transport": ["decode: tp 4 to 8"],
        "pass_scale": 0.5,
    }
    run_id = write(tmp_path, "r", [request("a")], kind="replay", record=identity(), lineage={"timing": timing})
    store = Store([tmp_path])
    found = timing_regime(store, store.bundle(run_id), store.bundle(run_id))
    assert found is not None
    assert [(held.what, held.distance) for held in found.held] == [("anchor a", 1)]  # one differs and was not allowed
    assert [(part.part, part.state, part.sentence) for part in found.parts] == [
        ("decode", "accepted", "Priced by the anchor."),
        ("prefill", "refused", "Too short."),
        ("several prompts in one pass", "not measured", "The anchor says nothing of it."),
        ("whole", "allowed", "Allowed."),
    ]
    assert [(one.what, one.value, one.basis) for one in found.changes] == [
        ("transport", "", "decode: tp 4 to 8"),
        ("all passes", "0.5", "knob pass_scale"),
    ]


def test_runs_that_are_not_there_are_named(tmp_path: Path) -> None:
    timing = {"kind": "fpm", "sources": [{"run_id": "gone-0123456789ab", "phases": ["warmup"], "passes": 3}]}
    run_id = write(tmp_path, "r", [request("a")], kind="replay", record=identity(), lineage={"timing": timing})
    store = Store([tmp_path])
    found = timing_regime(store, store.bundle(run_id), store.bundle(run_id))
    assert found is not None
    assert (found.held, found.absent) == ((), ("gone-0123456789ab",))
