"""What real clients wrote about one stub server, side by side: each calls it otherwise, and our classes are the same.

The stub answers by arrival number modulo 20: HTTP 500 at 5 and 429 at 17, no content at 7, one token at 9, three tokens
a chunk at 11, an error inside the stream at 13, two tokens in the first chunk at 0; everything else is a plain stream.
Of 80 (or 40) requests 4 (or 2) are of each.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dashboard.compare.numbers import Key
from dashboard.compare.tools import SideBySide, side_by_side
from dashboard.metrics import Population
from dashboard.store import Store
from engine.importers import import_any

DATA = Path(__file__).parents[1] / "data"
HEADLINE = Population()
AIPERF, VLLM, SGLANG = "A", "B", "C"
CLASSES = ("ok", "zero_output", "unfinished", "error")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> SideBySide:
    store = tmp_path_factory.mktemp("truth")
    inputs = ("aiperf/edge_cases", "vllm_bench/detailed.json", "sglang_bench/out_sglang.jsonl")
    runs = [run_id for name in inputs for run_id in import_any(DATA / name, store)]
    return side_by_side(Store([store]), runs, HEADLINE)


def run(found: SideBySide, letter: str):
    return next(one for one in found.runs if one.letter == letter)


@pytest.mark.parametrize(
    ("letter", "sent", "counts"),
    [
        # The raw records prove the 4 streams that ended in an error: 8 HTTP errors and these 4.
        (AIPERF, 80, (64, 4, 0, 12)),
        # Their last gap is a token's and no finish chunk's, so the 2 are told apart.
        (VLLM, 40, (32, 2, 2, 4)),
        # Nothing in the file tells the 2 from other successes.
        (SGLANG, 40, (34, 2, 0, 4)),
    ],
)
def test_outcome_classes(found: SideBySide, letter: str, sent: int, counts: tuple[int, ...]) -> None:
    one = run(found, letter)
    assert one.attempted(HEADLINE) == sent
    assert tuple(one.count(name, HEADLINE) for name in CLASSES) == counts


def test_http_errors_are_a_tenth_of_what_was_sent(found: SideBySide) -> None:
    share = {one.letter: (one.count("error", HEADLINE) or 0) / (one.attempted(HEADLINE) or 1) for one in found.runs}
    assert share == {AIPERF: 12 / 80, VLLM: 4 / 40, SGLANG: 4 / 40}  # AIPerf's hold the errors inside streams


def test_each_tool_has_its_word_for_a_request_without_content(found: SideBySide) -> None:
    words = {one.letter: one.words("zero_output", HEADLINE) for one in found.runs}
    assert words == {AIPERF: "error: InvalidInferenceResultError", VLLM: "success", SGLANG: "success"}
    for letter, said in words.items():
        assert any(f"in {letter}, which calls them {said!r}" in reason for reason in found.reasons)


def test_each_tool_counts_its_own_successes(found: SideBySide) -> None:
    told = {one.letter: one.tool_successes and one.tool_successes[1] for one in found.runs}
    # AIPerf counts the 4 errors inside streams; vLLM and SGLang count those and what had no content.
    assert told == {AIPERF: 64 + 4, VLLM: 32 + 2 + 2, SGLANG: 34 + 2}


def test_no_latency_of_errors_and_requests_without_content(found: SideBySide) -> None:
    # One token has a TTFT and no TPOT: 4 of AIPerf's 64, 2 of vLLM's 34 (whose unfinished two have a count of 12).
    assert [found.cell("ttft", letter).n for letter in (AIPERF, VLLM)] == [64, 34]
    assert [found.cell("tpot", letter).n for letter in (AIPERF, VLLM)] == [60, 32]
    # SGLang's two of one token and two broken ones were counted as the 24 that were asked for: not trusted.
    assert (found.cell("ttft", SGLANG).n, found.cell("tpot", SGLANG).n) == (34, 30)
    assert any("Output tokens of C (4 requests)" in reason for reason in found.reasons)


def test_vllms_ttft_is_moved_from_the_role_chunk_to_the_first_content(found: SideBySide) -> None:
    told = json.loads((DATA / "vllm_bench" / "detailed.json").read_bytes())
    rows = zip(told["ttfts"], told["itls"], told["errors"], told["output_lens"], strict=True)
    ours = [(ttft + gaps[0]) * 1000 for ttft, gaps, error, tokens in rows if not error and tokens]
    cell = found.cell("ttft", VLLM)
    assert cell.refused is None  # so it can stand beside AIPerf's
    assert cell.numbers["mean"].value == pytest.approx(np.mean(ours), abs=0.01)
    assert cell.numbers["p90"].value == pytest.approx(np.percentile(ours, 90), abs=0.01)
    mean = next(one for one in found.own(VLLM) if one.key == Key("ttft", "mean"))
    assert mean.value == pytest.approx(told["mean_ttft_ms"])
    assert mean.n == 36
    assert mean.difference == pytest.approx(told["mean_ttft_ms"] - np.mean(ours), abs=0.01)
    assert "role chunk" in mean.explanation


def test_sglangs_ttft_of_zero_is_no_latency(found: SideBySide) -> None:
    told = json.loads((DATA / "sglang_bench" / "out_sglang.jsonl").read_bytes().splitlines()[-1])
    ours = [ttft * 1000 for ttft in told["ttfts"] if ttft]
    assert len(ours) == 34
    assert found.cell("ttft", SGLANG).numbers["mean"].value == pytest.approx(np.mean(ours), abs=0.01)
    mean = next(one for one in found.own(SGLANG) if one.key == Key("ttft", "mean"))
    assert "over 36 values, ours over 34" in mean.explanation


def test_reasoning_and_visible_text_are_two_series(found: SideBySide) -> None:
    assert found.cell("ttfo", AIPERF).n == 64
    assert found.cell("ttfo", AIPERF).numbers["mean"].value > found.cell("ttft", AIPERF).numbers["mean"].value
    assert found.cell("ttfo", VLLM).numbers["mean"].value is None  # vLLM does not tell them apart


def test_chunks_of_several_tokens_are_said(found: SideBySide) -> None:
    (said,) = [reason for reason in found.reasons if "fewer chunks than tokens" in reason]
    assert "A (8 requests)" in said  # 4 of three tokens a chunk, 4 with two in the first
    assert "C (4 requests)" in said


def test_denominators_are_told(found: SideBySide) -> None:
    (said,) = [reason for reason in found.reasons if "Rates are over different times" in reason]
    assert "B and C: the whole benchmark call" in said
    assert "A: phase window" in said
