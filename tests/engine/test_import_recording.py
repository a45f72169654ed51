"""A recording of three requests: every value here follows by hand from ``recording_folder``."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from recording_folder import HASHES, PROMPT_A, PROMPT_B, PROMPT_C, Folder, lines, write_sweep

from engine.bundle import Bundle, open_bundle
from engine.errors import GapscopeError
from engine.importers import import_any, import_recording, import_sweep
from engine.traces import agentic

MS = 1_000_000


def imported(folder: Folder, tmp_path: Path, **options: Any) -> Bundle:
    run_id = import_any(folder.write(tmp_path / "rec"), tmp_path / "store", **options)[0]
    return open_bundle(tmp_path / "store" / run_id)


def rows(bundle: Bundle, table: str) -> list[dict[str, Any]]:
    found = bundle.table(table)
    assert found is not None
    return found.to_pylist()


def verdicts(bundle: Bundle) -> dict[str, str]:
    return {c.check: c.verdict for c in bundle.qualification}


def detail(bundle: Bundle, check: str) -> str:
    return next(c.detail for c in bundle.qualification if c.check == check)


def keys(ids: list[int]) -> list[int]:
    """Chained block keys by their definition: BLAKE2b-64 over the parent's key and the ids, little-endian."""
    found, parent = [], 0
    for start in range(0, len(ids) - 3, 4):
        data = struct.pack("<Q4I", parent, *ids[start : start + 4])
        parent = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
        found.append(parent)
    return found


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return imported(Folder(), tmp_path)


def test_requests_join_client_engine_and_trace(bundle: Bundle) -> None:
    a, b, c = rows(bundle, "requests")
    assert [r["request_id"] for r in (a, b, c)] == ["A", "B", "C"]
    assert (a["phase"], b["phase"], c["phase"]) == ("warmup", "profile", "profile")
    assert (a["dispatched_ns"], b["dispatched_ns"], c["dispatched_ns"]) == (-500 * MS, 200 * MS, 500 * MS)
    assert (c["scheduled_ns"], c["received_ns"], c["first_admit_ns"]) == (499 * MS, 505 * MS, 510 * MS)
    assert (c["first_visible_ns"], c["end_ns"], c["released_ns"]) == (650 * MS, 1100 * MS, 1120 * MS)
    assert (b["parent_request_id"], b["agent_depth"], b["conversation_id"]) == ("A", 1, "r.c")
    assert (c["parent_request_id"], c["agent_depth"], c["turn_index"]) == (None, 0, 1)
    assert {r["source_trace_id"] for r in (a, b, c)} == {"r"}
    assert (c["status"], c["output_tokens"], c["requested_output_tokens"]) == ("canceled", 1, 3)
    assert c["cached_tokens"] == 8  # not in the client's row, but in the first pass with the request
    assert (c["preemptions"], c["recomputed_tokens"]) == (1, 5)  # 13 were computed, the resume started at 8
    assert (a["preemptions"], a["recomputed_tokens"]) == (0, 0)
    assert a["worker_id"] is None
    assert a["error_type"] is None


def test_block_hashes_follow_from_the_tokens(bundle: Bundle) -> None:
    a, b, c = rows(bundle, "requests")
    assert a["prompt_block_hashes"] == keys(PROMPT_A)
    assert a["output_block_hashes"] == []  # 9 + 2 - 1 = 10 tokens have KV: no third block
    assert b["prompt_block_hashes"] == keys(PROMPT_B)
    assert c["prompt_block_hashes"] == keys(PROMPT_C)
    assert a["prompt_block_hashes"] == b["prompt_block_hashes"][:2] == c["prompt_block_hashes"][:2]
    assert b["prompt_block_hashes"][2] != c["prompt_block_hashes"][2]


