"""What a user hands over: files with every fault that tools and disks give them, one clear sentence each."""

import bz2
import gzip
import json
import lzma
import os
import re
import socket
from pathlib import Path

import pyarrow as pa
import pytest

from engine.errors import GapscopeError
from engine.importers import import_any
from engine.intake import BadRows, InputFile, csv_rows, json_document, json_documents, json_rows, open_intake, trouble
from engine.intake import documents as documents_module
from engine.intake import files as files_module
from engine.intake import rows as rows_module
from engine.intake import streams as streams_module
from engine.intake.rows import number, parse

ROWS = [{"n": n, "word": "x" * (n % 50)} for n in range(8_000)]
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


PACKERS = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "zstd": zstd}


def given(folder: Path, data: bytes) -> InputFile:
    path = folder / "given"
    path.write_bytes(data)
    return InputFile("given", path)


def rows_of(folder: Path, data: bytes) -> tuple[list[dict], BadRows]:
    bad = BadRows(skip=True)
    return [row for _, row in json_rows(given(folder, data), bad)], bad


def table_of(folder: Path, data: bytes) -> tuple[list[dict], BadRows]:
    bad = BadRows(skip=True)
    return [row for _, row in csv_rows(given(folder, data), bad)], bad


def one_sentence(message: str) -> bool:
    return "\n" not in message and "Traceback" not in message and message.endswith((".", "?"))


# -- line ends and marks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("pack", [None, *PACKERS])
def test_any_line_end(tmp_path: Path, end: bytes, mark: bytes, last: bool, pack: str | None) -> None:
    data = mark + end.join([b'{"a": 1}', b'{"a": 2}', b"", b'{"a": 3}']) + (end if last else b"")
    table = mark + end.join([b"a,b", b"1,x", b"2,y"]) + (end if last else b"")
    packer = PACKERS[pack] if pack else bytes
    rows, bad = rows_of(tmp_path, packer(data))
    assert (rows, bad.count) == ([{"a": 1}, {"a": 2}, {"a": 3}], 0)
    rows, bad = table_of(tmp_path, packer(table))
    assert (rows, bad.count) == ([{"a": "1", "b": "x"}, {"a": "2", "b": "y"}], 0)


def test_a_return_inside_a_line(tmp_path: Path) -> None:
    rows, bad = rows_of(tmp_path, b'{"a":\r1}\n{"a": 2}\r{"a": 3}\r\n{"a": 4}\rno\n')
    assert [row["a"] for row in rows] == [1, 2, 3, 4]
    assert bad.count == 1
    assert "line 3: not JSON" in bad.examples[0]


def test_lines_are_numbered_as_in_an_editor(tmp_path: Path) -> None:
    bad = BadRows(skip=True)
    found = [line for line, _ in json_rows(given(tmp_path, b'\n{"a": 1}\n\nno\n{"a": 2}'), bad)]
    assert found == [2, 5]
    assert bad.examples[0].startswith("given line 4: not JSON")


def test_utf16_is_told(tmp_path: Path) -> None:
    for order in ("utf-16-le", "utf-16-be"):
        mark = "\ufeff".encode(order)
        file = given(tmp_path, mark + '{"a": 1}\n'.encode(order))
        for read in (lambda f: list(json_rows(f, BadRows())), json_document, lambda f: list(csv_rows(f, BadRows()))):
            with pytest.raises(GapscopeError, match="UTF-16 text: save it as UTF-8"):
                read(file)
        assert trouble(file) == "it is UTF-16 text: save it as UTF-8"


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.json", b"hello", "it has a name of JSON, and is not JSON (.*line 1 column 1 "),
        ("a.jsonl.gz", gzip.compress(b"hello", mtime=0), "it has a name of JSON, and is not JSON (.*line 1 column 1 "),
        ("a", b'{\n "a": 1,\n "b": oops\n}', "it looks like JSON, and is not JSON (.*line 3 column 7 "),
        ("a", b'{"a": 1}\n\n{"a": 2\n{"a": 3}\n', "it looks like JSON, and line 3 is not JSON "),
        ("a", b'{"a": 1}\n{"a": 2}\n', None),
        ("a.json", b"42", None),
        ("a.txt", b"hello", None),
    ],
)
def test_where_a_file_stops_being_json_is_told(tmp_path: Path, name: str, data: bytes, words: str | None) -> None:
    (tmp_path / name).write_bytes(data)
    found = trouble(InputFile(name, tmp_path / name))
    assert (found is None) if words is None else re.match(words.replace("(", "\\("), str(found))


