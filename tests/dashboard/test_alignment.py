"""The rungs of an alignment: figures worked out by hand, verdicts, which rung may be read, and what may be claimed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_runs import MS, SAMPLES, a_pass, identity, request, sample_id, write

from dashboard.cli import main
from dashboard.compare.align import Alignment, Check, Presets, align
from dashboard.compare.align.values import held, verdict_of
from dashboard.compare.noise import Noise
from dashboard.render.align import alignment_text
from dashboard.store import Store
from engine.deployment.engine_log import read_memory_log
from engine.deployment.kept_log import keep_memory_log
from engine.errors import GapscopeError
from engine.replay.again import Again, TableAgain

COUNT = 40
SPACING = 200 * MS
FIXED = {
    "timing": "fixed",
    "fixed_pass_us": 11000.0,
    "fixed_prefill_token_us": 1000.0,
    "fixed_decode_request_us": 0.0,
    "fixed_kv_token_ns": 0.0,
}
"""11 ms for a decode, 44 ms for a prefill of 33 tokens: a tenth more than the passes below take."""
GIB = 1 << 30


def rows(stretch: float = 1.0, shift: int = 0) -> dict[str, list[dict[str, Any]]]:
    """40 requests, one each 200 ms, on two lanes: a prefill of 33 tokens in 40 ms, then 4 decodes of 10 ms."""
    found: dict[str, list[dict[str, Any]]] = {"requests": [], "passes": [], "chunks": []}
    for k in range(COUNT):
        at, name = k * SPACING, f"r{k:02}"
        found["requests"].append(request(name, at=at, lane=k % 2, end_ns=at + 181 * MS + shift))
        spans = [(at + 50 * MS, 40), *((at + (100 + 20 * j) * MS, 10) for j in range(4))]
        for start, length in spans:
            new = 33 if length == 40 else 0
            lasts = round(length * MS * stretch)
            found["passes"].append(
                a_pass(
                    len(found["passes"]),
                    start_ns=start,
                    end_ns=start + lasts,
                    duration_ns=lasts,
                    num_prefill_requests=1 if new else 0,
                    sum_prefill_tokens=new,
                    sum_prefill_kv_tokens=32 if new else 0,
                    num_decode_requests=0 if new else 1,
                    sum_decode_kv_tokens=0 if new else 70,
                )
            )
        found["chunks"] += [
            {"request_id": name, "ordinal": j, "time_ns": at + (100 + 20 * j) * MS, "tokens": 1, "visible": True}
            for j in range(5)
        ]
    return found


def seal(store: Path, slug: str, data: dict[str, list[dict[str, Any]]] | None = None, **options: Any) -> str:
    held_rows = data or rows()
    options.setdefault("record", identity(scheduler__max_num_seqs=4))
    return write(store, slug, held_rows["requests"], passes=held_rows["passes"], chunks=held_rows["chunks"], **options)


def replayed(store: Path, slug: str = "replay", data: dict[str, Any] | None = None, **lineage: Any) -> str:
    return seal(store, slug, data, kind="replay", lineage={"config": FIXED, "fitted_on": [], **lineage})


def found_in(alignment: Alignment, rung: int, name: str, side: str = "both") -> Check:
    (check,) = [c for c in alignment.rungs[rung - 1].checks if c.name.startswith(name) and c.side == side]
    return check


def test_the_arithmetic_by_hand(tmp_path: Path) -> None:
    measured, replay = seal(tmp_path, "run"), replayed(tmp_path)
    found = align(Store([tmp_path]), measured, replay)
    assert found.rungs[1].verdict == "pass"
    for side in ("measured", "replay"):
        law = found_in(found, 2, "Little's law", side)
        assert law.expected == pytest.approx(COUNT * 0.181 / 10)
        assert law.found == pytest.approx(COUNT / 10 * 0.180)
        assert law.off == pytest.approx(180 / 181 - 1)
        lanes = found_in(found, 2, "lanes", side)
        assert (lanes.expected, lanes.found) == (2.0, pytest.approx(0.724))
        new, decodes = (found_in(found, 2, name, side) for name in ("new tokens", "decodes"))
        assert (new.expected, new.found, decodes.expected, decodes.found) == (1320.0, 1320.0, 160.0, 160.0)
        # 40 x 80 ms over 10 s decode at a time, 20 ms per token: 16 tok/s, and 4 first tokens per second
        rate = found_in(found, 2, "output rate", side)
        assert (rate.expected, rate.found) == (pytest.approx(20.0), pytest.approx(20.0))
        assert found_in(found, 2, "time in passes", side).found == pytest.approx((40 * 0.040 + 160 * 0.010) / 10)
        assert found_in(found, 2, "most running", side).verdict == "pass"
    assert found_in(found, 2, "effective concurrency").off == 0


def test_a_pass_that_is_missing_breaks_the_sum_of_tokens(tmp_path: Path) -> None:
    data = rows()
    del data["passes"][-1]  # a decode
    found = align(Store([tmp_path]), seal(tmp_path, "run", data), replayed(tmp_path))
    decodes = found_in(found, 2, "decodes", "measured")
    assert (decodes.expected, decodes.found, decodes.verdict) == (160.0, 159.0, "fail")
    assert [found.readable(rung) for rung in found.rungs] == [True, True, False, False, False]
    assert found.first_failed is found.rungs[1]
    (claim,) = found.claim
    assert claim.startswith("Nothing may be claimed end to end: rung 2 (Consistency arithmetic) fails")
    text = alignment_text(found)
    assert text.count("not to be read yet") == 6  # in the list of rungs and above each
    assert "decode-only passes" not in text
    assert "decode-only passes" in alignment_text(found, ahead=True)


def test_a_canceled_request_may_have_got_anywhere(tmp_path: Path) -> None:
    data = rows()
    data["requests"][-1] |= {"status": "canceled", "output_tokens": 3}
    found = align(Store([tmp_path]), seal(tmp_path, "run", data), replayed(tmp_path))
    # 39 successes: 1287 new tokens, and the canceled one's 33 at most; 156 decodes and at most 3
    new, decodes = (found_in(found, 2, name, "measured") for name in ("new tokens", "decodes"))
    assert (new.verdict, new.found) == ("pass", 1320.0)
    assert (decodes.verdict, decodes.expected, decodes.found) == ("fail", 159.0, 160.0)


def test_a_preemption_moves_a_token_to_the_prefill(tmp_path: Path) -> None:
    data = rows()
    data["requests"][0] |= {"preemptions": 1, "recomputed_tokens": 66}
    prefill, decode = data["passes"][0], data["passes"][-1]
    prefill["sum_prefill_tokens"] += 67  # what was computed before, and the token that was sampled last
    data["passes"].remove(decode)
    found = align(Store([tmp_path]), seal(tmp_path, "run", data), replayed(tmp_path))
    new, decodes = (found_in(found, 2, name, "measured") for name in ("new tokens", "decodes"))
    assert (new.found, new.verdict) == (1387.0, "pass")
    assert (decodes.found, decodes.verdict) == (159.0, "pass")


def test_lanes_count_once_whatever_they_hold(tmp_path: Path) -> None:
    data = rows()
    data["requests"][1] |= {"lane": 0, "dispatched_ns": 100 * MS}  # until 381 ms, beside the first until 181 ms
    for row in data["requests"][2:]:
        row["lane"] = 1
    found = align(Store([tmp_path]), seal(tmp_path, "run", data), replayed(tmp_path))
    lanes = found_in(found, 2, "lanes", "measured")
    assert lanes.found == pytest.approx((0.381 + 38 * 0.181) / 10)
    for k, row in enumerate(data["requests"]):
        row["lane"] = k % 3
    more = align(Store([tmp_path]), seal(tmp_path, "three", data), replayed(tmp_path))
    assert found_in(more, 2, "lanes", "measured").verdict == "fail"  # three lanes at work where two are stated


def test_a_response_that_closes_late_breaks_littles_law(tmp_path: Path) -> None:
    found = align(Store([tmp_path]), seal(tmp_path, "run", rows(shift=20 * MS)), replayed(tmp_path))
    law = found_in(found, 2, "Little's law", "measured")
    assert law.off == pytest.approx(180 / 201 - 1)
    assert law.verdict == "fail"


def test_what_was_not_recorded_is_not_judged(tmp_path: Path) -> None:
    data = rows()
    measured = write(tmp_path, "thin", data["requests"], record=identity())
    found = align(Store([tmp_path]), measured, replayed(tmp_path))
    for name in ("new tokens", "decodes", "output rate", "time in passes", "most running"):
        check = found_in(found, 2, name, "measured")
        assert check.verdict == "unknown"
        assert check.why
        assert check.needed
    assert found.rungs[3].verdict == "unknown"
    assert found.rungs[3].needed == ("Passes (FPM) of the measured run.",)


@pytest.mark.parametrize(("tolerance", "repeat", "verdict"), [(0.05, None, "fail"), (0.11, None, "pass")])
def test_passes_by_role_at_the_measured_geometry(
    tmp_path: Path, tolerance: float, repeat: float | None, verdict: str
) -> None:
    found = align(Store([tmp_path]), seal(tmp_path, "run"), replayed(tmp_path), tolerance=tolerance)
    decode, prefill = (found_in(found, 4, name) for name in ("decode-only", "prefill-only"))
    assert (decode.expected, decode.found, decode.n) == (10.0, 11.0, 160)
    assert (prefill.expected, prefill.found, prefill.n) == (40.0, 44.0, 40)
    assert decode.off == pytest.approx(0.1)
    assert decode.verdict == prefill.verdict == verdict
    assert found_in(found, 4, "mixed").verdict == "unknown"
    assert found.rungs[3].verdict == verdict


@pytest.mark.parametrize(
    ("stretch", "count", "verdict"), [(1.08, 1, "unknown"), (1.08, 2, "unknown"), (1.08, 3, "fail"), (0.88, 1, "pass")]
)
def test_the_noise_of_a_class_is_that_of_its_repeats(tmp_path: Path, stretch: float, count: int, verdict: str) -> None:
    measured, replay = seal(tmp_path, "run"), replayed(tmp_path)
    for at in range(count):
        seal(tmp_path, f"again{at}", rows(stretch, shift=1000 * (at + 1)))
    found = align(Store([tmp_path]), measured, replay)
    decode = found_in(found, 4, "decode-only")
    assert decode.noise == pytest.approx(abs(stretch - 1))
    assert decode.allowed == pytest.approx(abs(stretch - 1))
    assert decode.verdict == verdict
    assert ("no redrawing" in decode.why) == (verdict == "unknown")
    assert found.rungs[3].verdict == verdict


def test_a_timing_fitted_on_these_passes_is_not_judged_by_them(tmp_path: Path) -> None:
    measured = seal(tmp_path, "run")
    for at, (phases, verdict) in enumerate(((None, "unknown"), (["profile"], "unknown"), (["warmup"], "fail"))):
        replay = replayed(tmp_path, f"replay{at}", fitted_on=[{"run_id": measured, "phases": phases}])
        assert align(Store([tmp_path]), measured, replay).rungs[3].verdict == verdict


def with_memory(**changes: Any) -> Any:
    """Llama-3.1-8B on one H100: 8.03 B parameters of two bytes, 131,072 bytes of KV per token, a pool of 50 GiB."""
    facts = {
        "hardware__part": "NVIDIA H100 SXM",
        "capacity__memory_weights_bytes": 2 * 8_030_261_248,
        "capacity__memory_kv_bytes": 50 * GIB,
        "capacity__kv_blocks": 50 * GIB // (131072 * 16),
        "capacity__usable_kv_blocks": 50 * GIB // (131072 * 16) - 1,
        "capacity__block_size": 16,
        "capacity__max_model_len": 8192,
    }
    return identity(**(facts | changes))


LLAMA = Presets("h100-sxm", "llama-3.1-8b")


def test_memory_component_by_component(tmp_path: Path) -> None:
    measured = seal(tmp_path, "run", record=with_memory())
    replay = seal(tmp_path, "replay", kind="replay", record=with_memory(), lineage={"config": FIXED})
    store = Store([tmp_path])
    found = align(store, measured, replay, presets=LLAMA)
    assert found.rungs[2].verdict == "pass"
    assert found_in(found, 3, "KV per token").found == 131072
    assert found_in(found, 3, "KV tokens").found == 409600
    assert found_in(found, 3, "KV blocks").off == 0
    assert found_in(found, 3, "weights").off == pytest.approx(0, abs=0.001)
    silent = align(store, measured, replay)
    assert silent.rungs[2].verdict == "unknown"  # equal pools show nothing of the components
    assert "presets" in silent.rungs[2].needed[0]


def test_one_wrong_component_is_one_check_that_fails(tmp_path: Path) -> None:
    record = with_memory(capacity__memory_weights_bytes=20 * GIB)
    measured = seal(tmp_path, "run", record=record)
    replay = seal(tmp_path, "replay", kind="replay", record=record, lineage={"config": FIXED})
    found = align(Store([tmp_path]), measured, replay, presets=LLAMA)
    assert [check.name for check in found.rungs[2].failed] == ["weights"]
    assert not found.readable(found.rungs[3])


def test_the_engines_log_is_read_before_the_record(tmp_path: Path) -> None:
    measured = seal(tmp_path, "run", record=with_memory(capacity__memory_weights_bytes=20 * GIB))
    replay = seal(tmp_path, "replay", kind="replay", record=with_memory(), lineage={"config": FIXED})
    keep_memory_log(read_memory_log(["Model loading took 14.96 GiB and 2 seconds"]), measured, tmp_path)
    found = align(Store([tmp_path]), measured, replay, presets=LLAMA)
    weights = found_in(found, 3, "weights")
    assert (weights.expected, weights.verdict) == (14.96, "pass")


def test_another_pool_is_another_deployment(tmp_path: Path) -> None:
    measured = seal(tmp_path, "run", record=with_memory())
    other = with_memory(capacity__usable_kv_blocks=20_000)
    replay = seal(tmp_path, "replay", kind="replay", record=other, lineage={"config": FIXED, "like": measured})
    found = align(Store([tmp_path]), measured, replay)
    pool = found_in(found, 3, "usable KV blocks")
    assert (pool.expected, pool.found, pool.verdict) == (25_599, 20_000, "fail")


def test_a_pool_taken_from_the_run_shows_nothing_of_memory(tmp_path: Path) -> None:
    measured = seal(tmp_path, "run", record=with_memory())
    lineage = {"config": FIXED, "like": measured, "knobs_changed": {}}
    replay = seal(tmp_path, "replay", kind="replay", record=with_memory(), lineage=lineage)
    rung = align(Store([tmp_path]), measured, replay).rungs[2]
    assert rung.verdict == "unknown"
    assert len(rung.needed) == 1


@pytest.mark.parametrize(("digest", "verdict"), [("a" * 64, "pass"), ("b" * 64, "fail")])
def test_the_first_table_that_differs_is_named(digest: str, verdict: str) -> None:
    store = Store([SAMPLES])
    measured, replay = sample_id("ample8"), sample_id("ample8-predicted")
    tables = (TableAgain("requests", "c" * 64, "c" * 64), TableAgain("passes", "a" * 64, digest, "row 3, column x"))
    found = align(store, measured, replay, again=Again(replay, "gapscope 0", "gapscope 1", tables))
    assert found.rungs[0].verdict == verdict
    if verdict == "fail":
        assert "the first table that differs is passes: row 3, column x; recorded by gapscope 0" in found.rungs[0].says
        assert not any(found.readable(rung) for rung in found.rungs[1:])


def test_a_replay_that_was_not_played_again_is_not_judged() -> None:
    found = align(Store([SAMPLES]), sample_id("ample8"), sample_id("ample8-predicted"))
    assert found.rungs[0].verdict == "unknown"
    assert found.current is found.rungs[0]


def test_two_replays_of_one_config_say_the_same(tmp_path: Path) -> None:
    made = {
        "config": FIXED,
        "config_digest": "c1",
        "timing": {"kind": "fixed", "model_digest": "m1"},
    }
    record = identity(trace__digest="50853bd0473a", scheduler__max_num_seqs=4)
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "trace-50853bd0473a.parquet").touch()
    measured = seal(tmp_path, "run", record=record)
    replay = seal(tmp_path, "one", kind="replay", record=record, lineage=made)
    seal(tmp_path, "two", rows(1.01), kind="replay", record=record, lineage=made | {"like": "other"})
    found = align(Store([tmp_path]), measured, replay)
    assert {check.name: check.verdict for check in found.rungs[0].checks} == {
        "table requests": "pass",
        "table passes": "fail",
        "table chunks": "pass",
    }
    assert "row 0, column end_ns" in found_in(found, 1, "table passes", "replay").why


def test_runs_of_another_regime_are_not_compared_end_to_end(tmp_path: Path) -> None:
    measured = seal(tmp_path, "run")
    replay = seal(tmp_path, "replay", kind="replay", record=identity(hardware__part="H100"), lineage={"config": FIXED})
    store = Store([tmp_path])
    assert align(store, measured, replay).rungs[4].verdict == "unknown"
    assert align(store, measured, replay, acknowledged=True).rungs[4].verdict == "pass"


def test_what_may_be_claimed_names_what_was_not_judged(tmp_path: Path) -> None:
    found = align(Store([tmp_path]), seal(tmp_path, "run"), replayed(tmp_path), tolerance=0.11)
    assert found.verdict == "pass"
    said = " ".join(found.claim)
    assert said.startswith("May be claimed of this pair: agreement in TTFT mean")
    assert "Rungs 1 (Reproduce), 3 (Memory ledger) could not be judged" in said
    assert [rung.number for rung in found.rests_on(found.rungs[4])] == [1, 3]


def test_kinds_and_tolerance_are_checked(tmp_path: Path) -> None:
    measured, replay = seal(tmp_path, "run"), replayed(tmp_path)
    store = Store([tmp_path])
    with pytest.raises(GapscopeError, match="is no measured run"):
        align(store, replay, measured)
    with pytest.raises(GapscopeError, match="expected a share from 0 to 1"):
        align(store, measured, replay, tolerance=5)


def test_bounds() -> None:
    def check(expected: float | None, found: float | None, **more: Any) -> Check:
        return held("x", "both", expected, found, "ms", 0.05, **more)

    assert check(100, 105).verdict == "pass"
    assert check(100, 94.9).verdict == "fail"
    assert check(100, 94.9, noise=Noise("repeats", 94, 106, 1)).verdict == "pass"
    tight = check(100, 94.9, noise=Noise("repeats", 99, 101, 1, redrawn=(94, 101)))
    assert (tight.allowed, tight.noise) == (0.05, pytest.approx(0.01))
    assert (tight.verdict, tight.why) == ("unknown", "beyond one repeat, inside redrawing")
    assert "from 3 on" in tight.needed
    assert check(100, 94.9, noise=Noise("repeats", 99, 101, 1, redrawn=(95, 105))).verdict == "fail"
    assert check(100, 94.9, noise=Noise("repeats", 99, 101, 3)).verdict == "fail"
    uneven = Noise("lanes", 99, 120, 200, 8)  # 6 less is as far out as 21 more, though the other side reaches 20
    assert [check(100, found, noise=uneven).verdict for found in (94, 119, 121)] == ["fail", "pass", "fail"]
    assert (check(0, 0).verdict, check(0, 1).verdict, check(None, 1).verdict) == ("pass", "fail", "unknown")
    passed, loose = check(1, 1), replace(check(1, 1), decides=False)
    assert verdict_of([loose]) == verdict_of([]) == "unknown"
    assert verdict_of([loose, passed]) == "pass"
    assert verdict_of([passed, check(1, 2, decides=False)]) == "fail"


def test_the_sample_fails_end_to_end_and_its_decodes_are_open(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["align", "ample8", "--replay", "ample8-predicted", "--store", str(SAMPLES), "--format", "json"]
    assert main(arguments) == 1
    told = json.loads(capsys.readouterr().out)
    assert [rung["verdict"] for rung in told["rungs"]] == ["pass", "pass", "unknown", "unknown", "fail"]
    assert all(rung["readable"] for rung in told["rungs"])
    assert told["first_failed"] == 5
    (decode,) = [check for check in told["rungs"][3]["checks"] if check["check"] == "decode-only passes"]
    assert decode["off"] > decode["allowed"] == decode["noise"]  # and there is one repeat only
    assert (decode["verdict"], "beyond one repeat, no redrawing" in decode["why"]) == ("unknown", True)
    # the passes of the recording hold exactly the tokens of its requests
    sums = [check for check in told["rungs"][1]["checks"] if check["unit"] == "tokens"]
    assert all(check["found"] == check["expected"] for check in sums)


def test_markdown_and_a_wider_tolerance(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["align", "ample8", "--store", str(SAMPLES), "--quick", "--tolerance", "12", "--format", "markdown"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert said.startswith("# alignment of measured ample8-")
    assert "| 1 | Reproduce | cannot be judged |" in said.replace("   ", " ")
    assert "--tolerance 12" in said
    assert "May be claimed of this pair: agreement in TTFT mean" in said


def test_an_engines_log_is_kept_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured, replay = seal(tmp_path, "run", record=with_memory()), replayed(tmp_path)
    log = tmp_path / "engine.log"
    log.write_text("Model loading took 20.0 GiB and 2 seconds\n", encoding="utf-8")
    names = ["--part", "h100-sxm", "--model-preset", "llama-3.1-8b"]
    code = main(["align", measured, "--replay", replay, "--store", str(tmp_path), "--engine-log", str(log), *names])
    said = capsys.readouterr().out
    assert code == 1
    assert "off: block size +100.0%, weights -25.2%" in said
    assert main(["align", measured, "--replay", replay, "--store", str(tmp_path), "--engine-log", "absent.log"]) == 2
