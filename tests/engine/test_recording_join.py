"""A server's rows laid under a client's: the run is the one that the two halves were taken from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recording_folder import Folder

from engine.bundle import open_bundle
from engine.errors import GapscopeError
from engine.importers import import_recording
from engine.recording.alive import check_rows
from engine.recording.clocks import boot_id
from engine.recording.folder import write_client_half
from engine.recording.join import join

T0_NS = 5_000_000_000_000  # on the client's monotonic clock
AHEAD_NS = 77_000_000_000  # by which the server's monotonic clock is ahead of it
WALL_NS = 1_700_000_000_000_000_000  # the server's time of day when the load began

META = {
    "kind": "meta",
    "schema": "gapscope-passes/1",
    "exact_batches": True,
    "notes": [],
    "dp_rank": 0,
    "first_iter": 0,
    "part": 0,
    "vllm_version": "9.9",
    "mono_ns": T0_NS + AHEAD_NS,
    "wall_ns": WALL_NS,
    "num_kv_blocks": 10,
    "num_usable_kv_blocks": 9,
    "block_size": 4,
    "max_num_batched_tokens": 8,
    "settings": {"model_config": {"dtype": "torch.float32"}},
}


def ns(seconds: float) -> int:
    return round(seconds * 1e9) + T0_NS + AHEAD_NS


def engine_id(name: str) -> str:
    return f"cmpl-{name}-0"


def raw_pass(row: dict[str, Any]) -> dict[str, Any]:
    """A pass of a recording as the scheduler's recorder writes it."""
    times = ("t_start", "t_sched_end", "t_output", "t_end")
    made = {name: value for name, value in row.items() if name not in {f"{t}_s" for t in times}}
    made |= {f"{name}_ns": ns(row[f"{name}_s"]) for name in times}
    made |= {"iter": row["engine_iter"] - 40, "dp_rank": 0, "kv_event_seq": row["iter"], "own_us": 50 + row["iter"]}
    made["reqs"] = [[engine_id(name), *rest] for name, *rest in row["reqs"]]
    made["preempted"] = [engine_id(name) for name in row["preempted"]]
    made["arrivals"] = [[engine_id(name), ns(at), *rest] for name, at, *rest in row["arrivals"]]
    for field in ("finished", "finished_before"):
        made[field] = [[engine_id(name), *rest, ns(at)] for name, *rest, at in row[field]]
    return made


