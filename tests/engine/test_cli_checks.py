"""What import and parity say of a run's own checks; the recording is that of ``recording_folder``."""

from __future__ import annotations

from pathlib import Path

import pytest
from altered_runs import SAMPLES
from recording_folder import HASHES, Folder

from engine.bundle import open_bundle
from engine.cli import main as cli


def imported(capsys: pytest.CaptureFixture[str], path: Path, *more: str) -> tuple[str, list[str]]:
    """The id that an import prints, and what it says on stderr."""
    assert cli.main(["import", str(path), "--store", str(path.parent / "store"), *more]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    return out.strip(), err.splitlines()


def test_import_counts_the_checks_and_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Folder().write(tmp_path / "rec")
    run_id, said = imported(capsys, path)
    count = len(open_bundle(tmp_path / "store" / run_id).qualification)
    # The folder lists no digests of its files.
    assert said == [f"{run_id}: {count - 1} of {count} checks passed, 1 unknown"]
    # Three requests of the client, eight calls of the scheduler and six KV events.
    assert imported(capsys, path, "--skip-bad-rows")[1][1:] == ["  pass rows_used: 17 of 17 rows were used"]


def test_import_names_failed_checks_and_skipped_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Folder().write(tmp_path / "rec")
    file = path / "requests.jsonl"
    file.write_bytes(file.read_bytes()[:-40])  # the third of the requests, C, is cut off
    run_id, said = imported(capsys, path, "--skip-bad-rows")
    failed = [check for check in open_bundle(tmp_path / "store" / run_id).qualification if check.verdict == "fail"]
    assert f", {len(failed)} failed" in said[0]
    assert [line.split(":")[0] for line in said[1:]] == [f"  fail {check.check}" for check in failed]
    assert said[1].startswith("  fail rows_used: 1 of 17 rows were left out: requests.jsonl line 3")
    assert any(line.startswith("  fail requests_known: ") and ": C" in line for line in said)


def test_parity_refuses_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["parity", "fpm_sweep", "--store", str(SAMPLES)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gapscope: Run fpm_sweep-")
    assert "has no requests (a sweep never has)" in err
    assert err.count("\n") == 1


def test_parity_names_failed_checks_and_the_reason_of_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Folder()
    folder.identity["scheduler"] |= {"max_num_seqs": 2}
    path = folder.write(tmp_path / "rec")
    file = path / "requests.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    run_id, said = imported(capsys, path, "--skip-bad-rows")
    code = cli.main(["parity", run_id, "--store", str(tmp_path / "store"), "--core", "plain"])
    out, err = capsys.readouterr()
    assert err.splitlines() == said
    assert "requests that the client's record does not have: 1;" in out
    assert code == 1
    # C was preempted after 13 tokens and came back with 14: without its row, all 14 look like its prompt.
    assert "only measured: C (5 tokens after 8)\n  only replayed: C (6 tokens after 8)" in out
    assert f"  measured: removed block {HASHES[2]} in pass 6 (event " in out


def test_parity_by_time_informs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Folder()
    folder.identity["scheduler"] |= {"max_num_seqs": 1}
    run_id, _said = imported(capsys, folder.write(tmp_path / "rec"))
    store = ["--store", str(tmp_path / "store")]
    assert cli.main(["parity", run_id, *store, "--by", "dispatch", "--show", "0"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("by dispatch ")
    assert "  way to the engine: " in out
    # One seat, and a recorded pass with both B and C: from the same state no such batch is formed.
    assert " scheduler: same arrivals and same state, another batch" in out
    assert "pass 3: scheduler:" not in out
    assert cli.main(["parity", run_id, *store, "--by", "loop"]) == 0
    assert capsys.readouterr().out.startswith("by loop ")
    assert cli.main(["parity", run_id, *store, "--by", "all", "--core", "plain"]) == 1  # by arrival it is not exact
    heads = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line.startswith(("plain", "by "))]
    assert [head[0] for head in heads] == ["plain", "by", "by"]
    assert [head[1] for head in heads[1:]] == ["dispatch", "loop"]
