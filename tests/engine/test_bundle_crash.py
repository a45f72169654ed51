"""Killed writers, full disks, read-only stores and writers that meet: the whole run or nothing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from bundle_rows import identity, passes, write

from engine.bundle import BundleWriter, clean_stale, list_bundles, open_bundle, staging, writer
from engine.errors import GapscopeError

PRELUDE = """
import os, sys, signal
sys.path.insert(0, {tests!r})
from pathlib import Path
from bundle_rows import identity, passes, write
from engine.bundle import BundleWriter, files, staging, writer
store = Path({store!r})
"""


def child(store: Path, code: str, **options: Any) -> subprocess.Popen:
    text = PRELUDE.format(tests=str(Path(__file__).parent), store=str(store)) + code
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", text], text=True, **{**pipes, **options})


# Each stops the writer dead at one moment of its life.
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
MOMENTS = {
    "folder made, not locked yet": "staging._take = lambda lock: {kill}",
    "in the middle of a table": (
        "seen = files.HashingFile.write\n"
        "def once(self, data):\n"
        "    seen(self, data)\n"
        "    if self.size > 2000:\n"
        "        self.flush(); {kill}\n"
        "    return len(data)\n"
        "files.HashingFile.write = once"
    ),
    "tables written, no manifest": "writer.write_durably = lambda path, data: {kill}",
    "half a manifest": "writer.write_durably = lambda path, data: (path.write_bytes(data[:99]), {kill})",
    "all written, not published": "os.rename = lambda a, b: {kill}",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_writer_leaves_nothing_that_is_a_run(tmp_path: Path, moment: str) -> None:
    process = child(tmp_path, MOMENTS[moment].format(kill=KILL) + "\nwrite(store, count=200)")
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert list_bundles(tmp_path) == []
    (stale,) = tmp_path.iterdir()
    assert stale.name.startswith(staging.PREFIX)
    run_id = write(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / run_id]  # the next writer swept up


def test_a_writer_killed_after_publishing_leaves_the_whole_run(tmp_path: Path) -> None:
    process = child(tmp_path, f"staging.fsync_folder = lambda path: {KILL}\nwrite(store)")
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    (run,) = list_bundles(tmp_path)
    assert open_bundle(run).verify(content=True) == []
    assert [run] == list(tmp_path.iterdir())


def test_a_living_writer_is_left_alone_and_a_dead_one_is_swept(tmp_path: Path) -> None:
    code = """
with BundleWriter(store, "sweep", "slow", "Slow", identity()) as w:
    w.write_table("passes", passes(5))
    print("ready", flush=True)
    sys.stdin.read(1)
    print(w.seal(), flush=True)
"""
    living, dying = child(tmp_path, code), child(tmp_path, code)
    assert living.stdout is not None
    assert dying.stdout is not None
    assert (living.stdout.readline(), dying.stdout.readline()) == ("ready\n", "ready\n")
    assert clean_stale(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 2
    dying.kill()
    dying.communicate()
    assert [path.name.split("-")[1] for path in clean_stale(tmp_path)] == [str(dying.pid)]
    run_id = living.communicate("x")[0].strip()
    assert open_bundle(tmp_path / run_id).verify() == []
    assert clean_stale(tmp_path) == []


def test_a_cleaner_between_making_and_locking_costs_a_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take, meddled = staging._take, []

    def late(lock: int) -> bool:
        if not meddled:
            meddled.append(True)
            assert len(clean_stale(tmp_path)) == 1
        return take(lock)

    monkeypatch.setattr(staging, "_take", late)
    run_id = write(tmp_path)
    assert open_bundle(tmp_path / run_id).verify() == []
    assert [p.name for p in tmp_path.iterdir()] == [run_id]


def test_cleaning_touches_nothing_else(tmp_path: Path) -> None:
    run_id = write(tmp_path)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / f"{staging.PREFIX}file").write_text("x")
    assert clean_stale(tmp_path) == []
    assert clean_stale(tmp_path / "absent") == []
    assert {p.name for p in tmp_path.iterdir()} == {run_id, ".hidden", "notes.txt", f"{staging.PREFIX}file"}


def test_a_cleaner_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / "store" / f"{staging.PREFIX}1-x").symlink_to(tmp_path / "precious")
    assert clean_stale(tmp_path / "store") == []
    assert (tmp_path / "precious").is_dir()


def test_writers_of_the_same_run_meet(tmp_path: Path) -> None:
    """All write, wait for the last, and seal at once: one run, one id, no error, nothing beside it."""
    code = """
