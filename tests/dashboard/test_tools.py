"""Runs of several tools side by side: classes, refusals, reasons, and the command that prints them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from small_runs import MS, S, identity, request, table

from dashboard.cli import main
from dashboard.compare.tools import SideBySide, side_by_side
from dashboard.metrics import Population, Window
from dashboard.store import Store
from engine.bundle import BundleWriter, Phase
from engine.definitions import (
    END_CHUNK,
    FIRST_CONTENT,
    ROLE_CHUNK,
    STREAM_ERROR_FAILED,
    STREAM_ERROR_SUCCESS,
    TOKENS_REQUESTED,
    TOKENS_USAGE,
)
from engine.errors import GapscopeError

GOLDEN = Path(__file__).parent / "golden"
NO_LATENCY = {"first_visible_ns": None, "last_visible_ns": None}


def tool(store: Path, name: str, rows: list[dict[str, Any]], told: list[dict[str, Any]] | None, **rules: str) -> str:
    """A run that a tool of this name left; without rows, what it summed up."""
    record = identity()
    for field, rule in rules.items():
        record.set("definitions", field, rule, f"definitions of {name}")
    with BundleWriter(store, "measured" if rows else "imported_summary", name, name, record) as writer:
        if rows:
            writer.write_table("requests", table("requests", rows))
        if told:
            writer.write_table("reported", table("reported", told))
        phases = [Phase("profile", 0, 10 * S)] if rows else []
        return writer.seal(phases=phases, lineage={"tool": name, "tool_version": "1.0"})


def figure(name: str, value: float, metric: str | None, unit: str = "ms", statistic: str = "mean") -> dict[str, Any]:
    row = {
        "scope": "run",
        "name": name,
        "value": value,
        "unit": unit,
        "statistic": statistic,
        "definition": f"as {name}",
    }
    return row | {"metric": metric}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One server by three tools: content first, role chunk first with requested lengths, and a summary alone."""
    store = tmp_path_factory.mktemp("tools")
    fine = [request(f"r{k}", at=k * S, tool_status="success") for k in range(4)]
    empty = request("empty", at=5 * S, output_tokens=0, flags="zero output", tool_status="error: empty", **NO_LATENCY)
    broken = request("broken", at=6 * S, flags="unfinished stream", tool_status="success", output_tokens=None)
    failed = request("bad", at=7 * S, status="error", output_tokens=None, tool_status="error", **NO_LATENCY)
    told = [figure("ttft", 99.0, "ttft"), figure("request_count", 5.0, None, "requests", "total")]
    rules = {"first_token": FIRST_CONTENT, "token_source": TOKENS_USAGE, "throughput_denominator": "phase window"}
    tool(store, "alpha", [*fine, empty, broken, failed], told, **rules)
    early = [
        row | {"first_visible_ns": row["first_visible_ns"] - 10 * MS, "flags": "output tokens are those asked for"}
        for row in fine
    ]
    empty = empty | {"tool_status": "success", "output_tokens": 0}
    rules = {"first_token": ROLE_CHUNK, "token_source": TOKENS_REQUESTED, "end_of_latency": END_CHUNK}
    tool(store, "beta", [*early, empty], [], throughput_denominator="benchmark call", **rules)
    tool(store, "gamma", [], [figure("ttft_ms", 88.0, "ttft"), figure("rate", 0.5, "request_rate", "1/s")])
    return store


@pytest.fixture(scope="module")
def found(root: Path) -> SideBySide:
    store = Store([root])
    return side_by_side(store, [store.find(name).run_id for name in ("alpha", "beta", "gamma")], Population())


def test_classes_are_ours_and_words_the_tools(found: SideBySide) -> None:
    alpha, beta, gamma = found.runs
    assert [run.letter for run in found.runs] == ["A", "B", "C"]
    assert [run.tool for run in found.runs] == ["alpha 1.0", "beta 1.0", "gamma 1.0"]
    headline = Population()
    classes = ("ok", "zero_output", "unfinished", "error")
    assert [alpha.count(name, headline) for name in classes] == [4, 1, 1, 1]
    assert [beta.count(name, headline) for name in classes] == [4, 1, 0, 0]
    assert (alpha.attempted(headline), beta.attempted(headline)) == (7, 5)
    assert (alpha.words("zero_output", headline), beta.words("zero_output", headline)) == ("error: empty", "success")
    assert alpha.tool_successes == ("request_count", 5.0)
    assert beta.tool_successes is None  # unknown, not zero
    assert (gamma.attempted(headline), gamma.count("ok", headline)) == (None, None)


def test_another_quantity_is_refused_with_its_remedy(found: SideBySide) -> None:
    refused = found.cell("ttft", "B").refused
    assert refused is not None
    assert ROLE_CHUNK in refused.reason
    assert "--save-detailed" in refused.remedy
    assert found.cell("ttft", "A").refused is None
    assert found.cell("output_tokens", "B").refused is not None
    assert found.cell("input_tokens", "B").refused is None
    assert found.cell("output_rate", "B").refused is not None
    assert found.cell("request_rate", "B").refused is None


