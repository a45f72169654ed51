"""Numbers that are defined otherwise are not differenced: on a page, in a gate, in a decomposition."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import small_runs

from dashboard.compare import Row, compare, compare_number
from dashboard.compare.gates import Gate, judge
from dashboard.compare.ladder import climb
from dashboard.compare.numbers import Key
from dashboard.compare.repeats import standings
from dashboard.compare.rows import refused
from dashboard.metrics import HEADLINE, Estimator, Window
from dashboard.store import Store
from engine.bundle import BundleWriter
from engine.definitions import (
    END_CHUNK,
    END_CONTENT,
    FIRST_CONTENT,
    FIRST_SAMPLED,
    ITL_CHUNKS,
    ITL_SPREAD,
    ROLE_CHUNK,
    STREAM_ERROR_FAILED,
    STREAM_ERROR_SUCCESS,
    STREAM_ERROR_UNSEEN,
    TOKENS_BORNE_OUT,
    TOKENS_REQUESTED,
    TOKENS_SIMULATED,
    TOKENS_USAGE,
    TOKENS_USAGE_OR_LOCAL,
    caveats,
    differing,
    refusal,
)
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.importers import import_any

DATA = Path(__file__).parents[1] / "data"
SAMPLES = Path(__file__).parents[2] / "sample_runs"


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
        ("ttft", {"first_token": ROLE_CHUNK}, {"first_token": FIRST_SAMPLED}, True),  # a replay
        ("ttft", {"first_token": FIRST_CONTENT}, {"first_token": FIRST_SAMPLED}, False),
        ("itl", {"itl": ITL_SPREAD}, {"itl": ITL_CHUNKS}, True),
        ("itl", {"itl": ITL_SPREAD}, {"itl": ITL_SPREAD}, False),
    ],
)
def test_which_rules_can_stand_side_by_side(metric: str, left: dict, right: dict, refused: bool) -> None:
    found = refusal(metric, identity(**left), identity(**right))
    assert bool(found) is refused
    if found:
        assert found.reason.endswith(".")
        assert found.remedy.endswith(".")


@pytest.mark.parametrize(
    ("metric", "left", "right", "said"),
    [
        (
            "request_rate",
            {"stream_errors": STREAM_ERROR_FAILED},
            {"stream_errors": STREAM_ERROR_UNSEEN},
            "errors inside",
        ),
        ("e2e", {"stream_errors": STREAM_ERROR_SUCCESS}, {"stream_errors": STREAM_ERROR_FAILED}, "errors inside"),
        ("ttft", {"stream_errors": STREAM_ERROR_SUCCESS}, {"stream_errors": STREAM_ERROR_FAILED}, ""),
        ("request_rate", {"stream_errors": STREAM_ERROR_SUCCESS}, {"stream_errors": STREAM_ERROR_UNSEEN}, ""),
        ("request_rate", {"stream_errors": STREAM_ERROR_FAILED}, {}, ""),  # who does not say is not judged
        ("total_rate", {"token_source": TOKENS_BORNE_OUT}, {"token_source": TOKENS_USAGE}, "output tokens are"),
        ("tpot", {"token_source": TOKENS_USAGE_OR_LOCAL}, {"token_source": TOKENS_USAGE}, "output tokens are"),
        ("request_rate", {"token_source": TOKENS_BORNE_OUT}, {"token_source": TOKENS_USAGE}, ""),
        ("output_rate", {"token_source": TOKENS_SIMULATED}, {"token_source": TOKENS_USAGE}, ""),  # a replay's own
    ],
)
def test_what_is_said_beside_numbers_that_are_compared(metric: str, left: dict, right: dict, said: str) -> None:
    for pair in ((left, right), (right, left)):
        found = caveats(metric, *(identity(**one) for one in pair))
        assert [words[: len(said)] for words in found] == ([said] if said else [])


def test_what_differs_in_a_few_words_read_from_the_right_side() -> None:
    bench = identity(first_token=ROLE_CHUNK, end_of_latency=END_CHUNK, token_source=TOKENS_REQUESTED)
    usual = identity(first_token=FIRST_CONTENT, token_source=TOKENS_USAGE)
    assert differing(usual, bench) == [
        "first token: role chunk, not content",
        "end of latency: any chunk, not content",
        "output tokens: asked for, not counted",
    ]
    assert differing(bench, usual) == [
        "first token: content, not role chunk",
        "end of latency: content, not any chunk",
        "output tokens: counted, not asked for",
    ]
    assert differing(bench, bench) == differing(usual, identity(first_token="a rule nobody knows")) == []


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
    assert parts.gap is None
    assert parts.measured is not None


def test_what_is_made_of_a_refused_number_is_refused(store: Store) -> None:
    """Requests in flight by Little's law hold the mean E2E; those that were counted do not."""
    pair = store.find("detailed").run_id, store.find("bare").run_id
    assert "The latency ends with" in compare_of(store, pair, "in_flight.little").reason
    assert compare_of(store, pair, "in_flight.observed").gap is not None


def compare_of(store: Store, pair: tuple[str, str], key: str) -> Row:
    return compare_number(store, pair, Key.parse(key), HEADLINE, Estimator.LINEAR, ())


def test_a_replay_is_not_held_against_a_role_chunk(tmp_path: Path) -> None:
    """Our own replays say of themselves what they sample: that is content."""
    predicted = next(SAMPLES.glob("tight8-predicted-*"))
    bare = small_runs.write(tmp_path, "bare", [small_runs.request("a")], record=bench_identity())
    found = Store([SAMPLES, tmp_path])
    pair = bare, predicted.name
    assert refused(found, *pair, "ttft") is not None
    assert refused(found, *pair, "request_rate") is None
    climbed = climb(found, *pair)
    ttft, rate = climbed.gaps[Key.parse("ttft.mean")], climbed.gaps[Key.parse("request_rate.fixed")]
    assert ttft.gap is None
    assert ttft.why.startswith("not comparable: The first token is")
    assert climbed.steps[-1].changes[Key.parse("ttft.mean")].difference is None
    assert (rate.gap, rate.why) == (rate.measured.value - rate.prediction.value, "")
    place = standings(found, *pair, (), HEADLINE, Estimator.LINEAR, Window.FIXED)
    told = {str(one.key): one for one in place}
    assert (told["ttft.mean"].place, told["ttft.mean"].gap) == ("not comparable", None)
    assert told["request_rate.fixed"].gap is not None


def bench_identity() -> Identity:
    record = small_runs.identity()
    record.set("definitions", "first_token", ROLE_CHUNK, "test")
    return record


def test_a_summary_is_never_differenced(tmp_path: Path) -> None:
    with BundleWriter(tmp_path, "imported_summary", "s", "s", small_runs.identity()) as writer:
        summary = writer.seal()
    run = small_runs.write(tmp_path, "m", [small_runs.request("a")])
    found = Store([tmp_path])
    said = refused(found, run, summary, "request_rate")
    assert said is not None
    assert "without rows" in said.reason
    with pytest.raises(GapscopeError, match="has no requests to compare, it is a summary without rows: expected"):
        compare(found, run, summary)


def test_a_gate_on_it_fails_with_the_reason(store: Store) -> None:
    pair = store.find("detailed").run_id, store.find("bare").run_id
    result = judge(store, *pair, Gate.parse("ttft.mean<=50%"), Estimator.LINEAR)
    assert (result.verdict, result.value) == ("fail", None)
    assert result.reason.startswith("not comparable: The first token is")
    assert HEADLINE.phase == "profile"
