"""A run leaves as files that other tools read, and comes back as the same run."""

from __future__ import annotations

import csv
import json
import math
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bundle_rows import identity, request, table, write
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle import BundleWriter, Phase, list_bundles, open_bundle
from engine.bundle.export import FORMATS, export_folder, export_zip
from engine.bundle.schema import TABLES
from engine.cli.main import main
from engine.errors import GapscopeError
from engine.importers import import_any

SAMPLES = list_bundles(Path(__file__).resolve().parents[2] / "sample_runs")


@pytest.fixture
def run(tmp_path):
    """A run with text, lists, NULLs and a value of each kind."""
    rows = [
        request(0, error_message='said "no",\r\nthen\nstopped', prompt_block_hashes=[2**64 - 1, 2**63, 0]),
        request(1, error_message="", prompt_block_hashes=[]),
        request(2, error_message=None, prompt_block_hashes=None, flags="zero output"),
    ]
    with BundleWriter(tmp_path / "store", "measured", "made-up", "Made up", identity()) as writer:
        writer.write_table("requests", table("requests", rows))
        return open_bundle(tmp_path / "store" / writer.seal(phases=[Phase("profile", 0, 100)]))


def edit(path, old, new):
    data = path.read_bytes()
    assert old.encode() in data
    path.write_bytes(data.replace(old.encode(), new.encode(), 1))


def again(folder, tmp_path, **options):
    (run_id,) = import_any(folder, tmp_path / "back", **options)
    return open_bundle(tmp_path / "back" / run_id)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.name)
def test_samples_come_back_as_the_same_runs(path, format, tmp_path):
    back = again(export_folder(open_bundle(path), format, tmp_path / "out"), tmp_path)
    assert back.run_id == path.name
    assert back.verify(content=True) == []
    for name in back.tables:
        assert back.table(name).equals(open_bundle(path).table(name))


def test_csv_tells_null_from_empty_text(run, tmp_path):
    folder = export_folder(run, "csv", tmp_path / "out")
    with (folder / "requests.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["error_message"] == 'said "no",\r\nthen\nstopped'
    assert json.loads(rows[0]["prompt_block_hashes"]) == [18446744073709551615, 9223372036854775808, 0]
    text = (folder / "requests.csv").read_text(encoding="utf-8")
    lines = text.split("\n")
    assert '"r1","profile","ok",,"",10,100,5,"[]"' in lines  # empty text and an empty list
    assert '"r2","profile","ok","zero output",,20,100,5,' in lines  # NULL


def test_jsonl_holds_exact_hashes(run, tmp_path):
    folder = export_folder(run, "jsonl", tmp_path / "out")
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [r["prompt_block_hashes"] for r in rows] == [[18446744073709551615, 9223372036854775808, 0], [], None]
    assert [r["error_message"] for r in rows] == ['said "no",\r\nthen\nstopped', "", None]
    assert "lane" not in rows[0]  # no request has one


TEXTS = (
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(['"', ",", "\r", ""])
)
INTS = st.none() | st.integers(-(2**63), 2**63 - 1)
HASHES = st.none() | st.lists(st.integers(0, 2**64 - 1), max_size=4)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS, INTS, INTS, HASHES), max_size=8),
    figures=st.lists(st.tuples(TEXTS, FLOATS, INTS), max_size=8),
    format=st.sampled_from(FORMATS),
)
def test_any_rows_come_back(rows, figures, format):
    requests = [
        request(k, error_message=t, flags=f, lane=lane, dispatched_ns=at, output_block_hashes=hashes)
        for k, (t, f, lane, at, hashes) in enumerate(rows)
    ]
    reported = [
        {"scope": "run", "name": "figure", "statistic": f"s{k}", "unit": unit, "value": value, "n": n}
        for k, (unit, value, n) in enumerate(figures)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch, "store")
        with BundleWriter(store, "measured", "any", "Any", identity()) as writer:
            full = TABLES["requests"]
            plain = table("requests", requests) if requests else full.schema.empty_table()
            writer.write_table("requests", plain)
            writer.write_table(
                "reported", table("reported", reported) if reported else TABLES["reported"].schema.empty_table()
            )
            run_id = writer.seal()
        folder = export_folder(open_bundle(store / run_id), format, Path(scratch, "out"))
        assert import_any(folder, Path(scratch, "back")) == [run_id]


def test_a_tar_of_an_export_is_one(run, tmp_path):
    folder = export_folder(run, "csv", tmp_path / "out")
    with tarfile.open(tmp_path / "export.tar.gz", "w:gz") as archive:
        archive.add(folder, "some/where")
    assert again(tmp_path / "export.tar.gz", tmp_path).run_id == run.run_id


