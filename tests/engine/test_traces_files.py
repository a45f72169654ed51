"""What a trace is read from: files, compressed ones, arrays and folders; telling formats by content."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from engine.errors import GapscopeError
from engine.traces import FORMATS, files, find_trace, keep_trace, load_trace, stored_trace
from engine.traces.files import head_of, name_of, rows


def lines(*objects: dict[str, Any]) -> bytes:
    return b"".join(orjson.dumps(one) + b"\n" for one in objects)


ROW = {"input_length": 32, "output_length": 8, "hash_ids": [1, 2]}


@pytest.mark.parametrize(
    ("data", "first"),
    [
        (b'{"a": 1}\n{"b": 2}\n', {"a": 1}),
        (b'\n  {"a": 1}', {"a": 1}),
        (b'[{"a": 1}, {"b": 2}]', {"a": 1}),
        (b'[\n  {\n "a": 1},\n {"b": 2}\n]', {"a": 1}),
        (b'{\n "a": 1\n}\n', {"a": 1}),
        (b'{"a": ', {}),
        (b"[1, 2]", {}),
        (b"[" * 200_000, {}),
        (b'{"a":' * 200_000, {}),
        (b"a,b\n1,2\n", {}),
        (b"", {}),
    ],
)
def test_the_head_holds_the_first_object(data: bytes, first: dict[str, Any]) -> None:
    assert head_of(data).row == first


@pytest.mark.parametrize(
    "data",
    [b'{"a":1}\n\n{"a":2}\n', b'[{"a":1},{"a":2}]', b'[\n{"a":1},\n{"a":2}\n]\n', b' \n[{"a":1},{"a":2}]'],
)
def test_rows_are_lines_or_the_items_of_an_array(data: bytes) -> None:
    assert [row for _, row in rows(Path("t"), data)] == [{"a": 1}, {"a": 2}]


def test_rows_are_numbered_as_an_editor_shows_them() -> None:
    assert [number for number, _ in rows(Path("t"), b'{"a":1}\n\n{"a":2}\n')] == [1, 3]
    with pytest.raises(GapscopeError, match="t, line 2: not valid JSON"):
        list(rows(Path("t"), b'{"a":1}\n{"a":\n{"a":2}\n'))
    assert files.place(Path("t"), b'[{"a":1},{"a":2}]', 2) == "t, item 2"


def test_a_compressed_trace_is_the_same_trace_with_a_digest_of_its_own(tmp_path: Path) -> None:
    plain = tmp_path / "w.jsonl"
    plain.write_bytes(lines(ROW, ROW))
    packed = tmp_path / "w.jsonl.gz"
    packed.write_bytes(gzip.compress(lines(ROW)) + gzip.compress(lines(ROW)))  # as a log that was appended to
    zstd = tmp_path / "named_by_nobody"
    zstd.write_bytes(pa.Codec("zstd").compress(lines(ROW, ROW), asbytes=True))
    one, two, three = (load_trace(path) for path in (plain, packed, zstd))
    assert one.plays == two.plays == three.plays
    assert (one.name, two.name) == ("w", "w")
    assert two.digest == hashlib.sha256(packed.read_bytes()).hexdigest()
    keep_trace(packed, two, [tmp_path])
    assert stored_trace([tmp_path], two.digest) == two


def test_what_unpacks_to_far_too_much_or_breaks_off_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FREE_BYTES", 1 << 20)
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(b" " * (1 << 25)))
    with pytest.raises(GapscopeError, match=r"unpacks to more than \d+ MiB"):
        load_trace(bomb)
    bomb.write_bytes(gzip.compress(lines(ROW, ROW))[:-9])
    with pytest.raises(GapscopeError, match="cannot be unpacked"):
        load_trace(bomb)


def test_a_folder_is_the_rows_of_its_files_by_name_and_is_kept_as_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    a, b, c = ({**ROW, "session_id": name} for name in "abc")
    (folder / "2.jsonl").write_bytes(lines(c))
    (folder / "1.json").write_bytes(orjson.dumps([a, b], option=orjson.OPT_INDENT_2))
    (folder / "0.jsonl.gz").write_bytes(gzip.compress(lines({**a, "session_id": "first"})))
    (folder / "README.md").write_text("what this is")
    (folder / ".hidden").write_bytes(b"{")
    trace = load_trace(folder)
    assert [play.source_trace_id for play in trace.plays] == ["first", "a", "b", "c"]
    keep_trace(folder, trace, [tmp_path])
    assert find_trace([tmp_path], trace.digest).suffix == ".jsonl"
    assert stored_trace([tmp_path], trace.digest) == trace


def test_a_row_of_a_folder_is_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_bytes(lines(ROW, ROW))
    (tmp_path / "2.jsonl").write_bytes(lines(ROW) + b'{"input_length": 3}\n')
    with pytest.raises(GapscopeError, match=r"2\.jsonl, row 2"):
        load_trace(tmp_path)


def test_formats_are_told_by_content_and_listed_where_none_fits(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    for data in (b"hello", b'{"a": 1}\n', b'{"kind": ["meta"]}\n', b"[]"):
        path.write_bytes(data)
        with pytest.raises(GapscopeError, match="no known trace format") as refused:
            load_trace(path)
        assert all(known.NAME in str(refused.value) for known in FORMATS)
    path.write_bytes(b"\n \n")
    with pytest.raises(GapscopeError, match="is empty: expected a trace"):
        load_trace(path)


@pytest.mark.parametrize(
    ("file", "name"), [("w.jsonl", "w"), ("w.jsonl.gz", "w"), ("w", "w"), ("w.1.json.zst", "w.1"), ("w.gz", "w")]
)
def test_a_trace_is_called_by_its_file(file: str, name: str) -> None:
    assert name_of(Path(file)) == name
