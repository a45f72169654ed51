"""Compiled traces: the same trace and the same run with and without them, and nothing trusted that was altered."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

import engine.traces
from engine.bundle import open_bundle
from engine.cli.main import main
from engine.errors import GapscopeError
from engine.replay import replay
from engine.traces import keep_trace, load_trace, stored_trace
from engine.traces.cache import TraceCache, size_of
from engine.traces.prompt_ids import PromptIds
from engine.traces.tree import Trace
from tests.engine.public_files import PUBLIC

ROOT = Path(__file__).resolve().parents[2]
KNOBS = {"timing": "fixed", "lanes": 2, "block_size": 16, "kv_blocks": 64}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_bytes(b"\n".join(orjson.dumps(row) for row in rows))
    return path


def mooncake(path: Path, sessions: int = 3, turns: int = 4) -> Path:
    rows = []
    for session in range(sessions):
        for turn in range(turns):
            ids = [0, *(1 + session * turns + n for n in range(turn + 1))]
            rows.append(
                {"session_id": f"s{session}", "input_length": 16 * len(ids), "output_length": 5, "hash_ids": ids}
                | {"delay" if turn else "timestamp": 7}
            )
    return write(path, *rows)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files as they are parsed."""
    seen: list[str] = []
    parse = engine.traces._parsed

    def watched(path: Path, *arguments: Any) -> Trace:
        seen.append(path.name)
        return parse(path, *arguments)

    monkeypatch.setattr(engine.traces, "_parsed", watched)
    return seen


def test_a_trace_is_parsed_once(tmp_path: Path, parsed: list[str]) -> None:
    file, cache = mooncake(tmp_path / "w.jsonl"), TraceCache(tmp_path)
    first = load_trace(file, cache=cache)
    again = load_trace(file, cache=cache)
    assert parsed == ["w.jsonl"]
    assert again == first == load_trace(file)
    talk = again.plays[0].conversations[0]
    assert len({id(turn.hash_ids.held) for turn in talk.turns if isinstance(turn.hash_ids, PromptIds)}) == 1
    files, size = size_of(tmp_path)
    assert files == 1
    assert size == sum(path.stat().st_size for path in (tmp_path / "compiled").iterdir())


def test_the_same_bytes_under_another_name_have_that_name(tmp_path: Path, parsed: list[str]) -> None:
    cache = TraceCache(tmp_path)
    trace = load_trace(mooncake(tmp_path / "w.jsonl"), cache=cache)
    assert load_trace(mooncake(tmp_path / "other.jsonl"), cache=cache).name == "other"
    keep_trace(tmp_path / "w.jsonl", trace, [tmp_path])
    assert stored_trace([tmp_path], trace.digest, cache=cache) == trace
    assert parsed == ["w.jsonl"]


def test_a_changed_source_is_parsed_anew(tmp_path: Path, parsed: list[str]) -> None:
    cache = TraceCache(tmp_path)
    load_trace(mooncake(tmp_path / "w.jsonl"), cache=cache)
    changed = load_trace(mooncake(tmp_path / "w.jsonl", turns=5), cache=cache)
    assert len(changed.plays[0].conversations[0].turns) == 5
    assert len(parsed) == 2


