"""An engine's passes and KV events come under a client's run, on one clock."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from bundle_rows import identity, table
from engine_streams import EPOCH_S, MS, PHASES, S, call, client_run, exchange, relative, stream_run, write_stream
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle import BundleWriter, open_bundle
from engine.cli.main import main
from engine.errors import GapscopeError
from engine.importers import import_any, plan_import
from engine.importers.attach.write import attach_streams
from engine.importers.attaching import attach
from engine.importers.contract import Options
from engine.importers.joined import is_engine_part
from engine.intake import open_intake

DATA = Path(__file__).resolve().parents[1] / "data"


def attached(run, path, tmp_path, clock="auto"):
    store = tmp_path / "out"
    return open_bundle(store / attach(run, [path], store, Options(), clock))


def checks(bundle):
    return {check.check: (check.verdict, check.detail) for check in bundle.qualification}


def by_id(bundle):
    return {row["request_id"]: row for row in bundle.table("requests").to_pylist()}


def test_requests_get_what_the_engine_recorded(tmp_path):
    requests, passes = exchange()
    run = client_run(tmp_path / "in", requests)
    made = attached(run, write_stream(tmp_path / "fpm.gz", passes), tmp_path)
    row = by_id(made)["r1"]
    assert {name: row[name] for name in ("received_ns", "first_admit_ns", "released_ns")} == {
        "received_ns": S + 2 * MS,
        "first_admit_ns": S + 2 * MS,
        "released_ns": S + 42 * MS,
    }
    assert (row["cached_tokens"], row["recomputed_tokens"], row["preemptions"]) == (8, 0, 0)
    assert row["first_visible_ns"] == S + 25 * MS  # the client's stay
    table_ = made.table("passes").to_pylist()
    assert [p["start_ns"] for p in table_[4:6]] == [S + 2 * MS, S + 12 * MS]
    assert table_[4]["members"] == [{"request_id": "r1", "computed_before": 8, "scheduled_tokens": 16}]
    assert {p["phase"] for p in table_} == {"profile"}
    assert [a["request_id"] for a in made.table("admissions").to_pylist()] == ["r0", "r1", "r2", "r3"]
    assert made.kind == "measured"
    assert made.lineage["attached_to"] == run.run_id
    assert list(made.lineage["attached_files"]) == ["fpm.gz"]
    assert made.identity.value("scheduler", "max_num_batched_tokens") == 512
    found = checks(made)
    for name in ("clocks_aligned", "requests_seen", "requests_known", "token_sums", "streams_cover"):
        assert found[name][0] == "pass", name


def test_alignment_says_method_and_residual(tmp_path):
    # Ways in of 2 ms and out of 3 ms: the middle of each request's bounds lies 0.5 ms above the true offset.
    requests, passes = exchange()
    run = client_run(tmp_path / "in", requests)
    made = attached(run, write_stream(tmp_path / "fpm.gz", passes), tmp_path)
    alignment = made.lineage["alignment"]
    assert alignment["method"] == "wall"
    assert alignment["offset_ns"] == -EPOCH_S * S
    assert (alignment["n"], alignment["violations"], alignment["joined"]) == (4, 0, 4)
    assert alignment["residual_ns"] == {"p50": 500_000, "p95": 500_000, "max": 500_000}
    assert "the requests leave -2.000 ms to +3.000 ms open" in str(made.identity.value("telemetry", "clock"))


def test_a_skewed_wall_clock_fails_and_ids_find_it(tmp_path):
    requests, passes = exchange(skew_ns=300 * MS)
    run, stream = client_run(tmp_path / "in", requests), write_stream(tmp_path / "fpm.gz", passes)
    verdict, detail = checks(attached(run, stream, tmp_path))["clocks_aligned"]
    assert verdict == "fail"
    assert "4 are violated, by 297.000 ms at most" in detail  # 300 ms less the way out
    made = attached(run, stream, tmp_path, "ids")
    assert checks(made)["clocks_aligned"][0] == "pass"
    assert made.lineage["alignment"]["offset_ns"] == -EPOCH_S * S - 300 * MS + 500_000


@settings(max_examples=10, deadline=None)
@given(
    start_s=st.integers(0, 10**6),
    ways=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 400)), min_size=1, max_size=5),
)
def test_ids_find_any_offset_within_what_the_requests_leave_open(start_s, ways):
    way_in, way_out = ([MS * way for way in side] for side in zip(*ways, strict=True))
    requests, passes = exchange(len(ways), way_in, way_out)
    with tempfile.TemporaryDirectory() as name:
        tmp_path = Path(name)
        run = client_run(tmp_path / "in", requests, epoch=False)
        made = attached(run, write_stream(tmp_path / "fpm.gz", relative(passes, start_s)), tmp_path)
        # The stream's own time 0 is its first pass; its true place is the first way in.
        error = made.lineage["alignment"]["offset_ns"] - way_in[0]
        assert -min(way_in) - 1000 <= error <= min(way_out) + 1000  # the stream is rounded to microseconds
        assert checks(made)["clocks_aligned"][0] == "pass"


def test_a_given_offset_places_the_first_pass(tmp_path):
    requests, passes = exchange()
    run = client_run(tmp_path / "in", requests)
    made = attached(run, write_stream(tmp_path / "fpm.gz", passes), tmp_path, "0.002")
    assert made.table("passes")["start_ns"][0].as_py() == 2 * MS
    assert checks(made)["clocks_aligned"][0] == "pass"
    off = attached(run, write_stream(tmp_path / "fpm.gz", passes), tmp_path, "5")
    assert checks(off)["clocks_aligned"][0] == "fail"
    for clock in ("soon", "nan", "1e30"):
        with pytest.raises(GapscopeError, match="expected auto, wall, ids or a number of seconds"):
            attached(run, tmp_path / "fpm.gz", tmp_path, clock)


def test_who_is_missing_is_counted(tmp_path):
    requests, passes = exchange()
    passes.append(call(16, 5 * S, [["chatcmpl-stranger", 0, 7, "n"]]))
    run = client_run(tmp_path / "in", [*requests, {**requests[0], "request_id": "unseen"}])
    found = checks(attached(run, write_stream(tmp_path / "fpm.gz", passes), tmp_path))
    assert found["requests_seen"] == (
        "fail",
        "4 of 5 successful requests are among those that the engine served: unseen",
    )
    assert found["requests_known"] == (
        "fail",
        "1 requests of the engine belong to no request of the client: chatcmpl-stranger",
    )


def test_tokens_that_do_not_add_up_are_named(tmp_path):
    requests, passes = exchange()
    requests[2]["output_tokens"] = 4
    requests[3]["cached_tokens"] = 0
    run = client_run(tmp_path / "in", requests)
    found = checks(attached(run, write_stream(tmp_path / "fpm.gz", passes), tmp_path))
    assert found["token_sums"][0] == "fail"
    assert found["token_sums"][1].endswith("for 3 of 4 requests: r2")
    assert found["cached_tokens_agree"][1].endswith("for 0 of 1 requests: r3")


def test_a_stream_that_begins_late_claims_nothing_of_what_it_missed(tmp_path):
    requests, passes = exchange()
    run = client_run(tmp_path / "in", requests)
    made = attached(run, write_stream(tmp_path / "fpm.gz", passes[5:]), tmp_path)  # from the second pass of r1
    rows = by_id(made)
    assert (rows["r1"]["cached_tokens"], rows["r2"]["cached_tokens"]) == (None, 8)
    assert (rows["r1"]["received_ns"], rows["r2"]["received_ns"]) == (None, 2 * S + 2 * MS)
    found = checks(made)
    assert found["streams_cover"][0] == "fail"
    assert "1 of 4 requests had ended before that, 0 were dispatched after it" in found["streams_cover"][1]
    assert found["token_sums"][1].endswith("for 2 of 2 requests")


def test_streams_of_another_time_are_refused(tmp_path):
    requests, passes = exchange(skew_ns=3600 * S)
    run, stream = client_run(tmp_path / "in", requests), write_stream(tmp_path / "fpm.gz", passes)
    with pytest.raises(GapscopeError, match=r"they lie 3,600\.0 to 3,603\.0 s from profile start.*--clock ids"):
        attached(run, stream, tmp_path)
    assert checks(attached(run, stream, tmp_path, "ids"))["clocks_aligned"][0] == "pass"


def test_nothing_that_tells_the_clocks_is_a_sentence(tmp_path):
    requests, passes = exchange()
    strangers = [{**row, "request_id": f"other{k}"} for k, row in enumerate(requests)]
    run = client_run(tmp_path / "in", strangers, epoch=False)
    stream = write_stream(tmp_path / "fpm.gz", passes)
    for clock, words in (
        ("auto", "Nothing tells how"),
        ("ids", "No request is known"),
        ("wall", "The run recorded no"),
    ):
        with pytest.raises(GapscopeError, match=f"{words}.*--clock OFFSET_S"):
            attached(run, stream, tmp_path, clock)


def test_only_a_clients_run_without_passes_takes_them(tmp_path):
    requests, passes = exchange()
    stream = write_stream(tmp_path / "fpm.gz", passes)
    made = attached(client_run(tmp_path / "in", requests), stream, tmp_path)
    with pytest.raises(GapscopeError, match="has passes already"):
        attached(made, stream, tmp_path)
    (sweep,) = import_any(stream, tmp_path / "sweep")
    with pytest.raises(GapscopeError, match="is of kind sweep: streams are attached to measured runs"):
        attached(open_bundle(tmp_path / "sweep" / sweep), stream, tmp_path)


def rank_passes(rank, starts):
    return [
        {
            "pass_index": k,
            "counter": 7 * k,
            "worker_id": "w0",
            "dp_rank": rank,
            "phase": "profile",
            "start_ns": start,
            "end_ns": start + MS,
            "duration_ns": MS,
            "num_prefill_requests": 0,
            "num_decode_requests": 1,
        }
        for k, start in enumerate(starts)
    ]


def together(run, streams, tmp_path, clock="auto"):
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    store = tmp_path / "out"
    return open_bundle(store / attach_streams(run, streams, store, scratch, Options(), clock))


def test_ranks_of_several_streams_keep_their_own_numbers(tmp_path):
    run = client_run(tmp_path / "in", exchange()[0])
    first = stream_run(tmp_path / "s", "rank0", passes=rank_passes(0, [0, S, 200 * S]))
    # This one's time 0 is half a second later.
    second = stream_run(tmp_path / "s", "rank1", EPOCH_S * S + S // 2, passes=rank_passes(1, [-S, 0, 2 * S]))
    made = together(run, [first, second], tmp_path).table("passes")
    assert made["start_ns"].to_pylist() == [-S // 2, 0, S // 2, S, 5 * S // 2, 200 * S]
    assert made["dp_rank"].to_pylist() == [1, 0, 1, 0, 1, 0]
    assert made["counter"].to_pylist() == [0, 0, 7, 7, 14, 14]
    assert made["pass_index"].to_pylist() == [3, 0, 4, 1, 5, 2]
    # By their start; what lies behind all phases belongs to the last.
    assert made["phase"].to_pylist() == ["warmup", *["profile"] * 5]


def test_passes_without_ids_leave_the_clock_unknown(tmp_path):
    run = client_run(tmp_path / "in", exchange()[0])
    found = checks(together(run, [stream_run(tmp_path / "s", passes=rank_passes(0, [0, S, 2 * S, 4 * S]))], tmp_path))
    assert found["clocks_aligned"] == (
        "unknown",
        "by recorded wall times; no request is known to both sides to tell",
    )
    assert {found[name][0] for name in ("requests_seen", "requests_known", "token_sums")} == {"unknown"}
    assert found["streams_cover"][0] == "pass"


def test_kv_events_alone(tmp_path):
    run = client_run(tmp_path / "in", exchange()[0])
    events = [
        {
            "event_index": k,
            "time_ns": k * S,
            "kind": "store",
            "num_blocks": 1,
            "block_hashes": [2**64 - 1 - k],
            "request_id": f"chatcmpl-r{k}" if k < 2 else None,
        }
        for k in range(4)
    ]
    made = together(run, [stream_run(tmp_path / "s", kv_events=events)], tmp_path)
    rows = made.table("kv_events").to_pylist()
    assert [row["block_hashes"] for row in rows] == [[2**64 - 1], [2**64 - 2], [2**64 - 3], [2**64 - 4]]
    assert [row["time_ns"] for row in rows] == [0, S, 2 * S, 3 * S]
    assert "passes" not in made.tables
    assert checks(made)["clocks_aligned"][0] == "unknown"
    # Passes can be laid under the result, events no more.
    again = together(made, [stream_run(tmp_path / "s", passes=rank_passes(0, [0]))], tmp_path)
    assert set(again.tables) == {"requests", "passes", "kv_events"}
    with pytest.raises(GapscopeError, match="has KV events already"):
        together(made, [stream_run(tmp_path / "s", kv_events=events)], tmp_path)


def test_clocks_that_cannot_be_told_from_each_other_are_refused(tmp_path):
    run = client_run(tmp_path / "in", exchange()[0])
    streams = [
        stream_run(tmp_path / "s", "a", passes=rank_passes(0, [0])),
        stream_run(tmp_path / "s", "b", None, passes=rank_passes(1, [0])),
    ]
    with pytest.raises(GapscopeError, match="attach files of one clock"):
        together(run, streams, tmp_path)


def test_what_both_sides_say_of_the_engine_is_compared(tmp_path):
    ours = identity()
    ours.set("scheduler", "max_num_batched_tokens", 2048, "command line")
    requests, passes = exchange()
    with BundleWriter(tmp_path / "in", "measured", "client", "A client", ours) as writer:
        writer.write_table("requests", table("requests", requests))
        run_id = writer.seal(phases=PHASES, profile_start_unix_ns=EPOCH_S * S)
    made = attached(open_bundle(tmp_path / "in" / run_id), write_stream(tmp_path / "fpm.gz", passes), tmp_path)
    assert made.identity.value("scheduler", "max_num_batched_tokens") == 2048
    assert checks(made)["identities_agree"] == ("fail", "scheduler.max_num_batched_tokens is 2048 and 512")


def test_requests_with_durations_only_are_joined_but_bound_nothing(tmp_path):
    requests, passes = exchange()
    for row in requests:
        for name in ("first_visible", "last_visible", "end"):
            row[f"{name}_after_ns"] = row.pop(f"{name}_ns") - row["dispatched_ns"]
        row["dispatched_ns"] = None
    run = client_run(tmp_path / "in", requests)
    made = attached(run, write_stream(tmp_path / "fpm.gz", passes), tmp_path)
    assert (made.lineage["alignment"]["n"], made.lineage["alignment"]["joined"]) == (0, 4)
    assert by_id(made)["r1"]["cached_tokens"] == 8
    assert checks(made)["clocks_aligned"][0] == "unknown"


# -- the stream alone -------------------------------------------------------------------------------------------


def test_a_stream_alone_is_a_sweep_with_what_the_engine_knew(tmp_path):
    stream = write_stream(tmp_path / "fpm.gz", exchange()[1])
    with open_intake(stream) as intake:
        (part,) = plan_import(intake).parts
        assert (part.format, part.kind, part.version) == ("scheduler passes", "sweep", "1")
    (run_id,) = import_any(stream, tmp_path / "store")
    made = open_bundle(tmp_path / "store" / run_id)
    assert made.manifest["profile_start_unix_ns"] == EPOCH_S * S + 2 * MS
    row = by_id(made)["chatcmpl-r0"]
    assert (row["received_ns"], row["released_ns"], row["input_tokens"], row["output_tokens"]) == (0, 40 * MS, 40, 3)
    assert made.table("passes")["num_output_tokens"].to_pylist()[:4] == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reqs": [["a", 0, -1, "n"]]}, "line 3: reqs is"),
        ({"t_start_epoch_s": None}, "line 3: t_start_epoch_s is null, expected a number"),
        ({"iter": 0}, "line 3: iter 0 occurs a second time"),
    ],
)
def test_bad_passes_are_named_or_left_out(change, words, tmp_path):
    passes = exchange()[1]
    passes[1] |= change
    stream = write_stream(tmp_path / "fpm.gz", passes)
    with pytest.raises(GapscopeError, match=words):
        import_any(stream, tmp_path / "store")
    (run_id,) = import_any(stream, tmp_path / "store", skip_bad_rows=True)
    made = open_bundle(tmp_path / "store" / run_id)
    assert made.rows("passes") == 15
    assert checks(made)["rows_used"][0] == "fail"


# -- AIPerf's files and the server's passes in one folder -------------------------------------------------------


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    """The folder of a real run: AIPerf's own files, and the passes of the vLLM server behind it."""
    folder = tmp_path_factory.mktemp("native") / "aiperf_native"
    shutil.copytree(DATA / "aiperf" / "native", folder)
    shutil.copy(DATA / "engine" / "fpm.jsonl.gz", folder)
    return folder


