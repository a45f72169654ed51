"""A reader believes nothing: what was altered is named, what is malformed is one sentence."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bundle_rows import identity, passes, write

from engine.bundle import BundleWriter, find_bundle, list_bundles, manifest, measured_runs, open_bundle
from engine.errors import GapscopeError


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("sealed")
    return store / write(store, lineage={"config": {"lanes": 8, "scale": 0.25, "names": ["ä", None, True]}})


@pytest.fixture
def run(sealed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sealed, tmp_path / sealed.name))


def test_a_sound_run_is_sound(run: Path) -> None:
    bundle = open_bundle(run)
    assert bundle.verify() == []
    assert bundle.verify(content=True) == []
    bundle.require_intact()


def altered_files(run: Path) -> tuple[str, bool]:
    """What the reader says about a run, and whether it could be opened at all."""
    try:
        bundle = open_bundle(run)
    except GapscopeError as error:
        return str(error), False
    return f"{run.name} {bundle.verify()}", True


def test_any_altered_byte_of_the_manifest_shows(run: Path) -> None:
    """Each byte, changed by one bit, so that digits, quotes and spaces become something else."""
    file = run / "run.json"
    original = file.read_bytes()
    opened = 0
    for position in range(len(original)):
        altered = bytearray(original)
        altered[position] ^= 1
        file.write_bytes(altered)
        said, well_formed = altered_files(run)
        opened += well_formed
        assert "run.json" in said or "bundle schema" in said
        assert run.name in said
    assert opened > len(original) / 3


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data.replace(b'"Small"', b'"Large"'),
        lambda data: data.replace(b"\n", b"\n\n", 1),
        lambda data: data + b" ",
        lambda data: data.replace(b'"lanes": 8', b'"lanes": 1e400'),
        lambda data: data.replace(b'"lanes": 8', b'"lanes": "\\ud800"'),
        lambda data: data.replace(b'"kind"', b'"kind": "replay", "kind"'),
        lambda data: data.replace(b'"rows": 3', b'"rows": 4'),
    ],
)
def test_a_well_formed_edit_of_the_manifest_shows(run: Path, edit: Callable[[bytes], bytes]) -> None:
    data = (run / "run.json").read_bytes()
    assert edit(data) != data
    (run / "run.json").write_bytes(edit(data))
    bundle = open_bundle(run)
    assert bundle.verify() == ["run.json"]
    with pytest.raises(GapscopeError, match=rf"^Run {run.name}: run.json is missing or was altered"):
        bundle.require_intact()


def test_any_altered_byte_of_a_table_shows(run: Path) -> None:
    bundle = open_bundle(run)
    file = run / "passes.parquet"
    original = file.read_bytes()
    for position in range(0, len(original), 97):
        altered = bytearray(original)
        altered[position] ^= 0x40
        file.write_bytes(altered)
        assert bundle.verify() == ["passes.parquet"]
    file.write_bytes(original)
    assert bundle.verify() == []


def test_a_missing_and_a_cut_table_are_named(run: Path) -> None:
    (run / "passes.parquet").unlink()
    data = (run / "requests.parquet").read_bytes()
    (run / "requests.parquet").write_bytes(data[:-10])
    bundle = open_bundle(run)
    assert bundle.verify() == ["passes.parquet", "requests.parquet"]
    assert bundle.verify(content=True) == ["passes.parquet", "requests.parquet"]
    with pytest.raises(GapscopeError, match=rf"Run {run.name}: passes.parquet cannot be read .*Restore it."):
        bundle.table("passes")
    with pytest.raises(GapscopeError, match=rf"Run {run.name}: requests.parquet cannot be read .*Restore it."):
        bundle.table("requests")


def reseal(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit the manifest the way a forger would: with a new seal."""
    data = json.loads((run / "run.json").read_bytes())
    change(data)
    data["seal"] = manifest.seal_of(data)
    (run / "run.json").write_bytes(manifest.serialise(data))


def test_a_new_seal_does_not_hide_a_change_of_content(run: Path) -> None:
    reseal(run, lambda data: data["lineage"].clear())
    assert open_bundle(run).verify() == ["run.json"]