def test_other_code_parses_anew(tmp_path: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cache = TraceCache(tmp_path)
    load_trace(mooncake(tmp_path / "w.jsonl"), cache=cache)
    monkeypatch.setattr("engine.traces.cache._version", lambda: "another")
    load_trace(tmp_path / "w.jsonl", cache=cache)
    assert len(parsed) == 2


def test_an_altered_entry_is_not_believed(tmp_path: Path, parsed: list[str]) -> None:
    cache = TraceCache(tmp_path)
    trace = load_trace(mooncake(tmp_path / "w.jsonl"), cache=cache)
    (entry,) = (tmp_path / "compiled").iterdir()
    whole = entry.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 60)):
        entry.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        assert load_trace(tmp_path / "w.jsonl", cache=cache) == trace
    for broken in (b"", b"PAR1", whole[: len(whole) // 2]):
        entry.write_bytes(broken)
        assert load_trace(tmp_path / "w.jsonl", cache=cache) == trace
    assert len(parsed) > 4
    before = len(parsed)  # the last reading put it back
    load_trace(tmp_path / "w.jsonl", cache=cache)
    assert len(parsed) == before
    other = tmp_path / "other"
    other.mkdir()
    load_trace(mooncake(other / "x.jsonl", turns=2), cache=TraceCache(other))
    (foreign,) = (other / "compiled").iterdir()
    entry.write_bytes(foreign.read_bytes())  # sound, but of another trace
    assert load_trace(tmp_path / "w.jsonl", cache=cache) == trace


def test_the_least_recently_used_goes(tmp_path: Path, parsed: list[str]) -> None:
    files = [mooncake(tmp_path / f"{turns}.jsonl", turns=turns) for turns in (2, 3, 4)]
    load_trace(files[0], cache=TraceCache(tmp_path))
    (_, size), room = size_of(tmp_path), 2.5
    cache = TraceCache(tmp_path, int(room * size))
    load_trace(files[1], cache=cache)
    for age, path in enumerate(sorted((tmp_path / "compiled").iterdir(), key=lambda p: p.stat().st_mtime_ns)):
        os.utime(path, ns=(age + 1, age + 1))
    load_trace(files[0], cache=cache)  # used again, so the other is older
    load_trace(files[2], cache=cache)
    assert size_of(tmp_path)[0] == 2
    parsed.clear()
    for file in (files[0], files[2], files[1]):
        load_trace(file, cache=cache)
    assert parsed == ["3.jsonl"]
    small = tmp_path / "small"
    small.mkdir()
    load_trace(files[0], cache=TraceCache(small, 10))
    assert size_of(small) == (0, 0)  # larger than all the room


def test_no_store_no_cache_and_no_complaint(tmp_path: Path) -> None:
    file = mooncake(tmp_path / "w.jsonl")
    trace = load_trace(file, cache=TraceCache(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    (tmp_path / "compiled").write_text("a file")
    assert load_trace(file, cache=TraceCache(tmp_path)) == trace


def test_a_run_is_the_same_with_and_without(tmp_path: Path, parsed: list[str]) -> None:
    file = mooncake(tmp_path / "w.jsonl")
    runs = []
    for name, cache in (("plain", None), ("first", TraceCache(tmp_path)), ("found", TraceCache(tmp_path))):
        store = tmp_path / name
        run_id = replay(load_trace(file, cache=cache), KNOBS, None, store=store)
        bundle = open_bundle(store / run_id)
        of_the_machine = ("created_unix_ns", "host", "seal")
        manifest = {key: value for key, value in bundle.manifest.items() if key not in of_the_machine}
        tables = {path.name: path.read_bytes() for path in bundle.path.glob("*.parquet")}
        runs.append((run_id, manifest, tables))
    assert len(parsed) == 2
    assert runs[0] == runs[1] == runs[2]


def _load_often(file: Path, store: Path, most_bytes: int) -> list[Trace]:
    return [load_trace(file, cache=TraceCache(store, most_bytes)) for _ in range(12)]


# A process of its own, as a pool of them begins by running the parent's main module, whatever that is by now.
_LOADING = """
import pickle, sys
from pathlib import Path
from tests.engine.test_traces_cache import _load_often
sys.stdout.buffer.write(pickle.dumps(_load_often(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))))
"""


def _in_a_process(file: Path, store: Path, most_bytes: int) -> list[Trace]:
    command = [sys.executable, "-c", _LOADING, str(file), str(store), str(most_bytes)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return pickle.loads(done.stdout)


@pytest.mark.parametrize("load", [_in_a_process, _load_often], ids=["processes", "threads"])
def test_many_at_once(tmp_path: Path, load: Callable[[Path, Path, int], list[Trace]]) -> None:
    files = [mooncake(tmp_path / f"{turns}.jsonl", turns=turns) for turns in (3, 4)]
    expected, store = [load_trace(file) for file in files], tmp_path / "store"
    store.mkdir()
    load_trace(files[0], cache=TraceCache(store))
    room = int(1.5 * size_of(store)[1])  # one of both at a time
    with ThreadPoolExecutor(2) as pool:
        for found, trace in zip(pool.map(load, files, [store] * 2, [room] * 2), expected, strict=True):
            assert all(other == trace for other in found)
    assert not list((store / "compiled").glob(".*"))
    assert size_of(store)[1] <= room


def weka(path: Path) -> Path:
    """A subagent at 10 s whose request is at 12 s: 12 s of the session, or 22 s if it counts from the subagent."""
    inner = [{"t": 12.0, "type": "s", "in": 64, "out": 4, "hash_ids": [7]}]
    rows = [
        {"t": 0.0, "type": "s", "in": 64, "out": 4, "hash_ids": [1]},
        {"t": 10.0, "type": "subagent", "agent_id": "a", "requests": inner, "status": "completed"},
        {"t": 40.0, "type": "s", "in": 128, "out": 4, "hash_ids": [1, 2]},
    ]
    return write(path, {"id": "s0", "block_size": 64, "hash_id_scope": "local", "requests": rows})


@pytest.mark.parametrize(("asked", "start_s"), [("auto", 12), ("absolute", 12), ("relative", 22)])
def test_nested_timestamps_as_asked(tmp_path: Path, parsed: list[str], asked: str, start_s: int) -> None:
    file, cache = weka(tmp_path / "s.json"), TraceCache(tmp_path)
    for basis in ("auto", "absolute", "relative"):
        load_trace(file, {"nested_timestamps": basis}, cache)
    trace = load_trace(file, {"nested_timestamps": asked}, cache)
    assert len(parsed) == 3
    child = next(c for c in trace.plays[0].conversations if c.parent)
    assert child.turns[0].start_ns == start_s * 10**9
    assert trace.read_as == ({} if asked == "auto" else {"nested_timestamps": asked})


def test_choices_that_a_trace_does_not_leave(tmp_path: Path) -> None:
    with pytest.raises(GapscopeError, match=r"nested_timestamps=soon: expected one of auto, absolute, relative"):
        load_trace(weka(tmp_path / "s.json"), {"nested_timestamps": "soon"})
    with pytest.raises(GapscopeError, match=r"w\.jsonl: nested_timestamps says how Weka sessions .* Mooncake JSONL"):
        load_trace(mooncake(tmp_path / "w.jsonl"), {"nested_timestamps": "relative"})


def test_commands_read_nested_timestamps_as_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, store = str(weka(tmp_path / "s.json")), tmp_path / "store"
    knobs = ["--timing", "fixed", "--set", "lanes=1", "--set", "block_size=64"]
    assert main(["trace", "inspect", file, "--nested-timestamps", "relative"]) == 0
    assert "relative to the subagent (as asked)" in capsys.readouterr().out
    assert main(["replay", "--store", str(store), "--trace", file, "--nested-timestamps", "relative", *knobs]) == 0
    first = capsys.readouterr().out.strip()
    assert open_bundle(store / first).identity.value("trace", "nested_timestamps") == "relative"
    assert main(["replay", "--store", str(store), "--like", first, "--set", "lanes=2"]) == 0
    again = open_bundle(store / capsys.readouterr().out.strip())
    assert again.identity.value("trace", "nested_timestamps") == "relative"
    assert size_of(store)[0] == 1  # made for the second, as there was no store before the first
    assert main(["replay", "--store", str(store), "--trace", file, *knobs]) == 0
    plain = open_bundle(store / capsys.readouterr().out.strip())
    assert plain.identity.value("trace", "nested_timestamps") is None
    starts = []  # of the subagent's only request, which waits for the first of its parent
    for run in (again, plain):
        table = run.table("requests", ["dispatched_ns"])
        assert table is not None
        starts.append(int(table["dispatched_ns"].to_numpy()[1]))
    assert starts[0] - starts[1] == 10 * 10**9
    assert main(["replay", "--store", str(store), "--like", first, "--nested-timestamps", "auto"]) == 2
    assert "says how the file of --trace is read" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["weka", "mooncake/conversation_trace_head2000.jsonl"])
def test_public_traces_are_found_equal(name: str, tmp_path: Path, parsed: list[str]) -> None:
    path, cache = PUBLIC / name, TraceCache(tmp_path)
    if not path.exists():
        pytest.skip("the public traces are not here")
    trace = load_trace(path, cache=cache)
    assert load_trace(path, cache=cache) == trace
    assert parsed == [path.name]
