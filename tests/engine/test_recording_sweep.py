"""A sweep of pass shapes: which shapes fit a server, and which passes belong to which."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from stub_server import Stub

from engine.bundle import open_bundle
from engine.errors import GapscopeError
from engine.recording import alive
from engine.recording.clocks import boot_id
from engine.recording.rows import Series
from engine.recording.shapes import Limits, Shape, labels, shapes_for
from engine.recording.sweep import SweepPlan, limits_of, sweep
from engine.timing import FitSource, fit

META = {
    "kind": "meta",
    "schema": "gapscope-passes/1",
    "exact_batches": True,
    "notes": [],
    "dp_rank": 0,
    "first_iter": 0,
    "part": 0,
    "max_num_batched_tokens": 32,
    "max_num_seqs": 2,
    "max_model_len": 256,
    "num_usable_kv_blocks": 63,
    "block_size": 16,
}
PREFILL_NS, DECODE_NS, TOKEN_NS = 2_000_000, 1_000_000, 10_000


class RecordedStub(Stub):
    """Writes a row for each pass, as a scheduler that serves one request at a time and hits no prefix."""

    def __init__(self, rows: Path) -> None:
        super().__init__()
        rows.mkdir()
        self._file = (rows / "passes-dp0-1-0000.jsonl").open("w")
        self._iter = 0
        here = {"boot_id": boot_id(), "mono_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
        self._put({**META, **here})

    def _put(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    async def _answer(self, request: Any, body: Any, how: Any, record: Any) -> Any:
        name, before, left = f"cmpl-{record['id']}-0", 0, len(body["prompt"])
        while left:
            now = min(left, 32)
            self._pass(name, before, now, "c" if before else "n")
            before, left = before + now, left - now
        for _ in range(body["max_tokens"] - 1):
            self._pass(name, before, 1, "d")
            before += 1
        return await super()._answer(request, body, how, record)

    def _pass(self, name: str, before: int, now: int, kind: str) -> None:
        start, decodes = time.monotonic_ns(), int(kind == "d")
        lasts = (DECODE_NS if decodes else PREFILL_NS) + TOKEN_NS * now
        time.sleep(1e-5)
        counts = ("running", "waiting", "queued_prefill", "queued_prefill_tokens", "queued_preempted")
        self._put(
            {
                "kind": "iter",
                "iter": self._iter,
                "dp_rank": 0,
                "t_start_ns": start,
                "t_sched_end_ns": start + 1000,
                "t_output_ns": start + 2000,
                "t_end_ns": start + 3000,
                "wall_time_s": lasts / 1e9,
                "period_s": None,
                "worker_runq_wait_s": None,
                "num_prefill": 1 - decodes,
                "prefill_tokens": 0 if decodes else now,
                "prefill_ctx_tokens": 0 if decodes else before,
                "var_prefill_length": 0.0,
                "num_decode": decodes,
                "decode_kv_tokens": before if decodes else 0,
                "var_decode_kv_tokens": 0.0,
                **dict.fromkeys((*counts, "queued_preempted_tokens", "kv_blocks_used", "kv_blocks_cached"), 0),
                "kv_blocks_total": 63,
                "kv_stored": None,
                "kv_removed": None,
                "kv_event_seq": None,
                "preempted": [],
                "reqs": [[name, before, now, kind]],
                "arrivals": [[name, start - 500, before + now, 1]] if kind == "n" else [],
                "finished_before": [],
                "finished": [],
            }
        )
        self._iter += 1


def test_a_sweep_becomes_a_run_that_pass_times_are_fitted_on(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    with RecordedStub(rows) as stub:
        plan = SweepPlan(stub.url, rows, repeats=2, max_context=128)
        run_id = sweep(plan, tmp_path, lambda share, words: None)
        asked = [len(entry["body"]["prompt"]) for entry in stub.log]
    bundle = open_bundle(tmp_path / run_id)
    assert bundle.kind == "sweep"
    assert {check.verdict for check in bundle.qualification} == {"pass"}
    table = bundle.table("passes")
    assert table is not None
    passes = table.to_pylist()
    assert {row["num_prefill_requests"] + row["num_decode_requests"] for row in passes} == {1}
    # What only warmed the server or its cache is no part of it.
    assert len(passes) < sum(-(-prompt // 32) for prompt in asked) + sum(e["body"]["max_tokens"] - 1 for e in stub.log)
    assert max(row["sum_prefill_tokens"] + row["sum_prefill_kv_tokens"] for row in passes) <= 128
    assert bundle.identity.value("scheduler", "max_num_batched_tokens") == 32
    model = fit([FitSource(bundle)])
    assert model["holdout"][model["composition"]]["by_class"]["decode_only"]["mape"] < 0.01


def test_shapes_keep_to_what_the_server_allows() -> None:
    limits = Limits(budget=512, seats=8, context=4096, pool=6000, block=16)
    shapes = shapes_for(limits)
    assert {shape.kind for shape in shapes} == {"prefill", "decode", "mixed"}
    assert max(shape.new for shape in shapes if shape.kind == "prefill") == 512
    assert max(shape.batch for shape in shapes) == 8
    for shape in shapes:
        tokens = shape.ctx + {"prefill": shape.new, "decode": 24, "mixed": 96}[shape.kind]
        assert tokens + 1 <= 4096
        assert shape.batch * tokens + (shape.new if shape.kind == "mixed" else 0) <= 6000
        assert shape.kind != "mixed" or shape.batch < 8  # the prompt needs a seat of its own
    assert len({(s.kind, s.new, s.ctx, s.batch) for s in shapes}) == len(shapes) < 150
    assert shapes_for(Limits(16, 1, 64, 64, 16))


def test_a_label_tells_the_passes_that_its_shape_is_about() -> None:
    def row(prefill: int, decode: int, wall_s: float) -> dict[str, Any]:
        return {
            "shape_id": 0,
            "num_prefill": prefill,
            "prefill_tokens": 8 * prefill,
            "num_decode": decode,
            "wall_time_s": wall_s,
        }

    passes = [row(1, 0, 0.5), row(1, 2, 0.3), row(0, 2, 0.1), row(0, 1, 0.2), row(0, 2, 0.3)]
    assert labels([Shape("decode", batch=2)], passes)[0]["step_ms"] == {"n": 2, "mean": 200.0, "p50": 200.0}
    assert labels([Shape("mixed", batch=2)], passes)[0]["step_ms"]["mean"] == 300.0
    assert labels([Shape("prefill")], passes)[0]["step_ms"]["n"] == 2
    assert labels([Shape("prefill")], [])[0]["step_ms"] == {"n": 0}


def test_a_sweep_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GapscopeError, match="is none: expected more"):
        sweep(SweepPlan("http://127.0.0.1:9", tmp_path, repeats=0), tmp_path, lambda share, words: None)
    with pytest.raises(GapscopeError, match="no rows of the recording scheduler"):
        sweep(SweepPlan("http://127.0.0.1:9", tmp_path), tmp_path, lambda share, words: None)
    with pytest.raises(GapscopeError, match="does not say block_size"):
        limits_of(Series(0, {**META, "block_size": None}))
    with pytest.raises(GapscopeError, match="asynchronous scheduling"):
        limits_of(Series(0, {**META, "exact_batches": False}))


def test_a_server_that_writes_elsewhere_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alive, "WRITTEN_WITHIN_S", 0.1)
    RecordedStub(tmp_path / "rows")  # of a server that was killed: it closed nothing
    with Stub() as stub, pytest.raises(GapscopeError, match="nothing was written to"):
        sweep(SweepPlan(stub.url, tmp_path / "rows"), tmp_path / "store", lambda share, words: None)
    assert not stub.log  # nothing but the one request that tries it out
    assert not (tmp_path / "store").exists()


def test_what_was_closed_is_seen_at_the_last_row(tmp_path: Path) -> None:
    stub = RecordedStub(tmp_path / "rows")
    assert alive.check_rows(tmp_path / "rows")[0].meta["block_size"] == 16
    stub._put({"kind": "end", "rows": 0, "lost": 0, "mono_ns": 5})
    with pytest.raises(GapscopeError, match="were closed by their server"):
        sweep(SweepPlan("http://127.0.0.1:9", tmp_path / "rows"), tmp_path / "store", lambda share, words: None)
