"""vLLM bench serve and SGLang bench_serving against one stub server, of which it is known what it did.

By arrival number modulo 20 the stub answered: 0 two tokens in the first chunk, 5 HTTP 500, 7 nothing, 9 one token, 11
three tokens a chunk, 13 an error object after 12 tokens, 17 HTTP 429, else a token a chunk; 24 were asked for. Every
stream began with a role chunk about 10 ms before the first content.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.bundle import Bundle, open_bundle
from engine.errors import GapscopeError
from engine.importers import import_any, intake_for, plan_import

DATA = Path(__file__).parents[1] / "data"
VLLM = DATA / "vllm_bench" / "detailed.json"
SGLANG = DATA / "sglang_bench" / "out_sglang.jsonl"


def imported(path: Path, store: Path, **options: Any) -> Bundle:
    (run_id,) = import_any(path, store, **options)
    return open_bundle(store / run_id)


def rows(bundle: Bundle, table: str = "requests") -> list[dict[str, Any]]:
    found = bundle.table(table)
    assert found is not None
    return found.to_pylist()


def by_id(bundle: Bundle) -> dict[int, dict[str, Any]]:
    return {int(row["request_id"]): row for row in rows(bundle)}


def checks(bundle: Bundle) -> dict[str, tuple[str, str]]:
    return {check.check: (check.verdict, check.detail) for check in bundle.qualification}


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return imported(VLLM, tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="module")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return imported(SGLANG, tmp_path_factory.mktemp("sglang"))


def test_outcomes_of_vllm(vllm: Bundle) -> None:
    assert vllm.ledger is not None
    assert {k: vllm.ledger["profile"][k] for k in ("attempted", "ok", "error")} == {
        "attempted": 40,
        "ok": 36,
        "error": 4,
    }
    for row in rows(vllm):
        if row["status"] == "error":
            assert row["error_message"] in ("Internal Server Error", "Too Many Requests")
            assert (row["first_visible_ns"], row["end_ns"], row["output_tokens"]) == (None, None, None)
    flags = Counter(row["flags"] for row in rows(vllm))
    # Two requests each of: no content, error inside the stream, two tokens first, three tokens a chunk.
    assert flags == {
        None: 32,
        "zero output": 2,
        "unfinished stream": 2,
        "unfinished stream, or several tokens in a chunk": 2,
        "several tokens a chunk": 2,
    }


def test_vllm_first_token_is_moved_from_the_role_chunk_to_the_content(vllm: Bundle) -> None:
    document = json.loads(VLLM.read_text())
    start = min(document["start_times"])
    for place, row in by_id(vllm).items():
        if not row["output_tokens"]:
            assert row["first_visible_ns"] is row["last_visible_ns"] is None
            continue
        first = document["ttfts"][place] + document["itls"][place][0]
        assert row["first_visible_ns"] - row["dispatched_ns"] == pytest.approx(first * 1e9, abs=2)
        assert row["dispatched_ns"] == pytest.approx((document["start_times"][place] - start) * 1e9, abs=2)
        assert row["end_ns"] - row["dispatched_ns"] == pytest.approx(document["latencies"][place] * 1e9, abs=2)
    one = [row for row in rows(vllm) if row["output_tokens"] == 1]
    assert len(one) == 2
    assert all(row["first_visible_ns"] == row["last_visible_ns"] for row in one)
    values = {name: vllm.identity.value("definitions", name) for name in ("first_token", "end_of_latency")}
    assert values == {
        "first_token": "first chunk with content of any kind, reasoning included",
        "end_of_latency": "last content",
    }


def test_a_finish_chunk_is_not_content(vllm: Bundle) -> None:
    """Of 24 single tokens the role chunk, 24 contents and the finish chunk arrived: 25 gaps."""
    document = json.loads(VLLM.read_text())
    chunks: dict[int, list[dict[str, Any]]] = {}
    for chunk in rows(vllm, "chunks"):
        chunks.setdefault(int(chunk["request_id"]), []).append(chunk)
    mine = sorted(chunks[1], key=lambda chunk: chunk["ordinal"])
    assert [chunk["visible"] for chunk in mine] == [False, *[True] * 24, False]
    assert [chunk["tokens"] for chunk in mine] == [0, *[1] * 24, 0]
    last = document["ttfts"][1] + sum(document["itls"][1][:-1])
    row = by_id(vllm)[1]
    assert row["last_visible_ns"] - row["dispatched_ns"] == pytest.approx(last * 1e9, abs=2)
    burst = sorted(chunks[6], key=lambda chunk: chunk["ordinal"])
    assert [chunk["tokens"] for chunk in burst] == [0, *[None] * 8, 0]  # 24 tokens in 8 chunks


def test_vllm_checks(vllm: Bundle) -> None:
    found = checks(vllm)
    # Each of ttft, tpot, itl and e2el: mean, median, std, p50, p90, p99 and p99.9; 3 rates; 4 counts.
    verdict, detail = found["summary_reproduced"]
    assert (verdict, detail) == ("pass", "all 35 figures of detailed.json follow from the rows.")
    assert found["rows_counted"][0] == "pass"
    assert found["concurrency_capped"] == (
        "pass",
        "at most 4 in flight where 4 are allowed; the tool reports 17, which counts whole seconds",
    )


def test_vllm_reports_stand_beside_with_their_definition(vllm: Bundle) -> None:
    reported = {(row["name"], row["statistic"]): row for row in rows(vllm, "reported")}
    ttft = reported[("ttft", "mean")]
    assert (ttft["value"], ttft["unit"], ttft["metric"], ttft["n"]) == (28.805447972242998, "ms", "ttft", 36)
    assert "role chunk" in ttft["definition"]
    # 36 successes, of which 2 without content and 2 of one token; all of their gaps.
    gaps = json.loads(VLLM.read_text())["itls"]
    assert [reported[(name, "mean")]["n"] for name in ("tpot", "itl")] == [32, sum(len(list_) for list_ in gaps)]
    assert reported[("request_throughput", "value")]["metric"] == "request_rate"
    assert reported[("itl", "p99.9")]["metric"] == "chunk_gap"


def test_outcomes_of_sglang(sglang: Bundle) -> None:
    assert sglang.ledger is not None
    assert {k: sglang.ledger["profile"][k] for k in ("attempted", "ok", "error")} == {
        "attempted": 40,
        "ok": 36,
        "error": 4,
    }
    found = by_id(sglang)
    zero = [place for place, row in found.items() if row["flags"] == "zero output"]
    assert zero == [16, 36]
    assert all(found[place]["output_tokens"] == 0 and found[place]["first_visible_after_ns"] is None for place in zero)
    asked = [place for place, row in found.items() if row["flags"] == "output tokens are those asked for"]
    assert sorted(asked) == [2, 18, 22, 38]  # twice one token, twice an error after 12: all counted as 24
    assert all(found[place]["output_tokens"] is None for place in asked)
    assert all(found[place]["first_visible_after_ns"] for place in asked)
    bursts = [place for place, row in found.items() if row["flags"] == "several tokens a chunk"]
    assert sorted(bursts) == [0, 9, 20, 29]
    assert all(row["dispatched_ns"] is None for row in rows(sglang))
    assert "When a request was sent" in sglang.lineage["not_recorded"][0]


def test_sglang_checks_and_durations(sglang: Bundle) -> None:
    document = json.loads(SGLANG.read_text().splitlines()[0])
    row = by_id(sglang)[1]
    assert row["first_visible_after_ns"] == pytest.approx(document["ttfts"][1] * 1e9, abs=1)
    assert row["last_visible_after_ns"] == pytest.approx((document["ttfts"][1] + sum(document["itls"][1])) * 1e9, abs=1)
    found = checks(sglang)
    assert found["summary_reproduced"][0] == "pass"
    assert found["concurrency_capped"][0] == "unknown"
    assert found["tokens_counted"][0] == "fail"
    assert "864" in found["tokens_counted"][1]
    assert "746" in found["tokens_counted"][1]
    reported = {(row["name"], row["statistic"]): row["value"] for row in rows(sglang, "reported")}
    ok = [t for t, e in zip(document["ttfts"], document["errors"], strict=True) if not e]
    assert reported[("ttft", "mean")] == pytest.approx(1e3 * np.mean(ok))  # its two zeros are inside


def test_sglang_counts_are_said_to_be_those_asked_for(sglang: Bundle) -> None:
    assert sglang.identity.value("definitions", "token_source") == (
        "the length that was asked for where chunks or text bear it out, else unknown"
    )
    assert {row["requested_output_tokens"] for row in rows(sglang) if row["status"] == "ok"} == {24}
    assert sglang.identity.value("definitions", "stream_errors") == "a success that cannot be told from others"


def sglang_rows(tmp_path: Path, **changes: Any) -> Bundle:
    document = {"input_lens": [9, 9, 9], "errors": ["", "", ""], "total_output_tokens": 0, **changes}
    file = tmp_path / "a.jsonl"
    file.write_text(document_of(SGLANG, **document))
    return imported(file, tmp_path / "store")


def test_an_empty_answer_counted_with_tokens_proves_that_lengths_are_those_asked_for(tmp_path: Path) -> None:
    """Lengths differ, so that no total shows it: 4 tokens in 4 chunks, an empty answer, 1 chunk of 30 tokens' count."""
    bundle = sglang_rows(
        tmp_path,
        output_lens=[4, 20, 30],
        ttfts=[0.1, 0.0, 0.1],
        itls=[[0.1, 0.1, 0.1], [], []],
        generated_texts=["abcdefgh", "", "ab"],
    )
    found = by_id(bundle)
    assert [found[i]["output_tokens"] for i in range(3)] == [4, 0, None]
    assert [found[i]["flags"] for i in range(3)] == [None, "zero output", "output tokens are those asked for"]


