"""What the pages say of the imported samples: what a tool did not record is named, and never read as an event."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Open, run_id
from test_tool_runs import plain, tables

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
