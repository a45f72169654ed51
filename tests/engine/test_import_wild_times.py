"""One wild time in a result moves every span: it is kept, and a check says how many requests it concerns."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.bundle import Bundle, open_bundle
from engine.importers import import_any
from engine.importers.clients.within import Spans, window_start
from tests.engine import fuzz_inputs

DATA = Path(__file__).parents[1] / "data"
VLLM = json.loads((DATA / "vllm_bench" / "detailed.json").read_text())
SGLANG = json.loads((DATA / "sglang_bench" / "out_sglang.jsonl").read_text().splitlines()[0])
STARTS = VLLM["start_times"]


def imported(document: Any, folder: Path, **changes: Any) -> Bundle:
    """The run of a result in which ``array=(place, value)`` stand, or ``key=value``."""
    document = json.loads(json.dumps(document))
    for key, change in changes.items():
        if isinstance(change, tuple):
            document[key][change[0]] = change[1]
        else:
            document[key] = change
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "r.json").write_text(json.dumps(document) + "\n")
    (run_id,) = import_any(folder / "r.json", folder / "store")
    return open_bundle(folder / "store" / run_id)


def said(bundle: Bundle, name: str) -> tuple[str, str]:
    return next((check.verdict, check.detail) for check in bundle.qualification if check.check == name)


def row(bundle: Bundle, place: int) -> dict[str, Any]:
    table = bundle.table("requests")
    assert table is not None
    return next(r for r in table.to_pylist() if r["request_id"] == str(place))


@pytest.mark.parametrize("moved", [1000.0, -1000.0])
def test_a_wild_start_is_kept_and_named(tmp_path: Path, moved: float) -> None:
    bundle = imported(VLLM, tmp_path, start_times=(5, STARTS[5] + moved))
    verdict, detail = said(bundle, "within_duration")
    assert verdict == "fail"
    assert detail.startswith(
        "1 of 40 requests with a time lie outside of the 10.0248 s that r.json states (up to 1.1 s more are allowed)"
    )
    assert "the first outside is request 5" in detail
    # The row stays, and time 0 stays with the 39 others.
    start = STARTS[5] + moved - min(STARTS)
    assert row(bundle, 5)["dispatched_ns"] == pytest.approx(start * 1e9, abs=2)
    assert row(bundle, 6)["dispatched_ns"] == pytest.approx((STARTS[6] - min(STARTS)) * 1e9, abs=2)
    assert said(bundle, "inside_phases")[0] == "fail"


def test_a_sound_result_lies_within_its_duration(tmp_path: Path) -> None:
    bundle = imported(VLLM, tmp_path)
    verdict, detail = said(bundle, "within_duration")
    assert (verdict, detail[:29]) == ("pass", "all 40 requests with a time l")
    assert said(bundle, "times_usable")[0] == "pass"
    assert said(imported(VLLM, tmp_path / "b", duration=None), "within_duration")[0] == "unknown"


def test_a_latency_longer_than_the_run(tmp_path: Path) -> None:
    """SGLang keeps no start times: still no request takes longer than all of them together."""
    place = next(i for i, ttft in enumerate(SGLANG["ttfts"]) if ttft > 0)
    length = SGLANG["duration"]
    assert said(imported(SGLANG, tmp_path), "within_duration")[0] == "pass"
    verdict, detail = said(imported(SGLANG, tmp_path / "b", ttfts=(place, length + 50)), "within_duration")
    assert verdict == "fail"
    assert detail.startswith("1 of ")
    assert f"request {place}," in detail
    timeless = {key: value for key, value in VLLM.items() if key != "start_times"}
    bundle = imported(timeless, tmp_path / "c", latencies=(7, VLLM["duration"] + 50))
    assert said(bundle, "within_duration")[0] == "fail"


@pytest.mark.parametrize("value", [-0.02, math.inf, 1e300, math.nan])
@pytest.mark.parametrize("array", ["ttfts", "latencies"])
def test_times_that_are_none_are_counted(tmp_path: Path, array: str, value: float) -> None:
    bundle = imported(VLLM, tmp_path, **{array: (6, value)})
    verdict, detail = said(bundle, "times_usable")
    assert verdict == "fail"
    assert f"{array} of 1 request (the first is {value!r} of request 6)" in detail


@pytest.mark.parametrize("result", [VLLM, SGLANG], ids=["vllm", "sglang"])
def test_the_recount_leaves_out_what_the_rows_do(tmp_path: Path, result: dict[str, Any]) -> None:
    document = json.loads(json.dumps(result))
    good = [n for n in range(40) if not document["errors"][n]]
    one, other = good[5:7]
    document["ttfts"][one] = 1e30
    document["itls"][other] = [1e30]
    detail = said(imported(document, tmp_path), "summary_reproduced")[1]
    mean_ms = 1e3 * sum(document["ttfts"][n] for n in good if n != one) / (len(good) - 1)
    assert f"ttft mean {document['mean_ttft_ms']:.10g}, from rows {mean_ms:.10g};" in detail
    assert not any(f"e+{power}" in detail for power in range(9, 34))


def test_gaps_and_starts_that_are_no_times(tmp_path: Path) -> None:
    document = json.loads(json.dumps(VLLM))
    document["itls"][3][1], document["itls"][8][0] = -1.0, math.inf
    bundle = imported(document, tmp_path, start_times=(2, 1e300))
    verdict, detail = said(bundle, "times_usable")
    assert verdict == "fail"
    assert "start_times of 1 request (the first is 1e+300 of request 2)" in detail
    assert "itls of 2 requests (the first is -1.0 of request 3)" in detail
    assert row(bundle, 2)["dispatched_ns"] is None
    table = bundle.table("chunks")
    assert table is not None
    assert not {"3", "8"} & set(table.column("request_id").to_pylist())
    found = imported(SGLANG, tmp_path / "b", ttfts=(1, -1.0))
    assert said(found, "times_usable") == (
        "fail",
        "left out, as they are no number, negative, infinite or too large: ttfts of 1 request (the first is -1.0 of "
        "request 1). Requests are counted from 0",
    )


def test_no_success_has_no_peak(tmp_path: Path) -> None:
    bundle = imported(VLLM, tmp_path, errors=["refused"] * 40)
    verdict, detail = said(bundle, "concurrency_capped")
    assert verdict == "unknown"
    assert detail.startswith("no request succeeded, so no end is recorded")


def test_window_of_the_most_starts() -> None:
    starts = np.array([5.0, 0.0, 5.5, 6.0, 99.0])
    assert window_start(starts, 2.0) == 5.0
    assert window_start(starts, None) == 0.0
    assert window_start(np.array([]), 2.0) is None
    spans = Spans()
    for name, start, end in (("a", 0.0, 1.0), ("b", 1.0, None), ("c", None, 9.0), ("d", 2.0, 5.0)):
        spans.take(name, start, end)
    # 3 s and 1 s + 1 % more: the end of d at 5 s lies outside, and c has no start.
    verdict, detail = spans.check(3.0, "the header").verdict, spans.check(3.0, "the header").detail
    assert (verdict, detail) == (
        "fail",
        "1 of 3 requests with a time lie outside of the 3 s that the header states (up to 1.03 s more are allowed): "
        "together they span 5 s; the first outside is request d, which starts at 2 s and ends at 5 s",
    )
    assert spans.check(4.0, "the header").verdict == "pass"


def _moved(files: dict[str, bytes], name: str, change: Any) -> dict[str, bytes]:
    document = json.loads(files[name])
    change(document)
    return files | {name: json.dumps(document).encode()}


def _genai(document: Any) -> None:
    document["individual_request_metrics"][0]["e2e_latency"] = 9999.0


def _inference_perf(document: Any) -> None:
    document[0]["start_time"] -= 9999.0


def _llmperf(document: Any) -> None:
    document[0]["end_to_end_latency_s"] = 9999.0


def _guidellm(document: Any) -> None:
    document["benchmarks"][0]["requests"]["successful"][0]["info"]["timings"]["request_start"] -= 9999.0


@pytest.mark.parametrize(
    ("files", "change"),
    [
        (fuzz_inputs.genai_bench(), _genai),
        (fuzz_inputs.inference_perf(), _inference_perf),
        (fuzz_inputs.guidellm(), _guidellm),
    ],
    ids=["genai-bench", "inference-perf", "guidellm"],
)
def test_other_tools_that_state_how_long_they_took(tmp_path: Path, files: dict[str, bytes], change: Any) -> None:
    name = next(name for name in files if "summary" not in name and "metadata" not in name)
    for folder, held, verdict in (("sound", files, "pass"), ("wild", _moved(files, name, change), "fail")):
        (tmp_path / folder).mkdir()
        for file, data in held.items():
            (tmp_path / folder / file).write_bytes(data)
        (run_id,) = import_any(tmp_path / folder, tmp_path / "store")
        found = said(open_bundle(tmp_path / "store" / run_id), "within_duration")
        assert found[0] == verdict, found
        assert verdict == "pass" or found[1].startswith("1 of ")


def test_a_time_before_its_start_is_left_out_and_counted(tmp_path: Path) -> None:
    bundle = imported(VLLM, tmp_path, ttfts=(6, -9.0))
    assert row(bundle, 6)["first_visible_ns"] is None
    verdict, detail = said(bundle, "times_in_order")
    assert verdict == "fail"
    assert detail.endswith("of 1 a time was left out that lay before what it must follow")


def test_a_simulated_request_outside_of_the_report_s_duration(tmp_path: Path) -> None:
    files = fuzz_inputs.aisimulate()
    rows = [json.loads(line) for line in files["requests.jsonl"].splitlines()]
    verdicts = []
    for folder, by_ms in (("sound", 0.0), ("wild", 1e6)):
        for key in ("arrival_time_ms", "first_admit_ms", "first_token_ms", "last_token_ms", "terminal_time_ms"):
            rows[2][key] += by_ms
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / folder / "prediction.json").write_bytes(files["prediction.json"])
        (run_id,) = import_any(tmp_path / folder, tmp_path / "store")
        verdicts.append(said(open_bundle(tmp_path / "store" / run_id), "within_duration"))
    assert [verdict for verdict, _ in verdicts] == ["pass", "fail"]
    assert verdicts[1][1].startswith("1 of 3 requests with a time lie outside of the 0.216 s that the report states")


def test_a_latency_that_the_rate_of_llmperf_forbids(tmp_path: Path) -> None:
    files = fuzz_inputs.llmperf()
    summary = json.loads(files["m_summary.json"]) | {"results_num_completed_requests_per_min": 60.0}  # two in 2 s
    files |= {"m_summary.json": json.dumps(summary).encode()}
    for folder, held, verdict in (
        ("sound", files, "pass"),
        ("wild", _moved(files, "m_individual_responses.json", _llmperf), "fail"),
    ):
        (tmp_path / folder).mkdir()
        for file, data in held.items():
            (tmp_path / folder / file).write_bytes(data)
        (run_id,) = import_any(tmp_path / folder, tmp_path / "store")
        assert said(open_bundle(tmp_path / "store" / run_id), "within_duration")[0] == verdict