def raw_events(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """KV events as their recorder writes them, a batch for each number."""
    batches: dict[int, dict[str, Any]] = {}
    for row in rows:
        event: dict[str, Any] = {"type": row["type"]}
        if "hashes" in row:
            event["block_hashes"] = row["hashes"]
        if row["type"] == "BlockStored":
            event |= {"parent_block_hash": row["parent"], "token_ids": row["token_ids"], "block_size": 4}
            event["session_id"] = row["request_id"]
        batch = {"seq": row["seq"], "dp_rank": 0, "ts": WALL_NS / 1e9 + row["t_s"], "events": []}
        batches.setdefault(row["seq"], batch)["events"].append(event)
    return list(batches.values())


class Halves:
    """The made up recording as client and server each know it, in ``folder`` and ``rows``."""

    def __init__(self, path: Path, boot: str | None = None) -> None:
        self.whole = Folder()
        self.folder, self.rows = path / "client", path / "rows"
        self.rows.mkdir(parents=True)
        self.meta = {**META, "boot_id": boot or "another"}
        self.passes = [raw_pass(row) for row in self.whole.passes if row["kind"] != "meta"]
        self.events = raw_events(self.whole.events)
        self.original = self.whole.write(path / "whole")
        self.trace = self.original / "trace.jsonl"

    def write(self, started_ns: int = T0_NS) -> None:
        identity = self.whole.identity
        clock = {
            "t0_mono_ns": started_ns,
            "boot_id": self.meta["boot_id"] if self.meta["boot_id"] == boot_id() else "x",
        }
        write_client_half(self.folder, {**identity, "clock": clock}, self.whole.requests)
        (self.folder / "kv_raw-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.events))
        lines = [self.meta, *self.passes]
        (self.rows / "passes-dp0-1-0000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))

    def join(self, store: Path) -> dict[str, Any]:
        bundle = open_bundle(store / join(self.folder, self.rows, store, self.trace))
        return {"bundle": bundle, "checks": {c.check: (c.verdict, c.detail) for c in bundle.qualification}}


def test_both_halves_give_the_run_that_they_were_taken_from(tmp_path: Path) -> None:
    halves = Halves(tmp_path)
    halves.write()
    joined = halves.join(tmp_path / "store")
    whole = open_bundle(tmp_path / "store" / import_recording(halves.original, tmp_path / "store"))
    for name in ("requests", "chunks", "admissions"):
        mine, theirs = (b.table(name).to_pylist() for b in (joined["bundle"], whole))
        assert _near(mine, theirs), name
    passes = [b.table("passes").to_pylist() for b in (joined["bundle"], whole)]
    assert _near(*passes)
    columns = ["kind", "pass_index", "request_id", "block_hashes", "content_hashes"]
    events = [b.table("kv_events", columns).to_pylist() for b in (joined["bundle"], whole)]
    assert events[0] == events[1]
    assert joined["checks"]["rows_complete"] == ("pass", "the server's recorders kept every row")
    identity = joined["bundle"].identity
    assert identity.value("capacity", "usable_kv_blocks") == 9
    assert identity.value("model", "weights_dtype") == "float32"
    # Passes 0 to 4 and 6 have members, and the recorder took 50 us and their number of each.
    cost = {"median": 52.5, "p99": 55.9, "mean": 52.7, "passes": 6}
    assert identity.value("telemetry", "recorder_own_us") == cost
    assert whole.identity.get("telemetry", "recorder_own_us") is None


def _near(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> bool:
    """Equal but for times, which two clocks of unknown offset leave to 23 ms here."""
    assert [row.keys() for row in left] == [row.keys() for row in right]
    for one, other in zip(left, right, strict=True):
        for name, value in one.items():
            if name.endswith("_ns") and value is not None:
                assert abs(value - other[name]) <= 23_000_000, name
            else:
                assert value == other[name], name
    return True


def test_the_offset_lies_between_what_requests_allow(tmp_path: Path) -> None:
    halves = Halves(tmp_path)
    halves.write()
    run = tmp_path / "store" / join(halves.folder, halves.rows, tmp_path / "store", halves.trace)
    clock = json.loads((halves.folder / "identity.json").read_text())["clock"]
    # Sent 5 ms before each arrived; seen 51 ms after each was let go, of those that came to their end.
    assert clock["server_offset_s"] == pytest.approx(-AHEAD_NS / 1e9 + (-0.005 + 0.051) / 2, abs=1e-6)
    assert clock["server_offset_uncertainty_s"] == pytest.approx((0.051 + 0.005) / 2, abs=1e-6)
    said = open_bundle(run).identity.value("telemetry", "clock")
    assert "moved by -76.977000 s (± 28.000 ms: between what was sent before it arrived" in said


def test_on_one_machine_the_clock_is_the_same(tmp_path: Path) -> None:
    here = boot_id()
    if here is None:
        pytest.skip("this system does not tell its boots apart")
    halves = Halves(tmp_path, here)
    halves.write(T0_NS + AHEAD_NS)
    joined = halves.join(tmp_path / "store")
    whole = open_bundle(tmp_path / "store" / import_recording(halves.original, tmp_path / "store"))
    columns = ["pass_index", "start_ns", "end_ns", "duration_ns", "schedule_ns"]
    assert joined["bundle"].table("passes", columns).equals(whole.table("passes", columns))
    assert joined["bundle"].table("kv_events", ["time_ns"]).equals(whole.table("kv_events", ["time_ns"]))


def test_what_was_lost_is_a_failed_check(tmp_path: Path) -> None:
    halves = Halves(tmp_path)
    halves.passes.insert(3, {"kind": "lost", "rows": 2, "first_iter": 3, "last_iter": 4, "why": "disk full"})
    halves.events.insert(1, {"kind": "gap", "expected": 1, "got": 3})
    halves.write()
    verdict, detail = halves.join(tmp_path / "store")["checks"]["rows_complete"]
    assert verdict == "fail"
    assert "2 passes were not written (numbers 3 to 4): disk full" in detail
    assert "KV events: batches 1 to 2 are missing" in detail


def test_other_clients_requests_keep_the_engines_ids(tmp_path: Path) -> None:
    halves = Halves(tmp_path)
    halves.passes[1]["reqs"].append(["cmpl-foreign-0", 0, 1, "n"])
    halves.write()
    checks = halves.join(tmp_path / "store")["checks"]
    assert checks["requests_known"][0] == "fail"
    assert "cmpl-foreign-0" in checks["requests_known"][1]


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (
            lambda h: h.meta.update(exact_batches=False, notes=["It schedules ahead."]),
            "cannot tell the batches of rank 0",
        ),
        (lambda h: h.passes.clear(), "none of the requests that were sent"),
        (lambda h: h.whole.requests.clear(), "none of the requests that were sent"),
        (lambda h: h.whole.requests[0].update(dispatch_s=0.9, end_s=0.901), "drift apart by"),
    ],
)
def test_halves_that_do_not_belong_together_are_refused(tmp_path: Path, break_it: Any, words: str) -> None:
    halves = Halves(tmp_path)
    break_it(halves)
    halves.write()
    with pytest.raises(GapscopeError, match=words):
        halves.join(tmp_path / "store")
    assert not list((tmp_path / "store").glob("*/run.json"))


def test_rows_are_looked_at_before_a_load(tmp_path: Path) -> None:
    with pytest.raises(GapscopeError, match="no rows of the recording scheduler"):
        check_rows(tmp_path)
    halves = Halves(tmp_path)
    halves.write()
    check_rows(halves.rows)
    halves.passes.append({"kind": "end", "rows": 8, "lost": 0})
    halves.write()
    with pytest.raises(GapscopeError, match="were closed by their server"):
        check_rows(halves.rows)


def test_of_two_servers_in_a_folder_the_one_that_was_asked(tmp_path: Path) -> None:
    halves = Halves(tmp_path)
    halves.write()
    other = [json.loads(json.dumps(row).replace("cmpl-", "cmpl-other")) for row in halves.passes]
    meta = {**halves.meta, "wall_ns": WALL_NS + 1}  # the newer one
    (halves.rows / "passes-dp0-2-0000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [meta, *other]))
    assert halves.join(tmp_path / "store")["checks"]["requests_known"][0] == "pass"


def test_an_interrupted_join_leaves_the_clients_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    halves = Halves(tmp_path)
    halves.write()
    before = {path.name: path.read_bytes() for path in halves.folder.iterdir()}

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("engine.recording.folder._write_identity", interrupted)
        with pytest.raises(KeyboardInterrupt):
            halves.join(tmp_path / "store")
    assert {path.name: path.read_bytes() for path in halves.folder.iterdir()} == before
    assert not list((tmp_path / "store").glob("*/run.json"))
    assert halves.join(tmp_path / "store")["checks"]["rows_complete"][0] == "pass"


def test_a_folder_without_a_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GapscopeError, match="is missing"):
        join(tmp_path, tmp_path, tmp_path)
    (tmp_path / "identity.json").write_text('{"schema": "other"}')
    with pytest.raises(GapscopeError, match="holds no recording"):
        join(tmp_path, tmp_path, tmp_path)


def test_rows_that_end_before_the_load_fail(tmp_path: Path) -> None:
    halves = Halves(tmp_path)
    del halves.passes[4:]
    halves.passes[3]["finished"] = []
    halves.write()
    verdict, detail = halves.join(tmp_path / "store")["checks"]["rows_complete"]
    assert verdict == "fail"
    assert "rank 0: the rows end" in detail
    assert "1 requests are never let go (B)" in detail


def test_cached_tokens_that_nobody_tells_are_unknown(tmp_path: Path) -> None:
    halves = Halves(tmp_path)
    for row in halves.whole.requests:
        row["cached_tokens"] = None
    halves.write()
    verdict, detail = halves.join(tmp_path / "store")["checks"]["cached_tokens_agree"]
    assert verdict == "unknown"
    assert "--enable-prompt-tokens-details" in detail


def test_an_absent_trace_is_asked_for_before_anything_is_laid(tmp_path: Path) -> None:
    halves = Halves(tmp_path)
    halves.write()
    before = {path.name: path.read_bytes() for path in halves.folder.iterdir()}
    with pytest.raises(GapscopeError, match="give it with --trace FILE"):
        join(halves.folder, halves.rows, tmp_path / "store")
    assert {path.name: path.read_bytes() for path in halves.folder.iterdir()} == before
    assert halves.join(tmp_path / "store")["checks"]["rows_complete"][0] == "pass"