with BundleWriter(store, "sweep", "same", f"By {os.getpid()}", identity()) as w:
    w.write_table("passes", passes(50))
    print("ready", flush=True)
    sys.stdin.read(1)
    print(w.seal(), flush=True)
"""
    writers = [child(tmp_path, code) for _ in range(4)]
    for process in writers:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in writers:
        assert process.stdin is not None
        process.stdin.write("x")
        process.stdin.flush()
    results = [process.communicate() for process in writers]
    assert [process.returncode for process in writers] == [0] * 4
    assert len({out for out, _ in results}) == 1
    (run,) = list(tmp_path.iterdir())
    assert run.name == results[0][0].strip()
    assert open_bundle(run).verify(content=True) == []


def test_a_disk_that_fills_up_is_one_sentence(tmp_path: Path) -> None:
    """A limit on file size stands for the disk: the kernel refuses the write in the middle of a table."""
    process = child(
        tmp_path,
        """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
from engine.errors import GapscopeError
try:
    write(store, count=500)
except GapscopeError as error:
    print(error)
""",
    )
    out, err = process.communicate()
    assert out == f"Cannot write a run into {tmp_path}: File too large. Nothing was left there; choose another store.\n"
    assert err == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["HashingFile.sync", "write_durably"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_errors_of_the_disk_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, code: int
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(f"engine.bundle.writer.{where}", fail)
    with pytest.raises(GapscopeError, match=f"^Cannot write a run into {tmp_path}: {os.strerror(code)}. Nothing was"):
        write(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_at_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "x")

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(GapscopeError, match=r"No space left on device.* free some space or choose another store"):
        write(tmp_path)


def test_a_read_only_store_is_one_sentence() -> None:
    """Not under tmp_path, whose parents are closed to the user that stands in for root here."""
    code = """
from engine.errors import GapscopeError
if os.getuid() == 0:
    os.setuid(65534)  # root may write anywhere
try:
    write(store)
except GapscopeError as error:
    print(error)
"""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        store.chmod(0o555)
        out, err = child(store, code).communicate()
        assert err == ""
        assert out == (
            f"Cannot write a run into {store}: Permission denied. "
            "Nothing was left there; choose a store that you may write.\n"
        )
        assert list(store.iterdir()) == []


def test_a_store_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(GapscopeError, match=r"Cannot write a run into .*file"):
        write(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "x"


def test_a_forked_child_leaves_its_parents_folder(tmp_path: Path) -> None:
    code = """
with BundleWriter(store, "sweep", "x", "X", identity()) as w:
    w.write_table("passes", passes(5))
    if os.fork() == 0:
        raise SystemExit  # leaves the block in the child
    os.wait()
    print(w.seal())
"""
    out, err = child(tmp_path, code).communicate()
    assert err == ""
    assert open_bundle(tmp_path / out.strip()).verify() == []


def test_the_store_is_made_on_first_write(tmp_path: Path) -> None:
    run_id = write(tmp_path / "new" / "store")
    assert list_bundles(tmp_path / "new" / "store") == [tmp_path / "new" / "store" / run_id]


def test_everything_is_flushed_before_the_run_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order that makes a crash of the machine harmless: files, manifest, folder, rename, store."""
    steps: list[str] = []
    fsync, rename = os.fsync, os.rename

    def watched_fsync(fd: int) -> None:
        steps.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        fsync(fd)

    def watched_rename(a: Path, b: Path) -> None:
        steps.append("rename")
        rename(a, b)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "rename", watched_rename)
    with BundleWriter(tmp_path, "sweep", "x", "X", identity()) as w:
        assert w._staging is not None
        hidden = w._staging.path.name
        w.write_table("passes", passes(5))
        w.seal()
    assert steps == ["fsync passes.parquet", "fsync run.json", f"fsync {hidden}", "rename", f"fsync {tmp_path.name}"]
    assert writer.FILE_NAME == "run.json"