def test_a_long_document_is_read_to_its_end_only_if_asked(tmp_path: Path) -> None:
    file = given(tmp_path, b'{"a": "' + b"x" * 200_000 + b'" oops}')
    assert trouble(file) is None
    found = trouble(file, 1 << 20)
    assert found is not None
    assert "line 1 column 200010" in found  # 7 characters, 200,000, a quote and a space before it
    assert trouble(file, 1 << 17) is None


# -- cut off ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", PACKERS)
@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_rows_before_a_cut_are_delivered(tmp_path: Path, pack: str, share: float) -> None:
    """Everything that the compressed bytes before the cut tell comes out, and the cut counts as one bad row."""
    packed = PACKERS[pack](LINES)
    rows, bad = rows_of(tmp_path, packed[: int(len(packed) * share)])
    assert rows == ROWS[: len(rows)]
    assert bad.count == 1
    assert f"the {pack} stream ends here" in bad.examples[0]
    if pack == "gzip":
        import zlib

        told = zlib.decompressobj(wbits=31).decompress(packed[: int(len(packed) * share)])
        assert len(rows) == told.count(b"\n")


@pytest.mark.parametrize("pack", PACKERS)
def test_streams_in_a_row(tmp_path: Path, pack: str) -> None:
    """Appended compressed files are one; of the last, cut off, what was there is lost, and of the others nothing."""
    first, second = PACKERS[pack](b'{"a": 1}\n'), PACKERS[pack](b'{"a": 2}\n')
    rows, bad = rows_of(tmp_path, first + second)
    assert (rows, bad.count) == ([{"a": 1}, {"a": 2}], 0)
    rows, bad = rows_of(tmp_path, first + second[:-6])
    assert rows[0] == {"a": 1}
    assert bad.count == 1


def test_a_cut_is_refused_unless_bad_rows_are_skipped(tmp_path: Path) -> None:
    with pytest.raises(GapscopeError, match=r"given line \d+: the gzip stream ends here.*--skip-bad-rows"):
        list(json_rows(given(tmp_path, gzip.compress(LINES)[:-20]), BadRows()))
    with pytest.raises(GapscopeError, match="given line 2: not JSON"):
        list(json_rows(given(tmp_path, b'{"a": 1}\n{"a": '), BadRows()))
    with pytest.raises(GapscopeError, match=r"the gzip stream ends here.*Get the whole file"):
        json_document(given(tmp_path, gzip.compress(LINES)[:-20]))


# -- values ----------------------------------------------------------------------------------------------------


def test_values_that_json_has_not(tmp_path: Path) -> None:
    rows, bad = rows_of(tmp_path, b'{"a": NaN, "b": Infinity, "c": -Infinity, "d": 1e999, "e": %d}\n' % 2**80)
    assert bad.count == 0
    assert [number(value) for value in rows[0].values()] == [None, None, None, None, float(2**80)]
    assert [number(value) for value in (True, "1", None, 10**400, 3)] == [None, None, None, None, 3.0]
    assert parse(b"9" * 5000)[0] is None
    assert rows_of(tmp_path, b'{"id": 18446744073709551615}\n')[0] == [{"id": 2**64 - 1}]
    assert rows_of(tmp_path, b'{"a": 1, "a": 2}\n')[0] == [{"a": 2}]  # as every JSON reader: the last one counts


def test_text_that_is_none(tmp_path: Path) -> None:
    half, pair, other = rb'{"t": "a\ud83d"}', rb'{"t": "\ud83d\ude00"}', rb'{"t": "\\ud83d", "x": NaN}'
    rows, bad = rows_of(tmp_path, b"\n".join([half, pair, other, b'{"t": "\xff"}', b'{"t": "\x00"}', b"\x00\x00"]))
    assert [row["t"] for row in rows] == ["a\ufffd", "\U0001f600", "\\ud83d"]
    assert bad.count == 3
    assert all("not JSON" in words for words in bad.examples)
    for row in rows:
        row["t"].encode()


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000])
def test_depth_is_no_crash(tmp_path: Path, text: bytes) -> None:
    rows, bad = rows_of(tmp_path, text + b"\n")
    assert not rows
    assert bad.count == 1
    with pytest.raises(GapscopeError, match="not JSON"):
        json_document(given(tmp_path, text))
    bad = BadRows(skip=True)
    assert list(json_documents(given(tmp_path, text), bad)) == []
    assert bad.count == 1