@pytest.mark.parametrize("format", FORMATS)
def test_zip_holds_what_the_folder_holds(run, format, tmp_path):
    folder = export_folder(run, format, tmp_path / "out")
    path = export_zip(run, format, tmp_path)
    with zipfile.ZipFile(path) as archive:
        assert {name.rpartition("/")[2]: archive.read(name) for name in archive.namelist()} == {
            file.name: file.read_bytes() for file in folder.iterdir()
        }
    assert again(path, tmp_path).run_id == run.run_id


def test_a_run_folder_copied_from_a_store_comes_back(run, tmp_path):
    assert again(run.path, tmp_path).run_id == run.run_id


def test_edited_rows_make_another_run_that_names_the_table(run, tmp_path):
    folder = export_folder(run, "csv", tmp_path / "out")
    edit(folder / "requests.csv", '"r2","profile","ok"', '"r2","profile","error"')
    back = again(folder, tmp_path)
    assert back.run_id != run.run_id
    checks = {c.check: c for c in back.qualification}
    assert (checks["as_exported"].verdict, checks["as_exported"].detail) == (
        "fail",
        "table requests differs from its digest",
    )
    assert back.ledger["profile"]["error"] == 1  # counted again
    assert back.lineage["altered_export_of"] == run.run_id


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_rows_removed_or_added_show(run, format, tmp_path):
    folder = export_folder(run, format, tmp_path / "out")
    path = folder / f"requests.{format}"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    fewer = again(folder, tmp_path)
    assert fewer.rows("requests") == 2
    path.write_bytes(b"".join([*lines, lines[-1].replace(b"r2", b"r3")]))
    more = again(folder, tmp_path)
    assert more.rows("requests") == 4
    for back in (fewer, more):
        assert [c.detail for c in back.qualification if c.verdict == "fail"] == [
            "table requests differs from its digest"
        ]