@pytest.fixture(scope="module")
def joined(native, tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    (run_id,) = import_any(native, store)
    return open_bundle(store / run_id)


@pytest.fixture(scope="module")
def rows():
    """The passes as they lie in the file."""
    with gzip.open(DATA / "engine" / "fpm.jsonl.gz", "rt", encoding="utf-8") as file:
        return [row for row in map(json.loads, file) if row["kind"] == "iter"]


def test_one_folder_is_one_run(native, joined):
    with open_intake(native) as intake:
        plan = plan_import(intake)
        (part,) = plan.parts
        assert {"fpm.jsonl.gz", "profile_export.jsonl.gz"} <= {use.file.name for use in part.uses}
        assert any("become part of the run" in note for part in plan.parts for note in part.notes)
    assert (joined.kind, joined.rows("requests"), joined.rows("passes")) == ("measured", 243, 3451)


def test_every_record_is_joined(joined, rows):
    served = {name for row in rows for name, *_ in row["reqs"]}
    ours = {row["request_id"] for row in joined.table("requests").to_pylist()}
    assert served == {f"chatcmpl-{name}" for name in ours}
    assert joined.lineage["alignment"]["joined"] == 243
    found = checks(joined)
    for name in ("requests_seen", "requests_known", "token_sums", "cached_tokens_agree", "clocks_aligned"):
        assert found[name][0] == "pass", found[name]


def test_computed_tokens_add_up(joined, rows):
    computed, first = Counter(), {}
    for row in rows:
        assert not row["preempted"]
        for name, before, tokens, _ in row["reqs"]:
            computed[name.removeprefix("chatcmpl-")] += tokens
            first.setdefault(name.removeprefix("chatcmpl-"), before)
    for row in joined.table("requests").to_pylist():
        name = row["request_id"]
        assert row["cached_tokens"] == first[name]
        assert computed[name] == row["input_tokens"] - first[name] + row["output_tokens"] - 1


def test_ttft_is_way_in_and_wait_and_prefill_and_way_out(joined, rows):
    start_ns = joined.manifest["profile_start_unix_ns"]
    prompts = {name: prompt for row in rows for name, _, prompt, _ in row["arrivals"]}
    first_end = {}
    for row in rows:
        for name, before, tokens, _ in row["reqs"]:
            if name not in first_end and before + tokens >= prompts[name]:
                first_end[name] = round(row["t_end_epoch_s"] * 1e6) * 1000 - start_ns
    outs = []
    for row in joined.table("requests").to_pylist():
        done = first_end[f"chatcmpl-{row['request_id']}"]
        way_in = row["received_ns"] - row["dispatched_ns"]
        wait, prefill = row["first_admit_ns"] - row["received_ns"], done - row["first_admit_ns"]
        way_out = row["first_visible_ns"] - done
        assert min(way_in, wait, prefill, way_out) >= 0
        assert way_in + wait + prefill + way_out == row["first_visible_ns"] - row["dispatched_ns"]
        outs.append(way_out)
    assert sorted(outs)[len(outs) // 2] < 20 * MS


def test_phases_are_those_of_the_client(joined):
    ends = [(phase.end_ns, phase.name) for phase in joined.phases]
    for row in joined.table("passes").to_pylist():
        assert row["phase"] == next((name for end, name in ends if row["start_ns"] < end), ends[-1][1])


def test_attaching_by_hand_gives_the_same_tables(native, joined, tmp_path):
    (tmp_path / "client").mkdir()
    for file in native.iterdir():
        if file.name != "fpm.jsonl.gz":
            (shutil.copytree if file.is_dir() else shutil.copy)(file, tmp_path / "client" / file.name)
    (run_id,) = import_any(tmp_path / "client", tmp_path / "in")
    made = attached(open_bundle(tmp_path / "in" / run_id), native / "fpm.jsonl.gz", tmp_path)
    assert made.table("requests").equals(joined.table("requests"))
    assert made.table("passes").equals(joined.table("passes"))
    by_ids = attached(open_bundle(tmp_path / "in" / run_id), native / "fpm.jsonl.gz", tmp_path, "ids")
    shift = by_ids.lineage["alignment"]["offset_ns"] - made.lineage["alignment"]["offset_ns"]
    assert abs(shift) < 5 * MS  # one machine, one clock
    assert by_ids.lineage["alignment"]["violations"] == 0


def test_several_clients_in_a_folder_are_not_joined(native, tmp_path):
    folder = tmp_path / "several"
    folder.mkdir()
    shutil.copy(native / "fpm.jsonl.gz", folder)
    shutil.copy(native / "profile_export.jsonl.gz", folder / "a.jsonl.gz")
    shutil.copy(native / "profile_export.jsonl.gz", folder / "b.jsonl.gz")
    with open_intake(folder) as intake:
        parts = plan_import(intake).parts
    assert len(parts) == 3
    (stream,) = [part for part in parts if part.format == "scheduler passes"]
    assert any("gapscope attach RUN FILE" in note for note in stream.notes)


def test_passes_of_another_day_leave_the_client_alone(native, tmp_path):
    folder = tmp_path / "both"
    shutil.copytree(native, folder)
    write_stream(folder / "fpm.jsonl.gz", exchange(skew_ns=24 * 3600 * S)[1])
    (run_id,) = import_any(folder, tmp_path / "store")
    made = open_bundle(tmp_path / "store" / run_id)
    assert (made.rows("requests"), made.rows("passes")) == (243, None)
    verdict, detail = checks(made)["streams_attached"]
    assert verdict == "fail"
    assert detail.startswith("fpm.jsonl.gz: By their times of day the streams are of another time: they lie 86,")


def test_command_line(tmp_path, capsys):
    requests, passes = exchange()
    run, stream = client_run(tmp_path / "in", requests), write_stream(tmp_path / "fpm.gz", passes)
    store = ["--store", str(tmp_path / "in")]
    assert main(["attach", "client", str(stream), "--dry-run", *store]) == 0
    assert "attaches fpm.gz: forward passes with their batches" in capsys.readouterr().out
    assert main(["attach", "client", str(stream), "--title", "Both", *store]) == 0
    said = capsys.readouterr()
    made = open_bundle(tmp_path / "in" / said.out.strip())
    assert (made.title, made.run_id != run.run_id) == ("Both", True)
    assert "pass clocks_aligned: by recorded wall times" in said.err
    export = tmp_path / "export"
    assert main(["export", made.run_id, "--out", str(export), *store]) == 0
    assert main(["attach", made.run_id, str(export), *store]) != 0
    assert "holds no passes and no KV events of an engine" in capsys.readouterr().err


def test_a_client_joined_with_kv_events_is_a_clients_run(tmp_path: Path) -> None:
    """What is to be attached to a run is told by whose files it is, not by the words for its format."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "bench.json").write_bytes((DATA / "vllm_bench" / "detailed.json").read_bytes())
    (folder / "events.jsonl").write_text('{"event_id": 1, "dp_rank": 0, "data": "cleared"}\n')
    with open_intake(folder) as intake:
        apart = plan_import(intake, join=False).parts
        (joined,) = plan_import(intake).parts
    assert sorted(is_engine_part(part) for part in apart) == [False, True]
    assert not is_engine_part(joined)