def test_rows_of_another_kind(tmp_path: Path) -> None:
    rows, bad = rows_of(tmp_path, b'[1]\n"a"\n1\nnull\ntrue\n{}\n')
    assert rows == [{}]
    assert bad.count == 5
    assert bad.words.startswith("5 rows left out: given line 1: expected a JSON object, found a list")


def test_a_long_line_is_a_bad_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "MAX_LINE", 3 << 20)
    rows, bad = rows_of(tmp_path, b'{"a": 1}\n{"a": "%s"}\n{"a": 3}\n' % (b"x" * (10 << 20)))
    assert [row["a"] for row in rows] == [1, 3]
    assert bad.examples == ["given line 2: longer than 3 MiB"]
    rows, bad = rows_of(tmp_path, b"x" * (10 << 20))
    assert not rows
    assert bad.examples == ["given line 1: longer than 3 MiB"]


# -- documents -------------------------------------------------------------------------------------------------


def test_documents_one_after_the_other(tmp_path: Path) -> None:
    pretty = json.dumps({"a": [1, 2]}, indent=2).encode()
    for data in (
        b'{"a": [1, 2]}\n{"a": [1, 2]}\n',
        pretty + b"\n" + pretty,
        pretty + pretty,
        b'\xef\xbb\xbf{"a": [1, 2]}',
    ):
        found = list(json_documents(given(tmp_path, data), BadRows()))
        assert [value for _, value in found] == [{"a": [1, 2]}] * (1 if data[:1] == b"\xef" else 2)
        assert [place for place, _ in found] == list(range(1, len(found) + 1))
    bad = BadRows(skip=True)
    assert len(list(json_documents(given(tmp_path, b'{"a": 1}\n{"a": 2}\n{"a"'), bad))) == 2
    assert bad.count == 1
    with pytest.raises(GapscopeError, match="document 1: not JSON"):
        list(json_documents(given(tmp_path, b"{'a': 1}"), BadRows()))


def test_a_document_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents_module, "MAX_DOCUMENT", 1 << 20)
    with pytest.raises(GapscopeError, match=r"one JSON document of more than 1 MiB.*JSON Lines"):
        json_document(given(tmp_path, gzip.compress(b"[" + b" " * (2 << 20) + b"]")))


def test_growth_beyond_measure_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "FREE_BYTES", 1 << 20)
    file = given(tmp_path, gzip.compress(b"\n" * (64 << 20)))
    with pytest.raises(GapscopeError, match="more than 200 times its size"):
        list(json_rows(file, BadRows(skip=True)))
    # Real rows of every request's chunks pack to a thirtieth; that is no bomb.
    assert len(rows_of(tmp_path, gzip.compress(LINES))[0]) == len(ROWS)


# -- tables ----------------------------------------------------------------------------------------------------


def test_tables_with_faults(tmp_path: Path) -> None:
    rows, bad = table_of(tmp_path, b'a,b\n1,"x\ny"\n2\n3,4,5\n6,7\n\n8,9\n')
    assert [row["a"] for row in rows] == ["1", "6", "8"]
    assert rows[0]["b"] == "x\ny"
    assert bad.count == 2
    assert "line 4: 1 cells where the head has 2" in bad.examples[0]
    with pytest.raises(GapscopeError, match="10,000 columns, 2,000 at most"):
        table_of(tmp_path, ",".join(f"c{n}" for n in range(10_000)).encode() + b"\n")
    with pytest.raises(GapscopeError, match="names the column 'a' twice"):
        table_of(tmp_path, b"a,b,a\n")
    with pytest.raises(GapscopeError, match="is empty"):
        table_of(tmp_path, b"")
    with pytest.raises(GapscopeError, match="line 1: "):
        table_of(tmp_path, b'"a"b,c\n1,2\n')


