"""AISimulate: three requests whose report is computed by hand with its own rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from foreign_files import by_id, checks, fact, figures, plan, rows, runs, verdict, write

from engine.bundle import make_label
from engine.errors import GapscopeError
from engine.importers.aisimulate.report import nearest_rank


def request(number: int, arrival: float, tokens: list[float], **values: Any) -> dict[str, Any]:
    """Times in milliseconds; ``tokens`` are those at which tokens come."""
    made = len(tokens)
    admitted = arrival + 1.0
    return {
        "request_id": f"r{number}",
        "session_id": "s",
        "turn_index": number,
        "uuid": f"u{number}",
        "arrival_time_ms": arrival,
        "dispatched_at_ms": None,
        "first_admit_ms": admitted,
        "terminal_time_ms": tokens[-1] if tokens else arrival + 5.0,
        "terminal_status": "completed",
        "first_token_ms": tokens[0] if tokens else None,
        "last_token_ms": tokens[-1] if tokens else None,
        "ttft_ms": tokens[0] - arrival if tokens else None,
        "ttst_ms": tokens[1] - arrival if made > 1 else None,
        "e2e_latency_ms": tokens[-1] - arrival if tokens else None,
        "itl_ms": (tokens[-1] - tokens[0]) / (made - 1) if made > 1 else None,
        "input_length": 100,
        "requested_output_length": 4,
        "output_length": made,
        "reused_input_tokens": 64,
        "decode_worker_idx": 0,
        "routing_history": [{"pool": "agg", "outcome": "immediate", "logical_worker_id": 0, "dp_rank": 1}],
        "admission_history": [
            {
                "admission_ordinal": 0,
                "pool_admission_ordinal": 0,
                "pool": "agg",
                "at_ms": admitted,
                "reused_input_tokens": 32,
                "is_readmission": False,
            }
        ],
        "admission_count": 1,
        "readmission_count": 0,
        "pressure_record_ordinals": [],
        **values,
    }


AGAIN = {
    "admission_ordinal": 1,
    "pool": "agg",
    "at_ms": 115.0,
    "reused_input_tokens": 64,
    "is_readmission": True,
}
FIRST = request(0, 0.0, [10.0, 12.0, 16.0])  # TTFT 10, TPOT 3, E2E 16
SECOND = request(1, 100.0, [120.0, 125.0], admission_count=2, readmission_count=1)  # TTFT 20, TPOT 5, E2E 25
SECOND["admission_history"] = [*SECOND["admission_history"], AGAIN]
THIRD = request(2, 200.0, [230.0])  # TTFT 30, one token
REJECTED = request(3, 210.0, [], terminal_status="rejected", output_length=0, first_admit_ms=None, admission_history=[])
ROWS = [FIRST, SECOND, THIRD, REJECTED]

# 3 requests of 100 and 3 + 2 + 1 tokens in 230 ms. At rank (n-1)p: of three, the median is the second; of the two TPOTs
# half a rank, away from zero, is the second.
REPORT = {
    "num_requests": 4,
    "completed_requests": 3,
    "total_input_tokens": 300,
    "total_output_tokens": 6,
    "duration_ms": 230.0,
    "wall_time_ms": 3.5,
    "request_throughput_rps": 3 / 0.23,
    "input_throughput_tok_s": 300 / 0.23,
    "output_throughput_tok_s": 6 / 0.23,
    "total_throughput_tok_s": 306 / 0.23,
    "num_ttft_samples": 3,
    "num_tpot_samples": 2,
    "num_e2e_latency_samples": 3,
    "mean_ttft_ms": 20.0,
    "min_ttft_ms": 10.0,
    "max_ttft_ms": 30.0,
    "median_ttft_ms": 20.0,
    "p75_ttft_ms": 30.0,
    "p90_ttft_ms": 30.0,
    "std_ttft_ms": (200 / 3) ** 0.5,
    "mean_tpot_ms": 4.0,
    "median_tpot_ms": 5.0,
    "mean_ttst_ms": 18.5,
    "mean_e2e_latency_ms": 71 / 3,
    "mean_itl_ms": 11 / 3,
    "max_itl_ms": 5.0,
    "mean_output_token_throughput_per_user": 300.0,
    "prefix_cache_reused_ratio": 0.64,
    "first_admission_prefix_cache_reused_ratio": 0.32,
}


def test_a_replay(tmp_path: Path) -> None:
    folder = write(tmp_path / "run7", {"prediction.json": REPORT, "requests.jsonl": ROWS})
    (part,) = plan(folder).parts
    assert (part.format, part.kind, len(part.uses)) == ("aisimulate", "replay", 2)
    (run,) = runs(folder, tmp_path / "store")
    found = by_id(run)
    assert (found["r0"]["dispatched_ns"], found["r0"]["first_visible_ns"]) == (0, 10_000_000)
    assert (found["r1"]["last_visible_ns"], found["r1"]["end_ns"]) == (125_000_000, 125_000_000)
    assert (found["r1"]["preemptions"], found["r1"]["cached_tokens"]) == (1, 32)  # reused at the first admission
    assert (found["r2"]["output_tokens"], found["r2"]["requested_output_tokens"]) == (1, 4)
    assert (found["r3"]["status"], found["r3"]["tool_status"]) == ("rejected", "rejected")
    assert (found["r0"]["worker_id"], found["r0"]["dp_rank"], found["r0"]["turn_index"]) == ("0", 1, 0)
    admissions = [
        (r["request_id"], r["ordinal"], r["cached_tokens"], r["is_readmission"]) for r in rows(run, "admissions")
    ]
    assert admissions == [("r0", 0, 32, False), ("r1", 0, 32, False), ("r1", 1, 64, True), ("r2", 0, 32, False)]
    assert checks(run)["summary_reproduced"][0] == "pass", checks(run)["summary_reproduced"]
    assert checks(run)["summary_reproduced"][1].startswith("all 24 figures")
    for check in ("rows_counted", "tpot_agrees", "admissions_agree"):
        assert verdict(run, check) == "pass"
    told = {(r["name"], r["statistic"]): r for r in rows(run, "reported")}
    assert told["tpot", "mean"]["metric"] == "tpot"
    assert told["itl", "mean"]["metric"] == "itl"
    assert told["ttft", "p50"]["n"] == 3
    assert "halves away from zero" in told["ttft", "p50"]["definition"]
    assert fact(run, "definitions", "first_token") == "first simulated token"
    assert [(p["name"], p["start_ns"], p["end_ns"]) for p in run.manifest["phases"]] == [("profile", 0, 230_000_000)]


def test_a_pair_with_it_is_no_blind_prediction(tmp_path: Path) -> None:
    (replay,) = runs(write(tmp_path / "a", {"requests.jsonl": ROWS}), tmp_path / "store")
    measured = {
        "error_code": None,
        "ttft_s": 0.5,
        "end_to_end_latency_s": 1.0,
        "number_output_tokens": 5,
        "number_input_tokens": 5,
    }
    (run,) = runs(write(tmp_path / "b", {"r.json": [measured]}), tmp_path / "store")
    assert replay.lineage["fitted_on"] is None
    assert replay.lineage["store_held_at_seal"] is None
    assert make_label(replay, run) == "post_result_exploratory"


def test_nearest_rank_rounds_halves_up() -> None:
    assert nearest_rank([1.0, 2.0], 50) == 2.0
    assert nearest_rank([4.0, 1.0, 3.0, 2.0], 50) == 3.0  # rank 1.5
    assert nearest_rank([1.0, 2.0, 3.0], 24) == 1.0  # rank 0.48
    assert nearest_rank([], 50) is None


def test_a_report_that_does_not_follow(tmp_path: Path) -> None:
    files = {"p.json": {**REPORT, "median_tpot_ms": 4.0}, "requests.jsonl": ROWS}
    (run,) = runs(write(tmp_path / "in", files), tmp_path / "store")
    assert "tpot median 4, from rows 5" in checks(run)["summary_reproduced"][1]


def test_lost_rows_are_told(tmp_path: Path) -> None:
    (run,) = runs(write(tmp_path / "in", {"p.json": REPORT, "requests.jsonl": ROWS[:3]}), tmp_path / "store")
    assert checks(run)["rows_counted"] == ("fail", "3 rows, the report counts 4")


def test_an_empty_sample_is_no_zero(tmp_path: Path) -> None:
    """Every statistic of no value is written as 0."""
    nothing = dict.fromkeys(REPORT, 0) | {"num_requests": 1, "wall_time_ms": 1.0}
    (run,) = runs(write(tmp_path / "in", {"p.json": nothing, "requests.jsonl": [REJECTED]}), tmp_path / "store")
    told = figures(run)
    assert not [key for key in told if key[0] in ("ttft", "tpot", "itl", "e2e_latency")]
    assert told["completed_requests", "value"] == 0
    assert verdict(run, "summary_reproduced") == "pass", checks(run)["summary_reproduced"]


def test_a_report_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"prediction.json": REPORT})
    (part,) = plan(folder).parts
    assert part.kind == "imported_summary"
    (run,) = runs(folder, tmp_path / "store")
    assert figures(run)["ttft", "p90"] == 30.0
    assert "summary_reproduced" not in checks(run)


def test_a_warmed_run(tmp_path: Path) -> None:
    """60 s of profile, then 10 s of grace; one request was in flight at the end and has no row, one never began."""
    profile = {
        "profile_start_ms": 5_000.0,
        "admission_cutoff_ms": 65_000.0,
        "response_grace_deadline_ms": 75_000.0,
        "finished_at_ms": 76_000.0,
        "issued_requests": 3,
        "never_issued_requests": 1,
        "client_in_flight_requests": 1,
    }
    agentic = {"dispatched_at_ms": 3.0, "metadata": {"agentic_phase": "profile"}, "play_id": "p1"}
    files = {
        "p.json": {**REPORT, "num_requests": 2, "agentic_profile": profile, "agentic_qualification": "functional_only"},
        "requests.jsonl": [{**FIRST, **agentic}, {**SECOND, "terminal_status": "canceled"}],
    }
    (run,) = runs(write(tmp_path / "in", files), tmp_path / "store")
    phases = [(p["name"], p["start_ns"] // 10**9, p["end_ns"] // 10**9) for p in run.manifest["phases"]]
    assert phases == [("profile", 0, 60), ("grace", 60, 70), ("drain", 70, 71)]
    row = by_id(run)["r0"]
    assert (row["scheduled_ns"], row["dispatched_ns"], row["play_id"]) == (0, 3_000_000, "p1")
    canceled, lost = by_id(run)["r1"], by_id(run)["in flight 0"]
    assert (canceled["status"], canceled["first_visible_ns"], canceled["output_tokens"]) == ("canceled", None, 2)
    assert (lost["status"], lost["error_type"], lost["dispatched_ns"]) == ("in_flight", "no record", None)
    ledger = run.manifest["ledger"]["total"]
    assert (ledger["ok"], ledger["canceled"], ledger["in_flight"], ledger["never_issued"]) == (1, 1, 1, 1)
    assert verdict(run, "all_issued") == "fail"
    assert run.lineage["report"] == {"agentic_qualification": "functional_only"}
    assert fact(run, "client", "duration_s") == 60.0


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**FIRST, "request_id": "r1"}, "request 'r1' comes twice"),
        ({**FIRST, "terminal_status": "lost"}, "no terminal_status that is known"),
        ({**FIRST, "request_id": None, "uuid": None}, "neither request_id nor uuid"),
    ],
)
def test_rows_that_are_none(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    folder = write(tmp_path / "in", {"requests.jsonl": [SECOND, row]})
    with pytest.raises(GapscopeError, match=f"requests.jsonl line 2: {reason}"):
        runs(folder, tmp_path / "store")
    (run,) = runs(folder, tmp_path / "store", skip_bad_rows=True)
    assert len(rows(run)) == 1


def test_values_that_are_none(tmp_path: Path) -> None:
    odd = {
        **FIRST,
        "first_token_ms": float("nan"),
        "input_length": "many",
        "admission_history": [7],
        "routing_history": 1,
    }
    (run,) = runs(write(tmp_path / "in", {"requests.jsonl": json.dumps(odd) + "\n"}), tmp_path / "store")
    (row,) = rows(run)
    assert (row["first_visible_ns"], row["last_visible_ns"], row["input_tokens"]) == (None, None, None)
    assert row["output_tokens"] == 3
