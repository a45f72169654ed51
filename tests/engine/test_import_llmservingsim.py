"""LLMServingSim: a simulated and a measured side of the same two requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from foreign_files import by_id, checks, fact, plan, rows, runs, verdict, write

from engine.bundle import make_label
from engine.errors import GapscopeError

HEAD = "instance id,request id,model,input,output,arrival,end_time,latency,queuing_delay,TTFT,TPOT,ITL"
# Request 1 arrives at 1 s, has its first token after 0.5 s and three more 0.1, 0.2 and 0.3 s apart: it ends at 2.1 s.
SIM = (
    '0,1,org/m,100,4,1000000000,2100000000,1100000000,50000000,500000000,200000000,"[100000000, 200000000, 300000000]"',
    "0,0,org/m,20,1,500000000,800000000,300000000,0,300000000,0,[]",
)


def sim(*lines: str) -> str:
    return "\n".join((HEAD, *(lines or SIM))) + "\n"


def measured(number: int, arrival: float, queued: float, **values: Any) -> dict[str, Any]:
    return {
        "request_id": f"bench-{number}",
        "input_toks": 100,
        "output_toks": 4,
        "arrival_time": arrival,
        "queued_ts": queued,
        "scheduled_ts": queued + 0.05,
        "first_token_ts": queued + 0.5,
        "last_token_ts": queued + 1.1,
        **values,
    }


# The engine's clock is 1e9 s behind; request 0 was queued at once, request 1 after 0.25 s.
MEASURED = [
    measured(0, 1_000_000_100.0, 100.0, output_toks=1, last_token_ts=100.5),
    measured(1, 1_000_000_101.0, 101.25),
]
META = {
    "schema_version": 1,
    "vllm_version": "0.28.0",
    "model": "org/m",
    "engine_kwargs": {"tensor_parallel_size": 2, "max_num_seqs": 128, "dtype": "bfloat16"},
    "dataset_path": "w.jsonl",
    "dataset_hash": "05e4",
    "num_requests": 2,
    "kv_cache": {"num_gpu_blocks": 35913, "block_size": 16, "enable_prefix_caching": True},
    "hardware": {"device_name": "GPU X", "device_count": 2},
}


def test_the_simulated_side(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"sim.csv": sim()})
    (part,) = plan(folder).parts
    assert (part.format, part.kind) == ("llmservingsim", "replay")
    assert any("no blind prediction" in note for note in part.notes)
    (run,) = runs(folder, tmp_path / "store")
    first, one = by_id(run)["1"], by_id(run)["0"]
    assert (one["dispatched_ns"], one["first_visible_ns"], one["last_visible_ns"]) == (0, 3 * 10**8, 3 * 10**8)
    assert (first["dispatched_ns"], first["first_admit_ns"]) == (5 * 10**8, 550_000_000)
    assert (first["first_visible_ns"], first["last_visible_ns"]) == (10**9, 1_600_000_000)
    assert (first["output_tokens"], one["output_tokens"]) == (4, 1)
    stamps = [row["time_ns"] for row in rows(run, "chunks") if row["request_id"] == "1"]
    assert stamps == [10**9, 1_100_000_000, 1_300_000_000, 1_600_000_000]
    assert fact(run, "model", "name") == "org/m"
    assert fact(run, "definitions", "first_token") == "first simulated token"
    assert {name: verdict(run, name) for name in ("times_add_up", "lengths_agree", "one_model")} == {
        "times_add_up": "pass",
        "lengths_agree": "pass",
        "one_model": "pass",
    }


def test_older_versions_write_prompt_and_output_into_one_column(tmp_path: Path) -> None:
    text = sim(SIM[0].replace("org/m,100,4,", "org/m,100,104,"))
    (run,) = runs(write(tmp_path / "in", {"sim.csv": text}), tmp_path / "store")
    assert by_id(run)["1"]["output_tokens"] == 4
    assert verdict(run, "lengths_agree") == "pass"


def test_a_simulation_that_contradicts_itself(tmp_path: Path) -> None:
    text = sim(SIM[0].replace("2100000000", "2200000000").replace("org/m,100,4,", "org/m,100,9,"))
    (run,) = runs(write(tmp_path / "in", {"sim.csv": text}), tmp_path / "store")
    assert verdict(run, "times_add_up") == "fail"
    assert verdict(run, "lengths_agree") == "fail"


def test_the_measured_side_on_one_clock(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"requests.jsonl": MEASURED, "meta.json": META})
    (part,) = plan(folder).parts
    assert (part.kind, len(part.uses)) == ("measured", 2)
    (run,) = runs(folder, tmp_path / "store")
    zero, one = by_id(run)["bench-0"], by_id(run)["bench-1"]
    assert (zero["dispatched_ns"], zero["received_ns"], zero["first_visible_ns"]) == (0, 0, 5 * 10**8)
    assert (one["dispatched_ns"], one["received_ns"]) == (10**9, 1_250_000_000)
    assert (one["first_admit_ns"], one["last_visible_ns"]) == (1_300_000_000, 2_350_000_000)
    assert fact(run, "source", "version") == "0.28.0"
    assert fact(run, "capacity", "kv_blocks") == 35913
    assert fact(run, "definitions", "first_token") == "first token inside the engine"
    assert "250.000 ms longer" in checks(run)["one_clock"][1]
    assert verdict(run, "rows_counted") == "pass"


def test_a_pair_names_its_other_side_and_claims_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"out/sim.csv": sim(), "vllm/requests.jsonl": MEASURED})
    replay, run = runs(folder, tmp_path / "store")
    assert replay.manifest["kind"] == "replay"
    assert replay.lineage["pair"]["other"]["file"] == "requests.jsonl"
    assert run.lineage["pair"]["other"]["sha256"] == replay.lineage["source_files"]["sim.csv"]
    assert make_label(replay, run) == "post_result_exploratory"
    assert [by_id(replay)["1"][k] for k in ("source_trace_id", "source_outer_index")] == [
        by_id(run)["bench-1"][k] for k in ("source_trace_id", "source_outer_index")
    ]


def test_several_pairs_are_told_by_their_folders(tmp_path: Path) -> None:
    files = {
        f"{name}/{file}": content for name in "ab" for file, content in (("sim.csv", sim()), ("m.jsonl", MEASURED))
    }
    others = {part.uses[0].file.name: part.notes[0] for part in plan(write(tmp_path / "in", files)).parts}
    assert others["a/sim.csv"].endswith("a/m.jsonl.")
    assert others["b/m.jsonl"].endswith("b/sim.csv.")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (SIM[1].replace(",0,org", ",1,org"), "request '1' comes twice"),
        (SIM[1].replace("500000000,800000000", "soon,800000000"), "arrival is 'soon', expected a number"),
        (SIM[1].replace("[]", "gaps"), "ITL is 'gaps', expected a list"),
        (SIM[1].replace("500000000,800000000", "-5,800000000"), "arrival is -5"),
    ],
)
def test_simulated_rows_that_are_none(tmp_path: Path, line: str, reason: str) -> None:
    folder = write(tmp_path / "in", {"sim.csv": sim(SIM[0], line)})
    with pytest.raises(GapscopeError, match=f"sim.csv line 3: {reason}"):
        runs(folder, tmp_path / "store")
    (run,) = runs(folder, tmp_path / "store", skip_bad_rows=True)
    assert len(rows(run)) == 1


def test_measured_rows_that_are_none(tmp_path: Path) -> None:
    broken = [MEASURED[0], measured(2, "noon", 5.0), MEASURED[0], measured(3, 1_000_000_102.0, 102.0, output_toks=0)]  # type: ignore[arg-type]
    folder = write(tmp_path / "in", {"requests.jsonl": broken})
    with pytest.raises(GapscopeError, match=r"requests.jsonl line 2: arrival_time is missing"):
        runs(folder, tmp_path / "store")
    (run,) = runs(folder, tmp_path / "store", skip_bad_rows=True)
    assert sorted(by_id(run)) == ["bench-0", "bench-3"]
    assert by_id(run)["bench-3"]["flags"] == "zero output"


def test_no_row_at_all(tmp_path: Path) -> None:
    (run,) = runs(write(tmp_path / "in", {"sim.csv": HEAD + "\n"}), tmp_path / "store")
    assert rows(run) == []
    assert verdict(run, "times_add_up") == "unknown"
