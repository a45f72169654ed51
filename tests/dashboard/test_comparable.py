"""Numbers that are defined otherwise are not differenced: on a page, in a gate, in a decomposition."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dashboard.compare import compare
from dashboard.compare.gates import Gate, judge
from dashboard.metrics import HEADLINE, Estimator
from dashboard.store import Store
from engine.definitions import (
    END_CHUNK,
    END_CONTENT,
    FIRST_CONTENT,
    ROLE_CHUNK,
    TOKENS_REQUESTED,
    TOKENS_USAGE,
    refusal,
)
from engine.identity import Identity
from engine.importers import import_any

DATA = Path(__file__).parents[1] / "data"


def identity(**definitions: str) -> Identity:
    found = Identity()
    for name, value in definitions.items():
        found.set("definitions", name, value, "test")
    return found


@pytest.mark.parametrize(
    ("metric", "left", "right", "refused"),
    [
        ("ttft", {"first_token": ROLE_CHUNK}, {"first_token": FIRST_CONTENT}, True),
        ("ttft", {"first_token": ROLE_CHUNK}, {}, True),  # who does not say has the usual rule
        ("ttft", {"first_token": ROLE_CHUNK}, {"first_token": ROLE_CHUNK}, False),
        ("ttft", {"first_token": "a rule nobody knows"}, {"first_token": ROLE_CHUNK}, False),
        ("e2e", {"end_of_latency": END_CHUNK}, {"end_of_latency": END_CONTENT}, True),
        ("ttft", {"end_of_latency": END_CHUNK}, {"end_of_latency": END_CONTENT}, False),
        ("tpot", {"token_source": TOKENS_REQUESTED}, {"token_source": TOKENS_USAGE}, True),
        ("output_rate", {"token_source": TOKENS_REQUESTED}, {"token_source": TOKENS_USAGE}, True),
        ("request_rate", {"token_source": TOKENS_REQUESTED}, {"token_source": TOKENS_USAGE}, False),
    ],
)
def test_which_rules_can_stand_side_by_side(metric: str, left: dict, right: dict, refused: bool) -> None:
    found = refusal(metric, identity(**left), identity(**right))
    assert bool(found) is refused
    if found:
        assert found.reason.endswith(".")
        assert found.remedy.endswith(".")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A chat run with the gaps between chunks, and the same without: its first token is the role chunk."""
    folder = tmp_path_factory.mktemp("runs")
    source = DATA / "vllm_bench" / "detailed.json"
    import_any(source, folder)
    document = json.loads(source.read_text())
    del document["itls"]
    bare = tmp_path_factory.mktemp("in") / "bare.json"
    bare.write_text(json.dumps(document))
    import_any(bare, folder)
    return Store([folder])


def test_a_role_chunk_is_no_first_token(store: Store) -> None:
    pair = store.find("detailed").run_id, store.find("bare").run_id
    found = compare(store, *pair)
    row = found.row("ttft.mean")
    assert (row.state, row.gap, row.noise) == ("not comparable", None, None)
    assert row.measured.value is not None
    assert row.replay.value is not None
    assert "role chunk" in row.reason
    assert "--save-detailed" in row.reason
    assert found.row("request_rate.fixed").gap is not None
    assert any(warn.code == "definitions" and warn.text.startswith("TTFT") for warn in found.warnings)
    parts = next(one for one in found.decompositions if one.metric == "ttft")
    assert parts.parts == ()
    assert parts.note.startswith("Not comparable")


def test_a_gate_on_it_fails_with_the_reason(store: Store) -> None:
    pair = store.find("detailed").run_id, store.find("bare").run_id
    result = judge(store, *pair, Gate.parse("ttft.mean<=50%"), Estimator.LINEAR)
    assert (result.verdict, result.value) == ("fail", None)
    assert result.reason.startswith("not comparable: The first token is")
    assert HEADLINE.phase == "profile"
