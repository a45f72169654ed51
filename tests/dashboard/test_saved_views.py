"""Saved views: named links in an append-only file of the store."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dashboard.cli import main
from dashboard.saved import FILE, delete, read, rename, save
from dashboard.saved.text import held_words, runs_of, views_text
from dashboard.view import View, from_link
from engine.errors import GapscopeError

M, R = "ample8-0123456789ab", "ample8_replay-fedcba987654"
LINK = View("percentiles", {"m": M, "r": [R], "metric": "tpot"}).link("http://127.0.0.1:8501")


def rows(store: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (store / FILE).read_text().splitlines()]


def test_a_saved_view_is_page_and_values_without_host(tmp_path: Path) -> None:
    made = save([tmp_path], LINK, "  the   tail ", "9 % low", now=datetime(2026, 3, 1, 12, tzinfo=UTC))
    (found,) = read([tmp_path]).views
    assert found == made
    assert (found.name, found.note, found.saved) == ("the tail", "9 % low", "2026-03-01T12:00:00.000000Z")
    assert found.view == f"percentiles?v=2&m={M}&r={R}&metric=TPOT"
    assert found.shown.query() == from_link(LINK).query()
    assert runs_of(found) == [M, R]


def test_a_name_changes_and_a_view_goes_and_the_file_only_grows(tmp_path: Path) -> None:
    made = save([tmp_path], LINK, "first")
    renamed = rename([tmp_path], "first", "second", "a note")
    assert (renamed.id, renamed.name, renamed.note) == (made.id, "second", "a note")
    assert rename([tmp_path], made.id[:4], "third").note == "a note"  # it stays where none is given
    assert [one.name for one in read([tmp_path]).views] == ["third"]
    delete([tmp_path], "third")
    assert read([tmp_path]).views == ()
    assert [row["event"] for row in rows(tmp_path)] == ["saved", "renamed", "renamed", "deleted"]
    save([tmp_path], LINK, "first")  # the name is free again
    assert len(read([tmp_path]).views) == 1


@pytest.mark.parametrize(
    ("link", "name", "words"),
    [
        (LINK, " ", "needs a name"),
        (LINK, "taken", "has the name 'taken' already"),
        (LINK, "x" * 121, "at most 120"),
        ("http://h/nowhere?v=2", "new", "no page"),
        ("http://h/percentiles?v=2&metric=TPOT", "new", "names no measured run"),
        (f"http://h/percentiles?v=2&m={M}&metric=nonsense", "new", "cannot be used"),
        (f"http://h/percentiles?v=9&m={M}", "new", "version 9"),
    ],
)
def test_what_cannot_be_saved_is_said_and_not_written(tmp_path: Path, link: str, name: str, words: str) -> None:
    save([tmp_path], LINK, "taken")
    with pytest.raises(GapscopeError, match=words):
        save([tmp_path], link, name)
    assert len(rows(tmp_path)) == 1


def test_a_view_of_another_store_is_renamed_in_the_last_one(tmp_path: Path) -> None:
    first, last = tmp_path / "a", tmp_path / "b"
    save([first], LINK, "theirs")
    rename([first, last], "theirs", "ours")
    assert [one.name for one in read([first, last]).views] == ["ours"]
    assert [one.name for one in read([first]).views] == ["theirs"]
    assert [row["event"] for row in rows(last)] == ["renamed"]


def test_a_copied_store_holds_each_view_once(tmp_path: Path) -> None:
    first, copy = tmp_path / "a", tmp_path / "b"
    save([first], LINK, "one")
    copy.mkdir()
    (copy / FILE).write_bytes((first / FILE).read_bytes())
    assert len(read([first, copy]).views) == 1
    delete([first, copy], "one")
    assert read([first, copy]).views == ()


def test_lines_that_cannot_be_used_are_counted_and_the_others_count(tmp_path: Path) -> None:
    save([tmp_path], LINK, "good")
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"id": "v1", "event": "renamed", "time": "2026-03-01T12:00:00Z", "name": "x"}\n')
        file.write(b'{"id": "v1", "event": "painted", "time": "2026-03-01T12:00:00Z"}\n{"id"')
    found = read([tmp_path])
    assert [one.name for one in found.views] == ["good"]
    assert [line.line for line in found.bad] == [3, 4, 2]
    assert "there is no saved view v1" in found.bad_words
    save([tmp_path], LINK, "after")  # the line that was cut off keeps its place
    assert {one.name for one in read([tmp_path]).views} == {"good", "after"}


def test_two_processes_save_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from dashboard.saved import save\n"
        f"for at in range(20): save([Path(sys.argv[1])], {LINK!r}, f'{{sys.argv[2]}} {{at}}')"
    )
    started = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name]) for name in "ab"]
    assert [one.wait(timeout=60) for one in started] == [0, 0]
    found = read([tmp_path])
    assert {one.name for one in found.views} == {f"{name} {at}" for name in "ab" for at in range(20)}
    assert found.bad == ()


def test_a_store_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GapscopeError, match="Nothing was written: the store file cannot be written"):
        save([tmp_path / "file"], LINK, "one")


def test_runs_that_are_not_there_are_named(tmp_path: Path) -> None:
    made = save([tmp_path], LINK, "one")
    assert held_words(made, {M, R}) == "all runs in the store"
    assert held_words(made, {M}) == f"not in the store: {R}"


def test_every_run_of_a_view_counts(tmp_path: Path) -> None:
    values = {"m": M, "r": [R], "base": R, "fit": [f"{M}:warmup", "sweep-00000000000a"]}
    made = save([tmp_path], View("what_if", values).link(), "a what-if")
    assert runs_of(made) == [M, R, "sweep-00000000000a"]


def test_the_command_line_saves_lists_renames_and_deletes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--store", str(tmp_path)]
    assert main(["views", "save", LINK, "--name", "tail", "--note", "a | b", *store]) == 0
    assert main(["views", "rename", "tail", "the tail", *store]) == 0
    capsys.readouterr()
    assert main(["views", "list", "--format", "json", *store]) == 0
    (told,) = json.loads(capsys.readouterr().out)["views"]
    assert (told["name"], told["page"], told["runs"], told["absent"]) == ("the tail", "Percentiles", [M, R], [M, R])
    assert main(["views", "list", "--format", "markdown", *store]) == 0
    assert r"a \| b" in capsys.readouterr().out
    assert main(["views", "delete", "the tail", *store]) == 0
    capsys.readouterr()
    assert main(["views", "list", *store]) == 0
    assert capsys.readouterr().out.strip() == "No saved views."
    assert main(["views", "delete", "the tail", *store]) == 2


def test_a_view_of_a_newer_gapscope_is_listed_and_cannot_be_opened(tmp_path: Path) -> None:
    row = {"id": "v1", "event": "saved", "time": "2026-03-01T12:00:00Z", "name": "new", "view": "verdict?v=9"}
    (tmp_path / FILE).write_text(json.dumps(row) + "\n")
    assert "cannot be opened: This link has version 9" in views_text(read([tmp_path]), set())
