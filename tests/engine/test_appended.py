"""Documents that were appended to a file, told apart by where lines begin."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from engine.errors import GapscopeError
from engine.importers.clients import appended
from engine.importers.clients.appended import documents
from engine.intake import InputFile, open_intake


def of(path: Path, data: bytes) -> InputFile:
    path.write_bytes(data)
    with open_intake(path) as intake:
        return intake.files[0]


@pytest.mark.parametrize("block", [1 << 20, 100])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_each_document_is_found_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, pack: type
) -> None:
    monkeypatch.setattr(appended, "_BLOCK", block)
    first = json.dumps({"a": 1, "text": 'x\n{"b": 2}', "long": "y" * 300}).encode()
    second = json.dumps({"a": 2, "inside": {"ttfts": [1]}}, indent=2).encode()
    third = json.dumps({"a": 3, "said": '"ttfts": ['}).encode()
    data = b"\xef\xbb\xbf" + first + b"\n" + second + b"\r\n\n" + third + b"\n"
    found = documents(of(tmp_path / "f.json", pack(data)), [b'"ttfts": ['])
    assert [document.read()["a"] for document in found] == [1, 2, 3]
    assert [bool(document.marks) for document in found] == [False, True, False]
    assert [document.name for document in found] == ["f-1", "f-2", "f-3"]
    assert set(found[1].keys) == {"a", "inside"}


def test_lines_may_end_with_a_carriage_return(tmp_path: Path) -> None:
    found = documents(of(tmp_path / "f.json", b'{"a": 1}\r{"a": 2}\r'))
    assert [document.read() for document in found] == [{"a": 1}, {"a": 2}]


def test_one_that_breaks_off_is_told_by_its_place(tmp_path: Path) -> None:
    first, last = documents(of(tmp_path / "f.json", b'{"a": 1}\n{"a": 2'))
    assert first.read() == {"a": 1}
    with pytest.raises(GapscopeError, match=r"f\.json document 2 is not JSON .* cut off"):
        last.read()


def test_a_single_document_needs_no_place(tmp_path: Path) -> None:
    (only,) = documents(of(tmp_path / "f.json", b'{"a": 1}'))
    assert (only.where, only.name, only.among) == ("f.json", "f", "")


def test_a_compressed_file_that_breaks_off(tmp_path: Path) -> None:
    data = gzip.compress(json.dumps({"a": list(range(5000))}).encode())
    (only,) = documents(of(tmp_path / "f.json.gz", data[: len(data) // 2]))
    with pytest.raises(GapscopeError, match=r"f\.json"):
        only.read()
