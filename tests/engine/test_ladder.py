"""The ladder on runs whose faults were planted, and what becomes of a rung that cannot be built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from engine import knobs as knob_table
from engine.bundle import Bundle, BundleWriter, find_bundle, list_bundles, make_label, open_bundle
from engine.cli import main as cli
from engine.errors import GapscopeError
from engine.identity import NOT_APPLICABLE, Identity
from engine.ladder import RUNGS, Ladder, build_ladder, plan_ladder
from engine.replay import Canceled, knobs_from_run, replay
from engine.timing import measured_model
from engine.traces import stored_trace
from tests import planted

TIMES = (
    "scheduled_ns",
    "dispatched_ns",
    "received_ns",
    "first_admit_ns",
    "first_visible_ns",
    "last_visible_ns",
    "end_ns",
    "released_ns",
)
COUNTS = ("status", "lane", "input_tokens", "output_tokens", "cached_tokens", "recomputed_tokens", "preemptions")
TURN = ("play_id", "conversation_id", "turn_index")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


@pytest.fixture(scope="module")
def pairs(store: Path) -> dict[str, tuple[str, str]]:
    return planted.planted_store(store)


@pytest.fixture(scope="module")
def climb(store: Path, pairs: dict[str, tuple[str, str]]) -> Any:
    """The seven runs of the ladder of a fault, from the prediction to the measurement."""
    built: dict[str, list[Bundle]] = {}

    def runs(fault: str) -> list[Bundle]:
        if fault not in built:
            measured, base = (open_bundle(store / run_id) for run_id in pairs[fault])
            ladder = build_ladder(measured, base, stores=[store], store=store)
            assert [rung.why for rung in ladder.rungs] == [""] * 5
            built[fault] = [base, *(open_bundle(store / str(rung.run_id)) for rung in ladder.rungs), measured]
        return built[fault]

    return runs


def requests(run: Bundle) -> list[tuple[Any, ...]]:
    """What every source-turn went through, in an order of its own."""
    table = run.table("requests", [*TURN, *COUNTS, *TIMES])
    assert table is not None
    return sorted(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))


def passes(run: Bundle) -> list[tuple[Any, ...]]:
    """Every pass with its batch, requests named by the turns that they are."""
    table, named = run.table("passes"), run.table("requests", ["request_id", *TURN])
    assert table is not None
    assert named is not None
    turn = {row["request_id"]: tuple(row[name] for name in TURN) for row in named.to_pylist()}
    return [
        (
            row["start_ns"],
            row["end_ns"],
            row["period_ns"],
            row["kv_blocks_used"],
            [(turn[m["request_id"]], m["computed_before"], m["scheduled_tokens"]) for m in row["members"]],
        )
        for row in table.to_pylist()
    ]


def mean(run: Bundle, metric: str) -> float:
    """TTFT, TPOT (of requests with two tokens or more) or E2E in ms, over the successful requests of the profile."""
    table = run.table("requests")
    assert table is not None
    keep = pc.and_(pc.equal(table["status"], "ok"), pc.equal(table["phase"], "profile"))
    column = {name: table.filter(keep)[name].to_numpy().astype(float) for name in (*TIMES, "output_tokens")}
    if metric == "ttft":
        values = column["first_visible_ns"] - column["dispatched_ns"]
    elif metric == "e2e":
        values = column["end_ns"] - column["dispatched_ns"]
    else:
        several = column["output_tokens"] > 1
        spans = (column["last_visible_ns"] - column["first_visible_ns"])[several]
        values = spans / (column["output_tokens"][several] - 1)
    return float(np.mean(values)) / 1e6


def steps(runs: list[Bundle], metric: str) -> np.ndarray:
    """What each step does to a mean; [k] leads from rung k to rung k + 1."""
    return np.diff([mean(run, metric) for run in runs])


# -- teacher forcing -------------------------------------------------------------------------------------------


def test_without_a_fault_every_rung_is_the_truth(climb: Any) -> None:
    *rungs, truth = climb("none")
    assert len(requests(truth)) > 300
    for run in rungs:
        assert requests(run) == requests(truth)
        assert passes(run) == passes(truth)


HARDER = {
    "pool so tight that requests are preempted": {"kv_blocks": 71, "lanes": 10, "think_scale": 0.2},
    "plays that are played again, with fresh content": {"wrap": True, "lane_assignment": "cursor", "lanes": 9},
    "plays that are played again, with the same content": {"wrap": True, "cache_bust": "none", "lanes": 8},
    "prompts in small chunks, admitted piece by piece": {
        "long_prefill_token_threshold": 48,
        "reserve_full_prompt": False,
        "kv_blocks": 91,
    },
    "no caching": {"prefix_caching": False},
    "a frontend that takes its time": {
        "host_model": "given",
        "host_request_ms": 2.0,
        "host_prompt_token_us": 50.0,
        "host_chunk_ms": 1.5,
    },
}


@pytest.mark.parametrize("changes", HARDER.values(), ids=list(HARDER))
def test_truths_that_are_harder_to_follow(tmp_path: Path, changes: dict[str, Any]) -> None:
    changes = {**changes, "warmup_s": 3.0, "duration_s": 12.0, "grace_s": 0.0}
    trace = planted.write_trace(tmp_path, plays=12 if changes.get("wrap") else 60)
    measured = planted.write_truth(tmp_path, trace, changes)
    base = find_bundle([tmp_path], planted.predict(tmp_path, trace, measured, changes))
    truth = requests(measured)
    status = {row[len(TURN)] for row in truth}
    assert status == {"ok", "canceled"}
    if "kv_blocks" in changes and "long_prefill_token_threshold" not in changes:
        assert sum(row[len(TURN) + COUNTS.index("preemptions")] for row in truth) >= 3
    if changes.get("wrap"):
        assert any("#1" in row[0] for row in truth)
    ladder = build_ladder(measured, base, stores=[tmp_path], store=tmp_path)
    for rung in ladder.rungs:
        run = open_bundle(tmp_path / str(rung.run_id))
        assert run.lineage["ladder"]["left"] == []
        assert requests(run) == truth, rung
        assert passes(run) == passes(measured), rung


# -- planted faults --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "step", "metrics"),
    [
        ("pool", 0, ("ttft", "tpot", "e2e")),  # the memory model
        ("think", 1, ("ttft", "tpot", "e2e")),  # the client
        ("decode", 3, ("tpot", "e2e")),  # the timing model
    ],
)
def test_the_step_of_the_planted_layer_holds_the_gap(
    climb: Any, fault: str, step: int, metrics: tuple[str, ...]
) -> None:
    runs = climb(fault)
    for metric in metrics:
        moved = steps(runs, metric)
        assert abs(moved.sum()) > 0.03 * mean(runs[-1], metric), f"{metric}: the fault moves nothing"
        assert moved[step] / moved.sum() >= 0.8, (metric, moved)
        assert np.argmax(np.abs(moved)) == step, (metric, moved)


@pytest.mark.parametrize("metric", ["ttft", "e2e"])
def test_errors_that_cancel_are_told_apart(climb: Any, metric: str) -> None:
    runs = climb("compensating")
    moved = steps(runs, metric)
    size = np.abs(moved)
    if metric == "ttft":  # the prediction looks right
        assert abs(moved.sum()) < 0.02 * mean(runs[-1], metric)
    assert set(np.argsort(size)[-2:]) == {3, 5}, moved  # timing model; host and frontend
    assert moved[3] > 0 > moved[5]
    assert (size[3] + size[5]) / size.sum() >= 0.8, moved


def test_measured_arrivals_are_those_of_the_run_whatever_the_prediction_sent(climb: Any) -> None:
    runs = climb("think")
    sent = [[row[: len(TURN)] + row[len(TURN) + len(COUNTS) :][:2] for row in requests(run)] for run in runs]
    assert sent[0] == sent[1] != sent[6]
    assert sent[2] == sent[3] == sent[4] == sent[5] == sent[6]


def test_measured_reuse_is_that_of_the_run(climb: Any) -> None:
    runs = climb("decode")
    place = len(TURN) + COUNTS.index("cached_tokens")
    cached = [[row[place] for row in requests(run)] for run in runs]
    assert cached[2] != cached[6]
    assert cached[3] == cached[4] == cached[5] == cached[6]


# -- what a rung says of itself --------------------------------------------------------------------------------


def test_a_rung_says_what_it_took(climb: Any) -> None:
    base, *rungs, measured = climb("pool")
    for number, run in enumerate(rungs, 1):
        lineage = run.lineage
        assert (lineage["rung"], lineage["like"], lineage["parent_run"]) == (number, measured.run_id, base.run_id)
        assert (lineage["ladder"]["measured"], lineage["ladder"]["base"]) == (measured.run_id, base.run_id)
        assert lineage["ladder"]["taken"] == [rung.taken for rung in RUNGS[1 : number + 1]]
        assert make_label(run, measured) == "diagnostic"
        assert run.verify(content=True) == []
        assert ("divergences" in run.tables) == ("parity" in lineage["ladder"]) == (number == 4)

    def said(group: str, name: str) -> list[Any]:
        return [run.identity.value(group, name) for run in rungs]

    assert base.identity.value("capacity", "usable_kv_blocks") == 320
    assert said("capacity", "usable_kv_blocks") == [160] * 5
    assert said("client", "loop") == ["closed"] + ["open: measured dispatch times"] * 4
    assert said("client", "think_scale") == [1.0] + [NOT_APPLICABLE] * 4
    assert said("timing", "kind") == ["fixed"] * 3 + ["measured"] * 2
    assert said("scheduler", "policy") == ["fcfs"] * 4 + ["batches as measured"]
    assert said("capacity", "prefix_caching") == [True] * 2 + ["reuse at first admission as measured"] * 3
    parity = rungs[3].lineage["ladder"]["parity"]
    assert parity["dispatch"]["passes"] == measured.rows("passes")
    assert parity["arrival"]["equal"] == parity["arrival"]["passes"] == measured.rows("passes")


def test_a_ladder_is_the_same_every_time(store: Path, climb: Any, tmp_path: Path) -> None:
    base, *rungs, measured = climb("decode")
    again = build_ladder(measured, base, stores=[store], store=tmp_path)
    assert [rung.run_id for rung in again.rungs] == [run.run_id for run in rungs]
    for run in rungs:
        assert run.manifest["files"] == open_bundle(tmp_path / run.run_id).manifest["files"]


def test_the_first_rung_of_a_prediction_with_the_measured_pool_is_that_prediction(climb: Any) -> None:
    base, first, *_ = climb("decode")
    assert {name: entry["content"] for name, entry in first.manifest["files"].items()} == {
        name: entry["content"] for name, entry in base.manifest["files"].items()
    }
    assert first.run_id != base.run_id
    assert first.identity.to_json() == base.identity.to_json()


# -- what cannot be built --------------------------------------------------------------------------------------


def rewritten(run: Bundle, store: Path, drop: dict[str, tuple[str, ...]] | None = None, **identity: Any) -> Bundle:
    """The measured run without some columns (no columns named: without the table), or with another identity."""
    record = Identity()
    for group, name, field in run.identity:
        record.set(group, name, identity.get(f"{group}__{name}", field.value), field.source)
    with BundleWriter(store, "measured", "rewritten", "rewritten", record) as writer:
        for name in run.tables:
            columns = (drop or {}).get(name)
            table = run.table(name)
            assert table is not None
            if columns is None or columns:
                writer.write_table(name, table.drop_columns(list(columns or ())))
        return open_bundle(store / writer.seal(phases=run.phases, ledger=run.ledger))


def reasons(ladder: Ladder) -> dict[int, str]:
    return {rung.number: rung.why for rung in ladder.rungs if rung.why}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bundle, Bundle]:
    """A store with a short truth and a prediction of it with a fault in every layer."""
    store = tmp_path_factory.mktemp("short")
    changes = {"warmup_s": 1.0, "duration_s": 5.0, "grace_s": 0.05}
    trace = planted.write_trace(store, plays=30)
    measured = planted.write_truth(store, trace, changes)
    faults = {"kv_blocks": 400, "fixed_prefill_token_us": 100.0, "think_scale": 0.7}
    return store, measured, find_bundle([store], planted.predict(store, trace, measured, changes | faults))


@pytest.mark.parametrize(
    ("drop", "identity", "missing"),
    [
        ({}, {"capacity__usable_kv_blocks": None, "capacity__kv_blocks": None}, {1: "usable"}),
        ({}, {"capacity__block_size": None}, {1: "tokens each"}),
        ({"requests": ("turn_index",)}, {}, {2: "turns of the trace", 3: "rung 2", 5: "rung 2"}),
        ({"requests": ("cached_tokens",)}, {}, {3: "cached tokens"}),
        ({"passes": ()}, {}, {4: "passes", 5: "members"}),
        ({"passes": ("members",)}, {}, {5: "members"}),
    ],
    ids=["pool", "block size", "turns", "reuse", "passes", "members"],
)
def test_a_rung_that_cannot_be_built_says_why_and_the_others_go_on(
    short: tuple[Path, Bundle, Bundle],
    tmp_path: Path,
    drop: dict[str, tuple[str, ...]],
    identity: dict[str, Any],
    missing: dict[int, str],
) -> None:
    store, measured, base = short
    altered = rewritten(measured, tmp_path, drop, **identity)
    ladder = build_ladder(altered, base, stores=[store, tmp_path], store=tmp_path)
    why = reasons(ladder)
    assert why.keys() == missing.keys()
    assert all(words in why[number] for number, words in missing.items()), why
    assert reasons(Ladder("", "", plan_ladder(altered, base, stores=[store]))) == why
    for rung in ladder.rungs:
        if rung.run_id:
            run = open_bundle(tmp_path / rung.run_id)
            assert run.lineage["ladder"]["taken"] == [
                r.taken for r in RUNGS[1 : rung.number + 1] if r.number not in missing
            ]


def test_of_several_replicas_durations_are_taken_by_geometry_and_batches_not_at_all(
    short: tuple[Path, Bundle, Bundle], tmp_path: Path
) -> None:
    store, measured, base = short
    trace = stored_trace([store], str(base.identity.value("trace", "digest")))
    run_id = replay(trace, knobs_from_run(base) | {"replicas": 2}, base.lineage["timing"]["model"], store=tmp_path)
    ladder = build_ladder(measured, open_bundle(tmp_path / run_id), stores=[store, tmp_path], store=tmp_path)
    assert reasons(ladder).keys() == {5}
    assert "2 schedulers" in reasons(ladder)[5]
    durations = open_bundle(tmp_path / str(ladder.rungs[3].run_id))
    assert durations.lineage["config"]["measured_match"] == "geometry"
    assert set(durations.table("passes").column("worker_id").to_pylist()) == {"vllm-0", "vllm-1"}


def test_a_member_of_unknown_tokens_is_no_member_of_none(short: tuple[Path, Bundle, Bundle], tmp_path: Path) -> None:
    store, measured, base = short
    table = measured.table("passes")
    assert table is not None
    rows = table.to_pylist()
    rows[5]["members"][0]["computed_before"] = None
    with BundleWriter(tmp_path, "measured", "gap", "gap", measured.identity) as writer:
        writer.write_table("requests", measured.table("requests"))
        writer.write_table("passes", pa.Table.from_pylist(rows, table.schema))
        other = open_bundle(tmp_path / writer.seal(phases=measured.phases))
    ladder = build_ladder(other, base, stores=[store, tmp_path], store=tmp_path)
    assert reasons(ladder).keys() == {5}
    assert "how many tokens" in reasons(ladder)[5]
    left = open_bundle(tmp_path / str(ladder.rungs[3].run_id)).lineage["ladder"]["left"]
    (why,) = (words for words in left if words.startswith("no scheduler parity"))
    assert "how many tokens" in why


def test_without_the_trace_only_what_needs_no_replay_is_built(
    short: tuple[Path, Bundle, Bundle], tmp_path: Path
) -> None:
    _, measured, base = short
    ladder = build_ladder(measured, base, stores=[tmp_path], store=tmp_path)
    assert reasons(ladder).keys() == {1, 2, 3, 4, 5}
    assert "trace" in reasons(ladder)[1]


def test_requests_that_the_trace_does_not_have_are_left_out_and_counted(
    short: tuple[Path, Bundle, Bundle], tmp_path: Path
) -> None:
    """Of the first three requests one is of an unknown session, one has no turn, one has another prompt."""
    store, measured, base = short
    table = measured.table("requests")
    assert table is not None
    rows = table.to_pylist()
    rows[0]["source_trace_id"] = rows[0]["conversation_id"] = "nobody"
    rows[1]["turn_index"] = None
    rows[2]["input_tokens"] += 1
    gone = {row["request_id"] for row in rows[:3]}
    pass_table = measured.table("passes", ["members"])
    assert pass_table is not None
    lost = sum(m["request_id"] in gone for batch in pass_table["members"].to_pylist() for m in batch)
    with BundleWriter(tmp_path, "measured", "other", "other", measured.identity) as writer:
        writer.write_table("requests", pa.Table.from_pylist(rows, table.schema))
        writer.write_table("passes", measured.table("passes"))
        other = open_bundle(tmp_path / writer.seal(phases=measured.phases))
    ladder = build_ladder(other, base, stores=[store, tmp_path], store=tmp_path)
    assert not reasons(ladder)
    last = open_bundle(tmp_path / str(ladder.rungs[-1].run_id))
    assert last.rows("requests") == len(rows) - 3
    assert {
        "requests that the trace does not have: 2",
        "requests whose prompt is not as long as in the trace: 1",
        f"batch members of requests that are not sent: {lost}",
    } <= set(last.lineage["ladder"]["left"])


def test_a_prediction_of_another_run_of_the_workload_will_do_and_is_said(
    short: tuple[Path, Bundle, Bundle], tmp_path: Path
) -> None:
    store, measured, base = short
    trace = planted.write_trace(tmp_path, plays=30)
    repeat = planted.write_truth(tmp_path, trace, {"warmup_s": 1.0, "duration_s": 5.0, "lanes": 5}, slug="repeat")
    ladder = build_ladder(repeat, base, stores=[store, tmp_path], store=tmp_path)
    first = open_bundle(tmp_path / str(ladder.rungs[0].run_id))
    assert first.lineage["ladder"]["left"] == [
        f"the prediction is of {measured.run_id}, another run of the same workload"
    ]
    assert requests(open_bundle(tmp_path / str(ladder.rungs[-1].run_id))) == requests(repeat)


def test_measured_durations_are_those_of_the_run_also_where_the_prediction_took_others(
    short: tuple[Path, Bundle, Bundle], tmp_path: Path
) -> None:
    """A prediction that has the pool and the knobs of rung 4 already, but the passes of another run."""
    store, measured, _ = short
    trace = stored_trace([store], str(measured.identity.value("trace", "digest")))
    values = knob_table.resolve({"timing": "measured"}, knobs_from_run(measured))
    model = measured_model(measured)
    base = find_bundle([tmp_path], replay(trace, values, model, store=tmp_path, like=measured))
    other = rewritten(measured, tmp_path, {"requests": ("turn_index",), "kv_events": ()})
    ladder = build_ladder(other, base, stores=[store, tmp_path], store=tmp_path)
    assert reasons(ladder).keys() == {2, 3, 5}
    runs = {rung.number: open_bundle(tmp_path / str(rung.run_id)) for rung in ladder.rungs if rung.run_id}
    assert [runs[number].lineage["timing"]["run_id"] for number in (1, 4)] == [measured.run_id, other.run_id]


@pytest.mark.parametrize("engine", ["atom", "sglang"])
def test_a_prediction_with_another_engine_is_compared_but_its_scheduler_not_called_right(
    short: tuple[Path, Bundle, Bundle], tmp_path: Path, engine: str
) -> None:
    store, measured, base = short
    trace = stored_trace([store], str(base.identity.value("trace", "digest")))
    values = knob_table.resolve({"engine": engine}, knobs_from_run(base))
    run_id = replay(trace, values, base.lineage["timing"]["model"], store=tmp_path)
    ladder = build_ladder(measured, open_bundle(tmp_path / run_id), stores=[store, tmp_path], store=tmp_path)
    if engine == "sglang":
        assert reasons(ladder).keys() == {3}
        assert "takes what its cache holds" in reasons(ladder)[3]
    else:
        assert not reasons(ladder)
    durations = open_bundle(tmp_path / str(ladder.rungs[3].run_id)).lineage["ladder"]
    assert "parity" not in durations
    assert any(f"the prediction has engine={engine}" in words for words in durations["left"])


def test_runs_that_make_no_ladder(short: tuple[Path, Bundle, Bundle], tmp_path: Path) -> None:
    store, measured, base = short
    build = {"stores": [store], "store": tmp_path}
    with pytest.raises(GapscopeError, match="not a measured run"):
        build_ladder(base, base, **build)
    with pytest.raises(GapscopeError, match="starts from a replay"):
        build_ladder(measured, measured, **build)
    rung = build_ladder(measured, base, **build).rungs[1].run_id
    with pytest.raises(GapscopeError, match="a rung of a ladder itself"):
        build_ladder(measured, find_bundle([tmp_path], str(rung)), **build)
    other = planted.write_trace(tmp_path, plays=20, seed=9)
    values = knob_table.resolve({**planted.TRUTH, "warmup_s": 0.5, "duration_s": 1.0})
    stranger = find_bundle([tmp_path], replay(other, values, store=tmp_path))
    with pytest.raises(GapscopeError, match="different workloads"):
        build_ladder(measured, stranger, **build)


def test_a_ladder_can_be_stopped(short: tuple[Path, Bundle, Bundle], tmp_path: Path) -> None:
    store, measured, base = short
    told: list[tuple[float, str]] = []
    with pytest.raises(Canceled):
        build_ladder(
            measured,
            base,
            stores=[store],
            store=tmp_path,
            progress=lambda share, words: told.append((share, words)),
            cancel=lambda: any("rung 3" in words for _, words in told),
        )
    built = [open_bundle(path).lineage["rung"] for path in list_bundles(tmp_path)]
    assert built == [1, 2]
    assert [share for share, _ in told] == sorted(share for share, _ in told)


# -- the command -----------------------------------------------------------------------------------------------


def test_the_command_names_every_rung(
    short: tuple[Path, Bundle, Bundle], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, measured, base = short
    where = ["--store", str(store), "--store", str(tmp_path)]
    assert cli.main(["ladder", measured.run_id, base.run_id, "--dry-run", *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [str(number) for number in range(7)]
    assert all(line.endswith("can be built") for line in lines[1:6])
    assert not list_bundles(tmp_path)
    assert cli.main(["ladder", measured.run_id, base.run_id, *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[:1] + lines[6:]] == [base.run_id, measured.run_id]
    assert sorted(line.split()[-1] for line in lines[1:6]) == [path.name for path in list_bundles(tmp_path)]


def test_the_command_finds_the_only_prediction(
    short: tuple[Path, Bundle, Bundle], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, measured, base = short
    arguments = ["ladder", measured.run_id, "--dry-run", "--store", str(store)]
    assert cli.main(arguments) == 0
    assert base.run_id in capsys.readouterr().out
    assert cli.main(["ladder", measured.run_id, base.run_id, "--fit", "x", "--store", str(store)]) == 2
    assert cli.main(["ladder", measured.run_id, "--store", str(tmp_path), "--store", str(store / "hidden")]) == 2
