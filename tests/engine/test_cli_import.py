"""gapscope import: what it says beforehand, what it prints, how it ends; recordings are of ``recording_folder``."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from recording_folder import Folder, trace_rows

from engine import importers
from engine.bundle import list_bundles, open_bundle
from engine.cli import main as cli
from engine.cli import terminal
from engine.errors import GapscopeError
from engine.importers import Options, Part, Plan, Use, plan_import
from engine.importers.parts import import_parts
from engine.intake import open_intake
from engine.stores import PROJECT

GOLDEN = Path(__file__).parent / "golden"
DATA = Path(__file__).parents[1] / "data"


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main(["import", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def golden(name: str, text: str) -> None:
    file = GOLDEN / name
    if os.environ.get("GAPSCOPE_WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_help_teaches(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as stopped:
        cli.main(["import", "--help"])
    assert stopped.value.code == 0
    golden("import_help.txt", capsys.readouterr().out)


def test_every_format_is_listed_with_what_it_is_told_by(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(capsys, "--formats")
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    for importer in importers.IMPORTERS:
        assert f"\n{importer.name}\n    " in f"\n{out}"
        assert " ".join(importer.describes.split()) in words


def test_a_dry_run_says_the_plan_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Folder().write(Path("rec"))
    Path("rec/notes.txt").write_text("written by hand")
    code, out, err = command(capsys, "rec", "--dry-run", "--store", "store")
    assert (code, err) == (0, "")
    golden("import_dry_run.txt", out)
    assert not Path("store").exists()


def test_an_import_names_what_it_left_as_the_dry_run_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    shutil.copytree(DATA / "aiperf" / "native", results / "aiperf")
    (results / "notes.txt").write_text("by hand")
    _, rehearsed, _ = command(capsys, results, "--dry-run")
    code, ids, said = command(capsys, results, "--store", tmp_path / "store")
    assert (code, len(ids.split())) == (terminal.OK, 1)

    def left(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith(("   ignores", "not used"))]

    assert "not used: notes.txt: no importer knows it" in left(said)
    assert left(said) == left(rehearsed)


def test_a_dry_run_refuses_what_the_import_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    results.mkdir()
    whole = (DATA / "vllm_bench" / "detailed.json").read_bytes()
    (results / "whole.json").write_bytes(whole)
    (results / "cut.json").write_bytes(whole[: len(whole) // 2])
    code, out, err = command(capsys, results, "--dry-run")
    assert code == terminal.BAD_INPUT
    assert out.splitlines()[1:] == [
        "1. cut: vLLM bench serve, version not said, is refused",
        "   refuses  cut.json: header and a value per request",
        "2. whole: vLLM bench serve, version not said, becomes a run of kind measured",
        "   uses     whole.json: header and a value per request",
    ]
    assert err.startswith("gapscope: cut.json is not JSON ")
    assert command(capsys, results, "--store", tmp_path / "store")[::2] == (code, mentions_checks(tmp_path, err))


def mentions_checks(folder: Path, problems: str) -> str:
    """What an import says on stderr: how its only run did in its checks, then the problems."""
    (run,) = [open_bundle(path) for path in list_bundles(folder / "store")]
    passed = sum(check.verdict == "pass" for check in run.qualification)
    return f"{run.run_id}: {passed} of {len(run.qualification)} checks passed\n{problems}"


def test_one_input_that_fails_does_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = Folder().write(tmp_path / "one"), Folder().write(tmp_path / "two")
    (second / "requests.jsonl").write_bytes((first / "requests.jsonl").read_bytes()[:-40])
    notes = tmp_path / "notes.txt"
    notes.write_text("nothing to import")
    store = tmp_path / "store"
    code, out, err = command(capsys, second, tmp_path / "absent", notes, first, "--store", store)
    assert code == terminal.BAD_INPUT
    (run_id,) = out.split()
    assert open_bundle(store / run_id).verify() == []
    said = err.splitlines()
    assert said[0].startswith(f"{run_id}: ")
    assert [line.startswith("gapscope: ") for line in said] == [False, True, True, True]  # told at the end
    assert "requests.jsonl line 3" in said[1]
    assert "absent does not exist" in said[2]
    assert "no format that can be imported" in said[3]


WEKA = {"id": "s0", "block_size": 32, "requests": [{"t": 0.5, "type": "s", "in": 64, "out": 8, "hash_ids": [1, 2]}]}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"timestamp": 0, "input_length": 600, "output_length": 12, "hash_ids": [*range(40_000)]}], "Mooncake JSONL"),
        (trace_rows(), "(agentic-trace/1) and no run: `gapscope replay --trace FILE` plays it; a recording of it"),
        ([WEKA], "(sessions with hash ids, as AIPerf plays them) and no run: `gapscope replay --trace FILE` plays it"),
    ],
)
def test_a_workload_alone_is_told_from_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[dict[str, object]], words: str
) -> None:
    file = tmp_path / "trace.any"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    code, _, err = command(capsys, file, "--store", tmp_path / "store")
    assert code == terminal.BAD_INPUT
    assert "in no format that can be imported. trace.any: it is a workload (" in err
    assert words in err


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.1, "input_length": 9, "output_length": 3}\n', "Bailian"),
        ('{"input_prompt_length": 9, "final_assistant_response_length": 3}\n', "Applied Compute"),
    ],
)
def test_any_workload_that_can_be_played_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, name: str
) -> None:
    (tmp_path / "any.jsonl").write_text(text)
    _, _, err = command(capsys, tmp_path / "any.jsonl", "--store", tmp_path / "store")
    assert "in no format that can be imported. any.jsonl: it looks like a workload (" in err
    assert name in err


def test_a_refusal_ends_with_where_the_formats_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing to import")
    (said,) = command(capsys, tmp_path / "notes.txt", "--store", tmp_path / "store")[2].splitlines()
    assert said.endswith("`gapscope import --formats` lists those that are known, and what each is told by.")
    assert "guidellm" not in said.lower()  # the names would bury the reason


def test_a_compact_trace_is_told_from_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (trace,) = (PROJECT / "sample_runs" / "traces").glob("*.parquet")
    assert f"{trace.name}: it is a workload (a compact trace) and no run" in command(capsys, trace)[2]


def test_an_archive_is_imported_like_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Folder().write(tmp_path / "rec")
    archive = tmp_path / "any.name"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder, "rec")
    shutil.copy(archive, tmp_path / "again.tgz")
    ids = {command(capsys, path, "--store", tmp_path / "store")[1].strip() for path in (folder, archive)}
    assert len(ids) == 1  # a run is named by what is in it
    assert [path.name for path in list_bundles(tmp_path / "store")] == sorted(ids)


def test_nothing_to_import_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(capsys)[::2] == (
        terminal.BAD_INPUT,
        "gapscope: Nothing to import: give the folder, file or archive, or --formats for what is known.\n",
    )


def test_an_interrupted_import_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder().write(tmp_path / "rec")
    store, scratch = tmp_path / "store", tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))

    def interrupted(self: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("engine.bundle.writer.BundleWriter.seal", lambda self, **_: interrupted(self))
    assert command(capsys, folder, "--store", store)[0] == terminal.INTERRUPTED
    assert list_bundles(store) == []
    assert [path.name for path in store.glob("*") if path.name != "traces"] == []
    assert list(scratch.iterdir()) == []


def plan_of(path: Path, *outcomes: str | Exception) -> list[importers.parts.Imported]:
    """Import a plan of made-up parts that end like this; the progress that was told is in ``told``."""
    with open_intake(path) as intake:
        file = intake.files[0]

        def part(name: str, outcome: str | Exception) -> Part:
            def run(store: Path, options: Options) -> str:
                options.step(0.5, "half")
                if isinstance(outcome, Exception):
                    raise outcome
                return f"{outcome} {options.title}"

            return Part("made up", "maker", "1", name, "measured", (Use(file, "all"),), run)

        plan = Plan(intake, tuple(part(f"p{k}", outcome) for k, outcome in enumerate(outcomes)))
        told: list[tuple[float | None, str]] = []
        found = list(import_parts(plan, path.parent, Options(title="T", progress=lambda *said: told.append(said))))
    assert [share for share, _ in told] == pytest.approx([(k + 0.5) / len(outcomes) for k in range(len(outcomes))])
    return found


def test_a_part_that_is_refused_does_not_stop_the_next(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    found = plan_of(tmp_path / "a.json", "first", GapscopeError("No."), "third")
    assert [(one.part.name, one.run_id, one.problem) for one in found] == [
        ("p0", "first T: p0", ""),
        ("p1", None, "No."),
        ("p2", "third T: p2", ""),
    ]


def test_a_plan_of_one_part_keeps_its_title(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (only,) = plan_of(tmp_path / "a.json", "run")
    assert only.run_id == "run T"


def test_a_canceled_part_ends_the_import(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(importers.Canceled):
        plan_of(tmp_path / "a.json", importers.Canceled("No more."), "second")


def test_a_recording_is_planned_from_the_heads_of_its_files(tmp_path: Path) -> None:
    Folder().write(tmp_path / "rec")
    with open_intake(tmp_path / "rec") as intake:
        plan = plan_import(intake)
    assert [part.kind for part in plan.parts] == ["measured"]