def test_output_blocks_stop_before_the_last_sampled_token(tmp_path: Path) -> None:
    folder = Folder()
    row = folder.requests[1]
    row |= {"output_ids": [103, 104, 105, 106], "output_tokens": 4, "output_tokens_requested": 4}
    first = rows(imported(folder, tmp_path), "requests")[1]
    assert first["output_block_hashes"] == []
    row |= {"output_ids": [103, 104, 105, 106, 107], "output_tokens": 5}
    second = rows(imported(folder, tmp_path), "requests")[1]
    assert second["prompt_block_hashes"] + second["output_block_hashes"] == keys([*PROMPT_B, 103, 104, 105, 106])


def test_passes_keep_times_composition_and_idle_calls(bundle: Bundle) -> None:
    passes = rows(bundle, "passes")
    assert [p["pass_index"] for p in passes] == list(range(8))
    assert [p["phase"] for p in passes] == ["warmup"] * 3 + ["profile"] * 4 + ["drain"]
    assert passes[4]["start_ns"] == 510 * MS
    assert (passes[4]["duration_ns"], passes[4]["schedule_ns"], passes[4]["contention_ns"]) == (90 * MS, MS, MS)
    assert passes[4]["members"] == [{"request_id": "C", "computed_before": 8, "scheduled_tokens": 5}]
    assert [p["num_output_tokens"] for p in passes] == [0, 1, 1, 1, 1, 0, 1, 0]
    idle = passes[5]
    assert (idle["num_prefill_requests"], idle["num_decode_requests"], idle["members"]) == (0, 0, [])
    assert (idle["duration_ns"], idle["num_preempted"], idle["queued_sum_decode_kv_tokens"]) == (90 * MS, 1, 14)
    assert idle["var_prefill_length"] is None  # of no request
    assert passes[2]["var_prefill_length"] is None
    assert passes[2]["var_decode_kv_tokens"] == 0.0
    assert passes[0]["queued_var_prefill_length"] is None  # not recorded


def test_admissions_and_chunks(bundle: Bundle) -> None:
    admissions = [
        (a["request_id"], a["ordinal"], a["pass_index"], a["cached_tokens"], a["hit_blocks"], a["is_readmission"])
        for a in rows(bundle, "admissions")
    ]
    assert admissions == [
        ("A", 0, 0, 0, 0, False),
        ("B", 0, 3, 8, 2, False),
        ("C", 0, 4, 8, 2, False),
        ("C", 1, 6, 8, 2, True),
    ]
    chunks = [(c["request_id"], c["ordinal"], c["time_ns"], c["tokens"]) for c in rows(bundle, "chunks")]
    assert chunks == [("A", 0, -250 * MS, 1), ("A", 1, -150 * MS, 1), ("B", 0, 350 * MS, 1), ("C", 0, 650 * MS, 1)]


def test_cache_events_are_the_engines_and_those_of_the_passes(bundle: Bundle) -> None:
    events = rows(bundle, "kv_events")
    assert [(e["kind"], e["pass_index"], e["request_id"], e["num_blocks"]) for e in events] == [
        ("clear", 0, None, None),
        ("store", 0, "A", 2),
        ("hit", 3, "B", 2),
        ("store", 3, "B", 1),
        ("hit", 4, "C", 2),
        ("store", 4, "C", 1),
        ("preempt", 5, "C", 4),  # 13 tokens of KV lie in four blocks, three of them full
        ("readmit", 6, "C", 2),
        ("evict", 6, None, 1),
        ("store", 6, "C", 1),
    ]
    hashes = [int(h, 16) for h in HASHES]
    assert events[2]["block_hashes"] == events[4]["block_hashes"] == events[7]["block_hashes"] == hashes[:2]
    assert events[6]["block_hashes"] == [hashes[0], hashes[1], hashes[3]]
    assert events[8]["block_hashes"] == [hashes[2]]
    assert events[8]["content_hashes"] == keys(PROMPT_B)[2:]
    assert events[3]["parent_hash"] == hashes[1]
    assert hashes[0] > 2**63
    assert [e["event_index"] for e in events] == list(range(10))