def exchange(run: Path, table: pa.Table, **encoding: Any) -> None:
    """Put another table in the place of the passes, digest and seal included."""
    pq.write_table(table, run / "passes.parquet", **encoding)
    data = (run / "passes.parquet").read_bytes()
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    reseal(run, lambda manifest: manifest["files"]["passes.parquet"].update(entry))


def test_another_encoding_of_the_same_values_is_the_same_run(run: Path) -> None:
    table = pq.read_table(run / "passes.parquet")
    exchange(run, table, compression="none", use_dictionary=False, row_group_size=2, data_page_version="2.0")
    assert open_bundle(run).verify(content=True) == []


def test_a_new_seal_does_not_hide_other_values(run: Path) -> None:
    exchange(run, pq.read_table(run / "passes.parquet").slice(0, 2))
    assert open_bundle(run).verify() == []
    assert open_bundle(run).verify(content=True) == ["passes.parquet"]


def test_a_renamed_folder_is_not_that_run(run: Path) -> None:
    other = run.rename(run.with_name("other-0123456789ab"))
    assert open_bundle(other).verify() == ["run.json"]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda d: d.pop("files"), "run.json is malformed: files is missing."),
        (lambda d: d.update(phases={}), "phases is dict, expected list."),
        (lambda d: d.update(created_unix_ns=True), "created_unix_ns is bool, expected int."),
        (lambda d: d.update(title=" "), "title is empty."),
        (lambda d: d.update(kind="real"), "kind is 'real', expected one of measured"),
        (lambda d: d.update(schema_version=0), "schema_version is 0, expected 1"),
        (lambda d: d.update(profile_start_unix_ns="x"), "is str, expected int or null."),
        (lambda d: d.update(identity={"model": {"name": "toy"}}), "Identity field model.name is 'toy'"),
        (lambda d: d.update(ledger={"profile": 3}), "ledger['profile'] is 3, expected an object"),
        (lambda d: d.update(phases=[1]), "an entry of phases is not an object"),
        (lambda d: d.update(phases=[{"name": "profile", "start_ns": 0}]), "end_ns in phases is None, expected int"),
        (lambda d: d.update(qualification=[{"check": "x"}]), "verdict in qualification is None, expected str"),
        (lambda d: d["files"].pop("requests.parquet"), "a measured run must have requests.parquet."),
        (lambda d: d["files"].update({"../x.parquet": d["files"]["passes.parquet"]}), "'../x.parquet' is no table's"),
        (lambda d: d["files"]["passes.parquet"].pop("rows"), "rows in files['passes.parquet'] is None, expected int"),
    ],
)
def test_a_malformed_manifest_is_one_sentence(run: Path, edit: Callable[[dict], None], words: str) -> None:
    reseal(run, edit)
    with pytest.raises(GapscopeError) as error:
        open_bundle(run)
    assert words in str(error.value)
    assert str(error.value).startswith(f"Run {run.name}: run.json is malformed")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000])
def test_what_is_not_a_manifest(run: Path, data: bytes) -> None:
    (run / "run.json").write_bytes(data)
    with pytest.raises(GapscopeError, match=rf"^Run {run.name}: run.json is malformed"):
        open_bundle(run)


def test_a_newer_schema_asks_for_an_update(run: Path) -> None:
    reseal(run, lambda d: d.update(schema_version=2))
    with pytest.raises(GapscopeError) as error:
        open_bundle(run)
    assert str(error.value) == (f"Run {run.name} has bundle schema 2; this gapscope reads up to 1. Update gapscope.")


