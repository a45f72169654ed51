"""What the pages say of the imported samples: what a tool did not record is named, and never read as an event."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Open, run_id
from streamlit.testing.v1 import AppTest
from test_pages import charts
from test_tool_runs import plain, tables

from dashboard.charts.comparison.verdict import Ends, gap_axis

SAMPLES = Path(__file__).parents[2] / "sample_runs"


@pytest.mark.parametrize(
    ("measured", "other", "said"),
    [
        # requests.parquet of the two bench runs: conversation_id is NULL in all 40 rows
        ("stub_aiperf", "stub_vllm_bench", "the source-turns of {other} are not recorded"),
        ("stub_sglang_bench", "stub_vllm_bench", "the source-turns of {measured} and {other} are not recorded"),
        # GuideLLM names its requests by ids of its own
        ("stub_aiperf", "stub_guidellm", "no source-turn of {measured} goes by the same name in {other}"),
    ],
)
def test_runs_without_shared_names_are_not_joined(opened: Open, measured: str, other: str, said: str) -> None:
    ids = {"measured": run_id(SAMPLES, measured), "other": run_id(SAMPLES, other)}
    app = opened(SAMPLES, "cohort", m=ids["measured"], r=ids["other"], ack="true")
    assert not app.exception
    assert f"Cannot be joined: {said.format(**ids)}" in plain(app)
    assert not tables(app, "finished_on")


def test_runs_of_clients_have_no_engine_times(opened: Open) -> None:
    """Neither run has a receipt, an admission or a pass, so no clock can disagree."""
    ids = [run_id(SAMPLES, name) for name in ("stub_aiperf", "stub_guidellm")]
    app = opened(SAMPLES, "boundaries", m=ids[0], r=ids[1], ack="true")
    assert not app.exception
    said = plain(app)
    assert f"No engine times of {ids[0]} and {ids[1]} are recorded" in said
    assert "clock" not in said


def test_merged_layers_are_named_by_their_boundaries(opened: Open) -> None:
    """Mean E2E = (to the first visible token) + (from it on), each with the layers that it may lie in."""
    ids = [run_id(SAMPLES, name) for name in ("stub_aiperf", "stub_vllm_bench")]
    app = opened(SAMPLES, "boundaries", m=ids[0], r=ids[1], ack="true")
    said = plain(app)
    assert "dispatched to first visible (frontend, queue, GPU and output together) " in said
    assert " ms; first visible to last visible (GPU and output together) " in said


def test_a_tool_without_lanes_is_named(opened: Open) -> None:
    """lane is NULL in all 243 rows of the sample."""
    own = run_id(SAMPLES, "agentic_aiperf")
    said = plain(opened(SAMPLES, "cohort", m=own))
    assert f"Not recorded: AIPerf keeps no lanes, so run {own} has no rows by lane." in said
    assert "There are no rows for this choice" not in said


def shown(app: AppTest) -> str:
    """Everything that a reader of a page sees in words: texts, table headers, axis titles, warnings."""
    headers = [
        str(one.get("label") or "")
        for element in app.dataframe
        for one in json.loads(element.proto.columns or "{}").values()
    ]
    axes = [
        str(axis.get("title", {}).get("text", ""))
        for chart in charts(app)
        for name, axis in chart["layout"].items()
        if name.startswith(("xaxis", "yaxis"))
    ]
    texts = [one.value for kind in ("warning", "error", "caption") for one in app.get(kind)]
    return "\n".join([plain(app), *headers, *axes, *texts])


@pytest.mark.parametrize(
    "page", ["verdict", "cohort", "percentiles", "boundaries", "cache_events", "passes", "request"]
)
def test_a_recording_is_not_called_a_replay(opened: Open, page: str) -> None:
    """Both sides are recordings; what the page says of its own replays elsewhere is about other runs."""
    ids = [run_id(SAMPLES, name) for name in ("ample8", "ample8_repeat")]
    app = opened(SAMPLES, page, m=ids[0], r=ids[1], ack="true")
    assert not app.exception
    said = shown(app)
    for word in (
        "Replay - measured",
        "replay - measured",
        "the replay",
        "The replay",
        "and replay",
        "╍ replay",
        "replay side",
    ):
        assert word not in said
    assert "compared with it" in said.lower()


@pytest.mark.parametrize(
    ("slug", "why"),
    [
        ("stub_vllm_bench", "it does not say which trace was played"),  # run.json: the identity has no trace digest
        ("agentic_aiperf", "the trace that it played (3b75befd6766) is not in the store"),  # traces/ holds 50853bd0473a
    ],
)
def test_a_run_that_cannot_be_replayed_is_said_first(opened: Open, slug: str, why: str) -> None:
    app = opened(SAMPLES, "what_if", base=run_id(SAMPLES, slug), k_timing="fixed")
    assert not app.exception
    assert f"Run {run_id(SAMPLES, slug)} cannot be replayed: {why}" in plain(app)
    assert app.button(key="run-replay").disabled


def test_a_run_with_its_trace_can_be_replayed(opened: Open) -> None:
    app = opened(SAMPLES, "what_if", base=run_id(SAMPLES, "ample8"))
    assert "cannot be replayed" not in plain(app)
    assert not app.button(key="run-replay").disabled


def test_noise_beyond_the_gaps_is_marked_and_does_not_flatten_them(opened: Open) -> None:
    """The bootstrap of TPOT p90 reaches beyond 1,000 %, the largest gap is below 100 %."""
    ids = [run_id(SAMPLES, name) for name in ("stub_aiperf", "stub_vllm_bench")]
    app = opened(SAMPLES, "verdict", m=ids[0], r=ids[1], ack="true")
    chart = next(one for one in charts(app) if any(t.get("name") == "noise beyond the axis" for t in one["data"]))
    low, high = chart["layout"]["yaxis"]["range"]
    (marks,) = (trace for trace in chart["data"] if trace.get("name") == "noise beyond the axis")
    assert high < 300
    assert low > -300
    assert dict(zip(marks["x"], marks["text"], strict=True)).keys() == {"TPOT p90", "E2E p90"}
    assert all(float(text.strip("+ %").replace(",", "")) > 1000 for text in marks["text"])


@pytest.mark.parametrize(
    ("gaps", "noise", "ends"),
    [
        ([10, -5], [(-2, 3), None], (-5, 10)),
        ([10, -5], [(-20, 25)], (-20, 25)),  # not beyond three times the largest gap: all of it
        ([10, -5], [(-20, 1900)], (-20, 30)),
        ([0, 0], [(-4, 4)], (-4, 4)),
        ([], [], (0, 0)),
    ],
)
def test_the_axis_of_gaps(gaps: list[float], noise: list[Ends | None], ends: Ends) -> None:
    assert gap_axis(gaps, noise) == ends


def test_the_numbers_of_two_recordings_have_their_headers(opened: Open) -> None:
    ids = [run_id(SAMPLES, name) for name in ("ample8", "ample8_repeat")]
    app = opened(SAMPLES, "verdict", m=ids[0], r=ids[1], ack="true")
    heads = [json.loads(one.proto.columns) for one in app.dataframe if "gap" in one.value.columns]
    assert {own[name]["label"] for own in heads for name in ("measured", "replay")} == {"Reference", "Compared with it"}


def test_a_source_turn_that_cannot_be_joined_is_not_called_unsent(opened: Open) -> None:
    ids = [run_id(SAMPLES, name) for name in ("stub_aiperf", "stub_vllm_bench")]
    said = plain(opened(SAMPLES, "request", m=ids[0], r=ids[1], ack="true"))
    assert f"Cannot be joined: the source-turns of {ids[1]} are not recorded." in said
    assert "never sent" not in said