def test_an_open_quote_counts_every_line_that_it_takes(tmp_path: Path) -> None:
    lines = [f"{n},x" for n in range(10)]
    lines[4] = '4,"x'
    rows, bad = table_of(tmp_path, ("a,b\n" + "\n".join(lines) + "\n").encode())
    assert len(rows) == 4
    assert bad.count == 6
    assert bad.examples[0].startswith("given lines 6 to 11: ")


# -- folders ---------------------------------------------------------------------------------------------------


def test_what_is_no_file_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.json").write_text("{}")
    os.mkfifo(folder / "pipe")
    (folder / "gone").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    (folder / "again").symlink_to(folder)
    (folder / "same.json").symlink_to(folder / "sub" / "a.json")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(folder)
        server.bind("sock")
        with open_intake(folder, tmp_path / "scratch") as intake:
            assert [file.name for file in intake.files] == ["same.json", "sub/a.json"]
            assert dict(intake.left_out) == {
                "again": "a link to a folder",
                "gone": "a link to nothing (No such file or directory)",
                "loop": "a link to nothing (Too many levels of symbolic links)",
                "pipe": "a pipe",
                "sock": "a socket",
            }
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: None, "does not exist: give the folder"),
        (lambda p: os.mkfifo(p), "is a pipe: give the folder"),
        (lambda p: p.symlink_to("/dev/zero"), "is a device: give the folder"),
        (lambda p: p.symlink_to(p), "cannot be read .Too many levels"),
        (lambda p: p.mkdir(), "holds no file"),
        (lambda p: p.write_bytes(b""), "given: it is empty"),
        (lambda p: p.write_bytes(gzip.compress(b"")), "given: it is empty"),
        (lambda p: p.write_bytes(gzip.compress(b"abc")[:10]), "given: the gzip stream ends here"),
        (lambda p: p.write_bytes(b'{"a": 1'), "given: it looks like JSON, and is not JSON"),
        (lambda p: p.write_bytes(b"\xff\xfe{\x00}\x00"), "given: it is UTF-16 text"),
        (lambda p: p.write_bytes(b"PK\x03\x04abcdef"), "a zip archive that is cut off"),
        (lambda p: p.write_bytes(b"\x00" * 999), "in no format that can be imported"),
    ],
)
def test_an_input_that_holds_nothing(tmp_path: Path, make: object, words: str) -> None:
    make(tmp_path / "given")  # type: ignore[operator]
    with pytest.raises(GapscopeError, match=words) as caught:
        import_any(tmp_path / "given", tmp_path / "store")
    assert one_sentence(str(caught.value))
    assert not (tmp_path / "store").exists()


def test_a_folder_of_empty_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / name).touch()
    with pytest.raises(GapscopeError, match="a: it is empty, and 2 more files like it"):
        import_any(tmp_path / "in", tmp_path / "store")


def test_too_many_files_are_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "MAX_FILES", 10)
    for n in range(11):
        (tmp_path / f"{n}").touch()
    with pytest.raises(GapscopeError, match="holds more than 10 files"):
        open_intake(tmp_path)


def test_names_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in (b"a\nb", b"\xff"):
        Path(os.fsdecode(bytes(tmp_path) + b"/in/" + name)).write_text("{}")
    with open_intake(tmp_path / "in") as intake:
        assert sorted(file.name for file in intake.files) == ["\\xff", "a\\x0ab"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("{}")
    (tmp_path / "a").chmod(0)
    with pytest.raises(GapscopeError, match="a cannot be read: Permission denied"):
        open_intake(tmp_path)


def test_an_error_of_the_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("{}")

    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(streams_module, "compression", denied)
    with pytest.raises(GapscopeError, match="a cannot be read: Permission denied"):
        open_intake(tmp_path)


def test_heads_are_held_within_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "HEADS_BYTES", 100_000)
    for n in range(4):
        (tmp_path / f"{n}").write_bytes(bytes([65 + n]) * 70_000)
    with open_intake(tmp_path) as intake:
        heads = [file.head for file in intake.files]
        assert [head[:1] * (1 << 16) for head in heads] == heads
        assert intake.files[0].head is intake.files[0].head
        assert intake.files[3].head is not intake.files[3].head