def test_no_run_there(tmp_path: Path) -> None:
    with pytest.raises(GapscopeError, match=r"^No run at .*nothing: run.json is missing.$"):
        open_bundle(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(GapscopeError, match="No run at"):
        open_bundle(tmp_path / "file")


def test_columns_are_chosen_and_unknown_ones_named(run: Path) -> None:
    bundle = open_bundle(run)
    chosen = bundle.table("requests", ["output_tokens", "request_id"])
    assert chosen is not None
    assert chosen.to_pydict() == {"output_tokens": [5, 5, 5], "request_id": ["r0", "r1", "r2"]}
    with pytest.raises(GapscopeError, match=r"Table requests has no column 'output_token': output_tokens\?"):
        bundle.table("requests", ["output_token"])
    with pytest.raises(GapscopeError, match="no table 'request'"):
        bundle.table("request")


def test_a_column_that_the_file_lacks_is_null(run: Path) -> None:
    file = run / "requests.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["preemptions"]), file)
    found = open_bundle(run).table("requests", ["preemptions", "request_id"])
    assert found is not None
    assert found["preemptions"].to_pylist() == [None] * 3
    assert found.schema.field("preemptions").type == pa.int64()


def test_a_column_of_another_type_is_named(run: Path) -> None:
    file = run / "requests.parquet"
    table = pq.read_table(file)
    at = table.column_names.index("lane")
    pq.write_table(table.set_column(at, "lane", table["lane"].cast(pa.string())), file)
    with pytest.raises(
        GapscopeError, match=rf"Run {run.name}: requests.parquet, column lane is string, expected int64"
    ):
        open_bundle(run).table("requests")


def test_unreadable_and_foreign_folders(tmp_path: Path) -> None:
    run_id = write(tmp_path)
    (tmp_path / "traces").mkdir()
    (tmp_path / ".writing-1-x").mkdir()
    (tmp_path / "broken-0123456789ab").mkdir()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "run.json").write_text("{}")
    (tmp_path / "notes-0123456789ab").write_text("a file")
    names = [path.name for path in list_bundles(tmp_path)]
    assert names == ["broken-0123456789ab", "odd", run_id]  # runs that are broken stay visible
    assert list_bundles(tmp_path / "absent") == []
    with pytest.raises(GapscopeError, match="cannot be read"):
        list_bundles(tmp_path / "notes-0123456789ab")


def test_measured_runs_of_stores(tmp_path: Path) -> None:
    run_id = write(tmp_path / "a")
    write(tmp_path / "b")
    with BundleWriter(tmp_path / "b", "sweep", "shapes", "Shapes", identity()) as w:
        w.write_table("passes", passes(2))
        w.seal()
    (tmp_path / "b" / "broken-0123456789ab").mkdir()
    assert measured_runs([tmp_path / "a", tmp_path / "b"]) == ["broken-0123456789ab", run_id]


def test_runs_are_found_by_id_name_or_beginning(tmp_path: Path) -> None:
    stores = [tmp_path / "a", tmp_path / "b", tmp_path / "absent"]
    small = write(stores[0])
    tight = write(stores[1], slug="tight8")
    repeat = write(stores[1], slug="tight8-repeat", count=4)
    assert find_bundle(stores, small).run_id == small
    assert find_bundle(stores, "small").run_id == small
    assert find_bundle(stores, "sm").run_id == small
    assert find_bundle(stores, "tight8").run_id == tight  # a whole name before a beginning
    assert find_bundle(stores, repeat[:-4]).run_id == repeat
    with pytest.raises(GapscopeError, match=rf"Run 'tight' could be any of {tight}, {repeat}"):
        find_bundle(stores, "tight")
    with pytest.raises(GapscopeError, match=rf"No run 'tite8' in .* Near it: {tight}"):
        find_bundle(stores, "tite8")
    for ref in ("", "../a", f"../a/{small}", str(stores[0] / small)):
        with pytest.raises(GapscopeError, match="No run"):
            find_bundle(stores, ref)
    with pytest.raises(GapscopeError, match=r"No run 'x' in .*absent. There are no runs there."):
        find_bundle(stores[2:], "x")


def test_two_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    first, second = write(tmp_path), write(tmp_path, count=5)
    with pytest.raises(GapscopeError, match="could be any of") as error:
        find_bundle([tmp_path], "small")
    assert first in str(error.value)
    assert second in str(error.value)
    assert find_bundle([tmp_path], first).run_id == first