def test_rows_in_another_order_are_the_same_run(run, tmp_path):
    folder = export_folder(run, "jsonl", tmp_path / "out")
    lines = (folder / "requests.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "requests.jsonl").write_bytes(b"".join(reversed(lines)))
    assert again(folder, tmp_path).run_id == run.run_id


def test_checks_of_the_rows_before_are_not_those_of_edited_ones(tmp_path):
    from engine.bundle import Check

    run_id = write(tmp_path, qualification=[Check("one_clock", "pass", "in order"), Check("other", "fail", "no")])
    folder = export_folder(open_bundle(tmp_path / run_id), "csv", tmp_path / "out")
    edit(folder / "requests.csv", ",100,5", ",100,6")
    verdicts = {c.check: (c.verdict, c.detail) for c in again(folder, tmp_path).qualification}
    assert verdicts["one_clock"] == ("unknown", "pass before the export was altered: in order")
    assert verdicts["other"] == ("fail", "no")


def test_a_missing_table_shows(tmp_path):
    run_id = write(tmp_path)
    folder = export_folder(open_bundle(tmp_path / run_id), "csv", tmp_path / "out")
    (folder / "passes.csv").unlink()
    back = again(folder, tmp_path)
    assert back.tables == ("requests",)
    assert [c.detail for c in back.qualification if c.verdict == "fail"] == ["table passes is missing"]


def test_an_edited_manifest_shows(run, tmp_path):
    folder = export_folder(run, "csv", tmp_path / "out")
    edit(folder / "run.json", '"end_ns": 100', '"end_ns": 200')
    back = again(folder, tmp_path)
    assert [c.detail for c in back.qualification if c.verdict == "fail"] == ["run.json was altered"]


@pytest.mark.parametrize(
    ("format", "old", "new", "sentence"),
    [
        (
            "csv",
            '"input_tokens"',
            '"input_token"',
            "requests.csv: table requests has no column 'input_token': is it inp",
        ),
        ("csv", '"input_tokens",', '"output_tokens",', "requests.csv: the column output_tokens is there twice"),
        ("csv", ",100,5", ",many,5", "requests.csv row 1: input_tokens is 'many', expected a whole number"),
        ("csv", ",100,5", ",100,5,6", "requests.csv: 10 cells where the head has 9"),
        ("csv", '"ok"', '"okay"', "requests.csv row 1: status is 'okay', expected one of ok, error"),
        ("csv", "[18446744073709551615", "[18446744073709551616", "row 1: prompt_block_hashes is"),
        (
            "jsonl",
            '"input_tokens":100',
            '"input_tokens":"100"',
            "requests.jsonl line 1: input_tokens is '100', expected",
        ),
        ("jsonl", '"input_tokens":100', '"input_tokens":true', "line 1: input_tokens is True, expected a whole number"),
        ("jsonl", '"input_tokens"', '"tokens_in"', "requests.jsonl line 1: table requests has no column 'tokens_in'"),
        ("jsonl", '"request_id":"r1"', '"request_id":null', "line 2: request_id is None, expected a value"),
        ("jsonl", '"request_id":"r1"', '"request_id":"r0"', "'r0' occurs twice"),
        ("jsonl", '"request_id":"r1"', "request_id", "requests.jsonl line 2: not JSON"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(run, format, old, new, sentence, tmp_path):
    folder = export_folder(run, format, tmp_path / "out")
    edit(folder / f"requests.{format}", old, new)
    with pytest.raises(GapscopeError) as error:
        import_any(folder, tmp_path / "back")
    assert sentence in str(error.value)


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_bad_rows_can_be_left_out(run, format, tmp_path):
    folder = export_folder(run, format, tmp_path / "out")
    edit(folder / f"requests.{format}", "100", "1e400")
    back = again(folder, tmp_path, skip_bad_rows=True)
    assert back.rows("requests") == 2
    (check,) = [c for c in back.qualification if c.verdict == "fail"]
    assert check.detail.startswith("table requests differs from its digest; 1 rows left out: requests.")


def test_parquet_of_other_types_is_refused(run, tmp_path):
    folder = export_folder(run, "parquet", tmp_path / "out")
    read = pq.read_table(folder / "requests.parquet")
    place = read.column_names.index("input_tokens")
    pq.write_table(read.set_column(place, "input_tokens", pa.array(["1", "2", "3"])), folder / "requests.parquet")
    with pytest.raises(GapscopeError, match="column input_tokens: type string where int64 is expected"):
        import_any(folder, tmp_path / "back")
    (folder / "requests.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(GapscopeError, match=r"requests\.parquet is no Parquet file that can be read"):
        import_any(folder, tmp_path / "back")


@pytest.mark.parametrize("text", ['"open quote\n', '"a","b"\x00\n', ""])
def test_broken_csv_is_refused_in_a_sentence(run, text, tmp_path):
    folder = export_folder(run, "csv", tmp_path / "out")
    (folder / "requests.csv").write_text(text, encoding="utf-8")
    with pytest.raises(GapscopeError):
        import_any(folder, tmp_path / "back")


def test_rows_that_are_no_text_are_counted(run, tmp_path):
    folder = export_folder(run, "csv", tmp_path / "out")
    lines = (folder / "requests.csv").read_bytes()
    (folder / "requests.csv").write_bytes(lines + b'"r\xff",1\n')
    with pytest.raises(GapscopeError, match=r"requests\.csv: 2 cells where the head has 9"):
        import_any(folder, tmp_path / "back")
    back = again(folder, tmp_path, skip_bad_rows=True)
    # The rows that are left are those that were exported.
    assert back.rows("requests") == 3
    assert [c.detail for c in back.qualification if c.verdict == "fail"] == [
        "1 rows left out: requests.csv: 2 cells where the head has 9"
    ]


def test_floats_come_back_to_the_last_bit(tmp_path):
    values = [0.1 + 0.2, 1e-308 / 3, math.nextafter(1, 2), 1.7976931348623157e308, -5e-324, 3.0]
    rows = [{"scope": "run", "name": "f", "statistic": f"s{k}", "value": v} for k, v in enumerate(values)]
    with BundleWriter(tmp_path / "store", "imported_summary", "floats", "Floats", identity()) as writer:
        writer.write_table("reported", table("reported", rows))
        run_id = writer.seal()
    for format in FORMATS:
        folder = export_folder(open_bundle(tmp_path / "store" / run_id), format, tmp_path / format)
        back = again(folder, tmp_path)
        assert back.run_id == run_id
        assert back.table("reported").column("value").to_pylist() == values


def test_command_line(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", "made-up", "--store", "store"]) == 0
    assert capsys.readouterr().out == f"{run.run_id}-csv\n"
    assert main(["import", f"{run.run_id}-csv", "--store", "back"]) == 0
    assert capsys.readouterr().out == f"{run.run_id}\n"
    assert main(["export", "made-up", "--store", "store"]) != 0
    assert "is not empty: give a new folder for the export" in capsys.readouterr().err


def test_altered_runs_are_not_exported(run, tmp_path):
    (run.path / "requests.parquet").write_bytes(b"PAR1")
    with pytest.raises(GapscopeError, match=r"requests\.parquet is missing or was altered"):
        export_folder(open_bundle(run.path), "csv", tmp_path / "out")