def test_every_number_says_whether_it_stands_beside_the_first(found: SideBySide) -> None:
    assert all(cell.beside for cell in (*found.cells, *found.rates))
    assert found.cell("ttft", "A").beside == "the others stand beside this one"
    assert found.cell("input_tokens", "B").beside == found.cell("request_rate", "B").beside == "can stand beside A"


def test_rules_that_differ_in_part_and_a_first_run_without_the_number_are_said(tmp_path: Path) -> None:
    rows = [request(f"r{k}", at=k * S) for k in range(2)]
    silent = [row | {"first_visible_ns": None} for row in rows]
    tool(tmp_path, "one", silent, [], stream_errors=STREAM_ERROR_FAILED)
    tool(tmp_path, "two", rows, [], stream_errors=STREAM_ERROR_SUCCESS)
    store = Store([tmp_path])
    made = side_by_side(store, [store.find(name).run_id for name in ("one", "two")], Population())
    assert made.cell("ttft", "B").beside == "A has none to stand beside"
    assert made.cell("input_tokens", "B").beside == "can stand beside A"
    assert made.cell("request_rate", "B").beside == (
        f"can stand beside A; errors inside a stream are '{STREAM_ERROR_FAILED}' on one side and "
        f"'{STREAM_ERROR_SUCCESS}' on the other"
    )


def test_numbers_are_those_of_the_rows(found: SideBySide) -> None:
    # TTFT is 100 ms in A (the broken stream has one, too) and 90 ms in B.
    assert (found.cell("ttft", "A").numbers["mean"].value, found.cell("ttft", "A").n) == (pytest.approx(100.0), 5)
    assert (found.cell("ttft", "B").numbers["p90"].value, found.cell("ttft", "B").n) == (pytest.approx(90.0), 4)
    # Four requests of 5 tokens 20 ms apart; the broken stream's were not counted.
    assert (found.cell("tpot", "A").numbers["mean"].value, found.cell("tpot", "A").n) == (pytest.approx(20.0), 4)
    assert found.cell("request_rate", "A").numbers["fixed"].value == pytest.approx(6 / 10)
    assert found.cell("ttft", "C").numbers["mean"].value is None
    assert not any(cell.metric == "ttfo" for cell in found.cells)  # nobody recorded it


def test_definitions_that_differ_come_first(found: SideBySide) -> None:
    states = [one.state for one in found.definitions]
    assert states == sorted(states, key=("differs", "unknown", "same").index)
    assert {one.name: one.state for one in found.definitions} == {
        "first_token": "differs",
        "token_source": "differs",
        "throughput_denominator": "differs",
        "end_of_latency": "unknown",
    }


def test_reasons_are_made_of_what_was_found(found: SideBySide) -> None:
    said = " ".join(found.reasons)
    assert "requests sent are A 7, B 5" in said
    assert "finished without content: 1 in A, which calls it 'error: empty'; 1 in B, which calls it 'success'" in said
    assert "broke off without finish or usage: 1 in A" in said
    assert "B takes the first chunk of any kind for the first token" in said
    assert "A the first content" in said
    assert "Output tokens of B (4 requests) are the length that was asked for" in said
    assert "A: phase window; B: benchmark call" in said
    assert "A says TTFT mean 99.00 ms, its rows give 100.00 by our rule: the tool's rule: as ttft." in said
    assert "C has no rows" in said
    store_of_one = [reason for reason in found.reasons if "C says" in reason]
    assert store_of_one == []  # a summary is never differenced


def test_what_cannot_stand_side_by_side_is_refused(root: Path) -> None:
    store = Store([root])
    alpha = store.find("alpha").run_id
    for run_ids, words in (([], "0 runs"), ([alpha] * 2, "named twice"), (["x-0123456789ab"] * 9, "9 runs")):
        with pytest.raises(GapscopeError, match=words):
            side_by_side(store, run_ids, Population())


def test_matched_populations_are_taken_whole(root: Path) -> None:
    store = Store([root])
    ids = [store.find(name).run_id for name in ("alpha", "beta")]
    made = side_by_side(store, ids, Population("profile", "matched"), window=Window.OBSERVED_SPAN)
    assert made.population == Population()


@pytest.mark.parametrize(("form", "ending"), [("table", "txt"), ("markdown", "md"), ("json", "json")])
def test_golden_output(capsys: pytest.CaptureFixture[str], root: Path, form: str, ending: str) -> None:
    assert main(["tools", "alpha", "beta", "gamma", "--store", str(root), "--format", form]) == 0
    out = re.sub(r"-[0-9a-f]{12}\b", "-<digest>", capsys.readouterr().out)
    golden = GOLDEN / f"tools.{ending}"
    if os.environ.get("GAPSCOPE_WRITE_GOLDEN"):
        golden.write_text(out, encoding="utf-8")
    assert out == golden.read_text(encoding="utf-8")
    if form == "json":
        told = json.loads(out)
        assert [run["outcomes"] and run["outcomes"]["zero_output"] for run in told["runs"]] == [1, 1, None]
        assert told["runs"][2]["own_figures"][0]["difference"] is None


def test_an_unknown_run_is_one_sentence(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    assert main(["tools", "alpha", "absent", "--store", str(root)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "No run 'absent'" in err