def test_phases_and_ledger(bundle: Bundle) -> None:
    spans = {p.name: (p.start_ns // MS, p.end_ns // MS) for p in bundle.phases}
    assert spans == {"warmup": (-1000, 0), "profile": (0, 1000), "grace": (1000, 1100), "drain": (1100, 1240)}
    ledger = bundle.ledger
    assert ledger is not None
    assert (ledger["warmup"]["attempted"], ledger["warmup"]["ok"]) == (1, 1)
    assert (ledger["profile"]["attempted"], ledger["profile"]["ok"], ledger["profile"]["canceled"]) == (2, 1, 1)
    assert (ledger["total"]["never_issued"], ledger["total"]["in_graph"]) == (1, 4)  # turn 2 of the root


def test_a_consistent_recording_qualifies(bundle: Bundle) -> None:
    found = verdicts(bundle)
    assert [check for check, word in found.items() if word == "unknown"] == ["files_intact"]  # the identity lists none
    assert "fail" not in found.values()


def test_identity_has_sources_and_no_trace_of_the_machine(bundle: Bundle) -> None:
    assert bundle.identity.value("source", "launch") == {
        "max_num_seqs": 2,
        "enforce_eager": True,
        "dtype": "float32",
    }
    assert bundle.identity.value("client", "lane_stagger_ms") == 250.0
    assert bundle.identity.value("telemetry", "fpm_version") == "fpm/1"
    assert bundle.identity.value("model", "name") is None
    text = json.dumps(bundle.manifest)
    for word in ("10.1.2.3", "4711", "4712", "/models", "Linux", "tcp:"):
        assert word not in text
    assert all(field.source for _, _, field in bundle.identity)


def test_the_trace_goes_into_the_store_in_compact_form(tmp_path: Path) -> None:
    path = Folder().write(tmp_path / "rec")
    import_recording(path, tmp_path / "store")
    (compact,) = (tmp_path / "store" / "traces").iterdir()
    assert agentic.load(compact) == agentic.load(path / "trace.jsonl")


def test_importing_twice_gives_the_same_run(tmp_path: Path) -> None:
    path = Folder().write(tmp_path / "rec")
    assert import_recording(path, tmp_path / "store") == import_recording(path, tmp_path / "store", title="Another")


def test_a_sweep_has_passes_only(tmp_path: Path) -> None:
    run_id = import_any(write_sweep(tmp_path / "probe"), tmp_path / "store")[0]
    bundle = open_bundle(tmp_path / "store" / run_id)
    assert (bundle.kind, bundle.tables) == ("sweep", ("passes",))
    passes = rows(bundle, "passes")
    assert [p["num_output_tokens"] for p in passes] == [None, None, 1, 1]  # a sweep records no prompt lengths
    assert verdicts(bundle)["shapes_reproduced"] == "pass"
    assert passes[0]["start_ns"] == 510 * MS  # nothing but its own clock


# -- input that is not as it should be -------------------------------------------------------------------------------


def refused(folder: Folder, tmp_path: Path) -> str:
    return refusal(folder.write(tmp_path / "rec"), tmp_path)


def refusal(path: Path, tmp_path: Path, **options: Any) -> str:
    with pytest.raises(GapscopeError) as error:
        import_any(path, tmp_path / "store", **options)[0]
    assert not [p for p in (tmp_path / "store").glob("*") if p.name != "traces"]
    return str(error.value)


def test_a_cut_off_row_is_refused_or_counted(tmp_path: Path) -> None:
    path = Folder().write(tmp_path / "rec")
    data = (path / "requests.jsonl").read_bytes()
    (path / "requests.jsonl").write_bytes(data[:-40])
    message = refusal(path, tmp_path)
    assert "requests.jsonl line 3" in message
    assert "--skip-bad-rows" in message
    bundle = open_bundle(tmp_path / "store" / import_any(path, tmp_path / "store", skip_bad_rows=True)[0])
    assert len(rows(bundle, "requests")) == 2
    assert verdicts(bundle)["rows_used"] == "fail"
    assert "requests.jsonl line 3" in detail(bundle, "rows_used")
    assert verdicts(bundle)["requests_known"] == "fail"  # the engine served a request that is now missing
    assert ": C" in detail(bundle, "requests_known")


def test_a_cut_off_gzip_stream_names_its_line(tmp_path: Path) -> None:
    path = Folder().write(tmp_path / "rec")
    data = (path / "fpm.jsonl.gz").read_bytes()
    (path / "fpm.jsonl.gz").write_bytes(data[: len(data) * 2 // 3])
    message = refusal(path, tmp_path)
    assert "fpm.jsonl.gz line" in message
    assert "gzip stream ends here" in message
    bundle = open_bundle(tmp_path / "store" / import_any(path, tmp_path / "store", skip_bad_rows=True)[0])
    assert 0 < len(rows(bundle, "passes")) < 8
    assert "gzip" in detail(bundle, "rows_used")


def test_something_else_than_gzip_contents(tmp_path: Path) -> None:
    path = Folder().write(tmp_path / "rec")
    (path / "fpm.jsonl.gz").write_bytes(b"\x1f\x8bnothing")
    assert "gzip stream is damaged" in refusal(path, tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("input_tokens", "9", 'input_tokens is "9", expected a whole number of at least 0'),
        ("input_tokens", True, "input_tokens is true, expected a whole number"),
        ("output_tokens", -1, "output_tokens is -1, expected a whole number of at least 0"),
        ("end_s", None, "end_s is null, expected a number"),
        ("status", "fine", 'status is "fine", expected one of ok, error, canceled'),
        ("chunks", [[1, 2]], "chunks is [[1,2]], expected a list"),
        ("output_ids", ["x"], 'output_ids is ["x"]'),
    ],
)
def test_a_value_of_the_wrong_type(tmp_path: Path, field: str, value: Any, expected: str) -> None:
    folder = Folder()
    folder.requests[1][field] = value
    message = refused(folder, tmp_path)
    assert "requests.jsonl line 2" in message
    assert expected in message


def test_a_missing_field_and_a_wrong_kind(tmp_path: Path) -> None:
    folder = Folder()
    del folder.passes[3]["kv_blocks_used"]
    assert "fpm.jsonl.gz line 4: the field kv_blocks_used is missing" in refused(folder, tmp_path)
    folder = Folder()
    folder.events[2]["type"] = "BlockLost"
    assert "kv_events.jsonl.gz line 3: type is" in refused(folder, tmp_path)
    folder = Folder()
    folder.events[2]["hashes"] = ["xyz"]
    assert "expected a list of items that are each 16 hex digits" in refused(folder, tmp_path)


def test_a_row_that_is_no_object(tmp_path: Path) -> None:
    path = Folder().write(tmp_path / "rec")
    with (path / "requests.jsonl").open("ab") as file:
        file.write(b"[1, 2]\n")
    assert "requests.jsonl line 4: expected a JSON object" in refusal(path, tmp_path)


def test_the_same_request_twice(tmp_path: Path) -> None:
    folder = Folder()
    folder.requests.append(dict(folder.requests[0]))
    assert "request_id 'A' occurs a second time" in refused(folder, tmp_path)
    bundle = imported(folder, tmp_path, skip_bad_rows=True)
    assert len(rows(bundle, "requests")) == 3
    assert verdicts(bundle)["rows_used"] == "fail"


@pytest.mark.parametrize("name", ["requests.jsonl", "fpm.jsonl.gz"])
def test_a_missing_file(tmp_path: Path, name: str) -> None:
    path = Folder().write(tmp_path / "rec")
    (path / name).unlink()
    message = refusal(path, tmp_path)
    assert name in message
    assert "is missing" in message


def test_listed_kv_events_must_be_there_and_unlisted_ones_need_not(tmp_path: Path) -> None:
    folder = Folder()
    path = folder.write(tmp_path / "rec")
    (path / "kv_events.jsonl.gz").unlink()
    bundle = open_bundle(tmp_path / "store" / import_any(path, tmp_path / "store")[0])
    assert verdicts(bundle)["kv_events_recorded"] == "unknown"
    assert "kv_events" not in bundle.tables
    folder.identity["files"] = {"kv_events.jsonl.gz": {"sha256": "0"}}
    folder.write(tmp_path / "rec")
    (path / "kv_events.jsonl.gz").unlink()
    with pytest.raises(GapscopeError, match=r"kv_events\.jsonl\.gz is missing"):
        import_any(path, tmp_path / "store")


def test_a_request_that_only_the_engine_knows(tmp_path: Path) -> None:
    folder = Folder()
    folder.passes[5]["arrivals"].append(["Z", 1.506, 3, 1])
    folder.passes[5]["reqs"].append(["Z", 0, 3, "n"])
    bundle = imported(folder, tmp_path)
    assert verdicts(bundle)["requests_known"] == "fail"
    assert "1 of 4" in detail(bundle, "requests_known")
    assert rows(bundle, "passes")[4]["members"][1]["request_id"] == "Z"
    assert verdicts(bundle)["pass_sums"] == "fail"


def test_a_prompt_that_was_not_the_one_sent(tmp_path: Path) -> None:
    folder = Folder()
    folder.requests[2]["prompt_sha256_16"] = "0" * 16
    bundle = imported(folder, tmp_path)
    assert verdicts(bundle)["prompts_verified"] == "fail"
    assert detail(bundle, "prompts_verified").startswith("1 of 3")
    assert rows(bundle, "requests")[2]["prompt_block_hashes"] is None


def test_stored_tokens_that_are_not_the_requests(tmp_path: Path) -> None:
    folder = Folder()
    folder.events[2]["token_ids"] = [9, 9, 9, 9]
    bundle = imported(folder, tmp_path)
    assert verdicts(bundle)["kv_content"] == "fail"
    assert verdicts(bundle)["kv_hits_stored"] == "pass"


def test_of_chats_nothing_is_known_about_blocks(tmp_path: Path) -> None:
    folder = Folder()
    folder.identity["workload"]["prompts"] = {"sent_as": "messages"}
    chats = imported(folder, tmp_path)
    unknown = {"prompts_verified", "kv_content", "kv_hits_stored"}
    assert {name: verdicts(chats)[name] for name in unknown} == dict.fromkeys(unknown, "unknown")
    assert "fail" not in verdicts(chats).values()


def test_hits_on_blocks_that_nobody_stored(tmp_path: Path) -> None:
    folder = Folder()
    del folder.events[1]
    bundle = imported(folder, tmp_path)
    assert verdicts(bundle)["kv_hits_stored"] == "fail"
    assert verdicts(bundle)["kv_events_complete"] == "fail"
    hits = [e for e in rows(bundle, "kv_events") if e["kind"] == "hit"]
    assert [h["block_hashes"] for h in hits] == [None, None]
    assert hits[0]["content_hashes"] == keys(PROMPT_A)


def test_a_changed_file_and_a_lost_pass_show(tmp_path: Path) -> None:
    folder = Folder()
    path = folder.write(tmp_path / "rec")
    digest = hashlib.sha256((path / "requests.jsonl").read_bytes()).hexdigest()
    folder.identity["files"] = {"requests.jsonl": {"sha256": digest}, "fpm.jsonl.gz": {"sha256": digest}}
    del folder.passes[4]
    bundle = imported(folder, tmp_path)
    assert verdicts(bundle)["files_intact"] == "fail"
    assert detail(bundle, "files_intact").startswith("1 of 2")
    assert "fpm.jsonl.gz" in detail(bundle, "files_intact")
    assert verdicts(bundle)["passes_unbroken"] == "fail"
    assert verdicts(bundle)["token_sums"] == "pass"  # of the request that is still complete
    assert verdicts(bundle)["requests_seen"] == "fail"  # the child's arrival was in that pass


def test_the_played_trace_is_needed(tmp_path: Path) -> None:
    path = Folder().write(tmp_path / "rec")
    trace = tmp_path / "elsewhere.jsonl"
    os.rename(path / "trace.jsonl", trace)
    assert "give it with --trace FILE" in refusal(path, tmp_path)
    assert "does not exist" in refusal(path, tmp_path, trace=tmp_path / "no.jsonl")
    other = tmp_path / "other.jsonl"
    other.write_bytes(trace.read_bytes() + b"\n")
    assert "give the trace that was played" in refusal(path, tmp_path, trace=other)
    assert import_any(path, tmp_path / "store", trace=trace)


def test_an_identity_without_what_the_import_needs(tmp_path: Path) -> None:
    folder = Folder()
    del folder.identity["scheduler"]["block_size"]
    assert "scheduler.block_size is None, expected a whole number of at least 1" in refused(folder, tmp_path)
    folder = Folder()
    folder.identity["phases"]["warmup_s"] = "long"
    assert "phases.warmup_s is 'long'" in refused(folder, tmp_path)
    folder = Folder()
    folder.identity["end"]["t_cancel_s"] = "late"
    assert "end.t_cancel_s" in refused(folder, tmp_path)


def test_formats_are_told_by_content(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "nothing", tmp_path)
    folder = tmp_path / "ample8"
    folder.mkdir()
    assert "holds no file" in refusal(folder, tmp_path)
    (folder / "notes.txt").write_text("nothing here")
    message = refusal(folder, tmp_path)
    assert "--formats" in message
    (folder / "identity.json").write_text('{"schema": "something/9"}')
    assert "something/9" in refusal(folder, tmp_path)
    (folder / "identity.json").write_text('{"schema"')
    assert "not valid JSON" in refusal(folder, tmp_path)


def test_a_sweep_with_a_bad_row(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "probe")
    with gzip.open(path / "fpm.jsonl.gz") as file:
        text = file.read()
    (path / "fpm.jsonl.gz").write_bytes(gzip.compress(text + b'{"kind": "iter", "it\n'))
    with pytest.raises(GapscopeError, match=r"fpm\.jsonl\.gz line 6: not a JSON object"):
        import_sweep(path, tmp_path / "store")
    bundle = open_bundle(tmp_path / "store" / import_sweep(path, tmp_path / "store", skip_bad_rows=True))
    assert verdicts(bundle)["rows_used"] == "fail"


def test_a_sweep_whose_shapes_say_otherwise(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "probe")
    shapes = [json.loads(line) for line in (path / "shapes.jsonl").read_text().splitlines()]
    shapes[1]["step_ms"]["mean"] = 36.0
    (path / "shapes.jsonl").write_bytes(lines(shapes))
    bundle = open_bundle(tmp_path / "store" / import_sweep(path, tmp_path / "store"))
    assert "shape 1" in detail(bundle, "shapes_reproduced")


def _another_hash(folder: Folder) -> None:
    folder.events[5]["hashes"] = ["f0000000000000cc"]  # C's block, stored a second time


def _one_hash_for_two(folder: Folder) -> None:
    folder.events[3]["hashes"] = folder.events[5]["hashes"] = [HASHES[2]]  # C's block under the hash of B's


def _another_parent(folder: Folder) -> None:
    folder.events[2]["parent"] = "f0000000000000ff"


def _removed_unknown(folder: Folder) -> None:
    folder.events[4]["hashes"] = ["f0000000000000ff"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_another_hash, "f0000000000000cc holds what f00000000000000c holds"),
        (_one_hash_for_two, "f00000000000000b is stored with two contents"),
        (_another_parent, "f0000000000000ff is named as a parent, but was never stored"),
        (_removed_unknown, "f0000000000000ff is removed, but was never stored"),
    ],
)
def test_hashes_that_are_no_names_of_contents(tmp_path: Path, change: Any, words: str) -> None:
    folder = Folder()
    change(folder)
    bundle = imported(folder, tmp_path)
    assert verdicts(bundle)["kv_hash_content"] == "fail"
    assert words in detail(bundle, "kv_hash_content")


def test_blocks_held_before_the_recording_have_any_hash(tmp_path: Path) -> None:
    folder = Folder()
    del folder.events[:2]  # neither the clear nor what A stored
    assert verdicts(imported(folder, tmp_path))["kv_hash_content"] == "pass"