def test_the_native_backend_counts_and_spreads_gaps(tmp_path: Path) -> None:
    bundle = sglang_rows(
        tmp_path,
        backend="sglang",
        output_lens=[3, 3, 3],
        ttfts=[0.1, 0.1, 0.1],
        itls=[[0.1, 0.1]] * 3,
        generated_texts=["abc"] * 3,
        total_output_tokens=9,
        total_output_tokens_retokenized=8,
        server_info={"version": "0.5.23", "tp_size": 4, "model_path": "org/m"},
    )
    assert "chunks" not in bundle.tables
    assert bundle.identity.value("definitions", "token_source") == "server usage"
    assert [row["output_tokens"] for row in rows(bundle)] == [3, 3, 3]
    assert bundle.identity.value("topology", "tp") == 4
    assert bundle.identity.value("source", "version") == "0.5.23"


def document_of(path: Path, **changes: Any) -> str:
    document = json.loads(path.read_text().splitlines()[0])
    document.update(changes)
    return json.dumps({key: value for key, value in document.items() if value is not ...})


DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors")


@pytest.mark.parametrize(("path", "name"), [(VLLM, "a.json"), (SGLANG, "a.jsonl")])
def test_without_details_it_is_a_summary(path: Path, name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(document_of(path, **dict.fromkeys(DETAILS, ...)))
    bundle = imported(file, tmp_path / "store")
    assert (bundle.kind, bundle.tables) == ("imported_summary", ("reported",))
    if path is VLLM:
        assert bundle.identity.value("definitions", "first_token") == (
            "first chunk of any kind, the role chunk included"
        )


@pytest.mark.parametrize("path", [VLLM, SGLANG])
def test_appended_documents_are_runs_of_their_own(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "several.json"
    file.write_text("\n".join([document_of(path), document_of(path, duration=20.0)]) + "\n")
    found = import_any(file, tmp_path / "store")
    assert len(set(found)) == 2
    ends = [open_bundle(tmp_path / "store" / run_id).phases[0].end_ns for run_id in found]
    assert ends[1] == 20_000_000_000
    assert ends[0] < 12_000_000_000


def test_a_sidecar_is_left_out_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(document_of(VLLM))
    (tmp_path / "in" / "a.pytorch.json").write_text('[{"benchmark": {}}]')
    with intake_for(tmp_path / "in", tmp_path / "store") as intake:
        (part,) = plan_import(intake).parts
    assert part.ignores == (("a.pytorch.json", "a sidecar of other shape with the same figures"),)


def test_the_completions_endpoint_has_no_role_chunk(tmp_path: Path) -> None:
    """Three tokens: 0.1 s to the first text, gaps of 0.02 and 0.03 s."""
    changes = {
        "backend": "openai",
        "endpoint_type": "openai",
        "input_lens": [7],
        "output_lens": [3],
        "ttfts": [0.1],
        "itls": [[0.02, 0.03]],
        "latencies": [0.15],
        "start_times": [5.0],
        "queue_times": ...,
        "errors": [""],
        "generated_texts": ["a b c"],
    }
    file = tmp_path / "a.json"
    file.write_text(document_of(VLLM, **changes))
    (row,) = rows(imported(file, tmp_path / "store"))
    assert (row["first_visible_ns"], row["last_visible_ns"], row["flags"]) == (100_000_000, 150_000_000, None)


def test_all_requests_failed(tmp_path: Path) -> None:
    changes = {
        "output_lens": [0, 0],
        "input_lens": [5, 5],
        "ttfts": [0.0, 0.0],
        "itls": [[], []],
        "latencies": [0.0, 0.0],
        "start_times": [1.0, 2.0],
        "queue_times": [0.0, 0.0],
        "errors": ["Connection refused", "Connection refused"],
        "generated_texts": ["", ""],
        "completed": 0,
        "failed": 2,
        "num_prompts": 2,
    }
    zeros = {key: 0.0 for key in json.loads(VLLM.read_text()) if key.endswith("_ms")}
    file = tmp_path / "a.json"
    file.write_text(document_of(VLLM, **changes, **zeros))
    bundle = imported(file, tmp_path / "store")
    assert bundle.ledger is not None
    assert bundle.ledger["profile"]["error"] == 2
    assert checks(bundle)["statistics_of_successes"][0] == "fail"


@pytest.mark.parametrize("without", [("errors",), ("errors", "failed"), ("errors", "latencies")])
def test_a_failure_without_its_error_has_no_outcome(tmp_path: Path, without: tuple[str, ...]) -> None:
    document = json.loads(VLLM.read_text())
    refused = [n for n, error in enumerate(document["errors"]) if error]
    assert len(refused) == document["failed"] == 4
    for key in without:
        del document[key]
    (tmp_path / "r.json").write_text(json.dumps(document))
    found = imported(tmp_path / "r.json", tmp_path / "store")
    silent = [n for n, row in by_id(found).items() if row["status"] == "in_flight"]
    assert sorted(silent) == refused
    for n in refused:
        row = by_id(found)[n]
        assert (row["flags"], row["output_tokens"], row["end_ns"]) == ("outcome not recorded", None, None)
        assert row["dispatched_ns"] is None  # else it would be in flight from there to the end
    # The two answers of nothing had a first chunk: they are successes, as the tool counts them.
    assert found.ledger is not None
    assert (found.ledger["profile"]["ok"], found.ledger["profile"]["in_flight"]) == (36, 4)
    verdict, detail = checks(found)["outcomes_known"]
    assert verdict == "fail"
    assert detail.startswith("4 of 40 requests have no answer, the first is request 0, and r.json")
    assert checks(found)["rows_counted"][0] == "pass"
    assert "36 without an error and 0 with one, 4 without an outcome" in checks(found)["rows_counted"][1]
    if "latencies" not in without:
        assert checks(found)["summary_reproduced"][0] == "pass"


def test_where_nothing_failed_every_request_has_an_outcome(tmp_path: Path) -> None:
    document = json.loads(VLLM.read_text()) | {"failed": 0, "completed": 40}
    del document["errors"]
    (tmp_path / "r.json").write_text(json.dumps(document))
    found = imported(tmp_path / "r.json", tmp_path / "store")
    assert {row["status"] for row in rows(found)} == {"ok"}
    assert "outcomes_known" not in checks(found)


@pytest.mark.parametrize("path", [VLLM, SGLANG])
@pytest.mark.parametrize(
    ("rate", "loop"),
    [
        (float("inf"), "requests as fast as possible, 4 at most"),
        ("inf", "requests as fast as possible, 4 at most"),
        (2.5, "requests at 2.5 a second, 4 at most"),
    ],
)
def test_a_rate_without_a_limit_is_said_in_words(tmp_path: Path, path: Path, rate: Any, loop: str) -> None:
    document = json.loads(path.read_text().splitlines()[0]) | {"request_rate": rate, "max_concurrency": 4}
    (tmp_path / path.name).write_text(json.dumps(document) + "\n")
    found = imported(tmp_path / path.name, tmp_path / "store")
    assert found.manifest["identity"]["client"]["loop"]["value"] == loop


def test_arrays_of_different_lengths_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(document_of(VLLM, ttfts=[0.1]))
    with pytest.raises(GapscopeError, match=r"a\.json: the arrays have different lengths"):
        import_any(file, tmp_path / "store")


def test_a_value_of_another_type_is_a_bad_row(tmp_path: Path) -> None:
    lengths = json.loads(VLLM.read_text())["output_lens"]
    file = tmp_path / "a.json"
    file.write_text(document_of(VLLM, output_lens=["many", *lengths[1:]]))
    with pytest.raises(GapscopeError, match="request 0: output_lens is 'many', expected a count"):
        import_any(file, tmp_path / "store")
    bundle = imported(file, tmp_path / "store", skip_bad_rows=True)
    assert bundle.rows("requests") == 39
    assert checks(bundle)["rows_used"][0] == "fail"


def vllm_rows(tmp_path: Path, lengths: list[int], ttfts: list[float], itls: list[list[float]], **more: Any) -> Bundle:
    many = len(lengths)
    changes = {
        "input_lens": [5] * many,
        "output_lens": lengths,
        "ttfts": ttfts,
        "itls": itls,
        "latencies": [t + sum(g) for t, g in zip(ttfts, itls, strict=True)],
        "start_times": [float(i) for i in range(many)],
        "queue_times": ...,
        "errors": [""] * many,
        "generated_texts": ["x"] * many,
        **more,
    }
    file = tmp_path / "a.json"
    file.write_text(document_of(VLLM, **changes))
    return imported(file, tmp_path / "store")


def test_the_finish_may_come_with_the_last_content(tmp_path: Path) -> None:
    """A role chunk at 0.1 s, then 3, 2 and 5 tokens 0.01 s apart: as many gaps as tokens, and nothing is cut off."""
    lengths = [3, 2, 5]
    bundle = vllm_rows(tmp_path, lengths, [0.1] * 3, [[0.01] * n for n in lengths])
    for place, row in by_id(bundle).items():
        assert row["flags"] is None
        assert row["first_visible_ns"] - row["dispatched_ns"] == pytest.approx(110_000_000, abs=2)
        assert row["last_visible_ns"] - row["dispatched_ns"] == pytest.approx(1e8 + lengths[place] * 1e7, abs=2)
    assert bundle.identity.value("definitions", "end_of_latency") == "last content"
    assert [chunk["tokens"] for chunk in rows(bundle, "chunks") if chunk["request_id"] == "0"] == [0, 1, 1, 1]


def test_where_bursts_hide_the_finish_chunk_the_end_is_the_tools(tmp_path: Path) -> None:
    bundle = vllm_rows(tmp_path, [30, 30], [0.1, 0.1], [[0.01] * 10, [0.01] * 12])
    assert {row["flags"] for row in rows(bundle)} == {"several tokens a chunk"}
    assert bundle.identity.value("definitions", "first_token") == (
        "first chunk with content of any kind, reasoning included"
    )
    assert bundle.identity.value("definitions", "end_of_latency") == (
        "last chunk of any kind, finish and usage chunks included"
    )


def test_a_gap_that_is_no_number_leaves_the_times_unknown(tmp_path: Path) -> None:
    itls = [[0.01, 0.01], [0.01, float("nan")], [0.01, 0.01]]
    bundle = vllm_rows(tmp_path, [2, 2, 2], [0.1] * 3, itls, latencies=[0.12] * 3)
    row = by_id(bundle)[1]
    assert (row["status"], row["output_tokens"]) == ("ok", 2)
    assert row["first_visible_ns"] is row["last_visible_ns"] is None
    assert row["end_ns"] - row["dispatched_ns"] == pytest.approx(120_000_000, abs=2)


def test_results_that_a_sweep_lists_again_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    plain = json.loads(document_of(VLLM, **dict.fromkeys(DETAILS, ...)))
    for name in ("a.json", "b.json"):
        (tmp_path / "in" / name).write_text(document_of(VLLM))
    (tmp_path / "in" / "summary.json").write_text(json.dumps([plain, plain]))
    with intake_for(tmp_path / "in", tmp_path / "store") as intake:
        plan = plan_import(intake)
    assert [part.name for part in plan.parts] == ["a", "b"]
    assert plan.parts[0].ignores == (("summary.json", "the results of several runs again, each of which has a file"),)


def test_results_of_an_older_version(tmp_path: Path) -> None:
    """No count of failures, no times of starts, and the goodput's key with a colon, as InferenceX writes it."""
    changes = {
        "failed": ...,
        "start_times": ...,
        "latencies": ...,
        "queue_times": ...,
        "request_goodput": ...,
        "request_goodput:": 3.5,
        "benchmark_start_time_unix": 1.7e9,
    }
    file = tmp_path / "a.json"
    file.write_text(document_of(VLLM, **changes))
    bundle = imported(file, tmp_path / "store")
    assert checks(bundle)["rows_counted"][0] == "pass"
    assert checks(bundle)["summary_reproduced"][0] == "pass"
    assert bundle.manifest["profile_start_unix_ns"] == 1_700_000_000_000_000_000
    row = by_id(bundle)[1]
    document = json.loads(VLLM.read_text())
    assert row["dispatched_ns"] is None
    first = document["ttfts"][1] + document["itls"][1][0]
    assert row["first_visible_after_ns"] == pytest.approx(first * 1e9, abs=2)
    reported = {(r["name"], r["statistic"]): r["value"] for r in rows(bundle, "reported")}
    assert reported[("request_goodput", "value")] == 3.5
