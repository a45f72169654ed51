"""Files with every fault, for every format: a run whose counts add up, or one sentence; nothing else, nothing left.

``GAPSCOPE_FUZZ=20`` tries twenty times as much as the few seconds here do.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from engine.bundle import list_bundles, open_bundle
from engine.errors import GapscopeError
from engine.importers import import_any
from tests.engine import fuzz_inputs
from tests.engine.fuzz_inputs import Files

EFFORT = int(os.environ.get("GAPSCOPE_FUZZ", "1"))
INPUTS = fuzz_inputs.inputs()
FOREIGN = [name for name in INPUTS if name not in ("recording", "sweep", "exported-csv", "exported-jsonl")]
"""Ours name the digests of their files and exact columns, which others do not."""

DROPPED = object()
VALUES: dict[str, Any] = {
    "dropped": DROPPED,
    "null": None,
    "text": "many",
    "empty": "",
    "nan": float("nan"),
    "infinite": float("-inf"),
    "huge": 10**30,
    "beyond 63 bits": 2**63,
    "negative": -1,
    "fraction": 0.5,
    "true": True,
    "list": [1, None, "x"],
    "object": {"a": {"b": [1]}},
    "half a pair": "\ud83d",
}


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr("os.fsync", lambda file: None)  # a thousand runs, none of which has to outlive the machine
    yield
    assert list((tmp_path / "temporary").iterdir()) == []


class Store:
    """A store into which one input after the other is imported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.count = 0

    def lay(self, files: Files) -> Path:
        self.count += 1
        given = self.folder / "given" / str(self.count)
        for name, data in files.items():
            path = given / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return given

    def take(self, given: Path, what: str, skip: bool = True) -> list[Any] | str:
        """The runs that come of it, or the sentence that says why there are none."""
        before = sorted(self.store.glob("*"))
        told: list[tuple[float | None, str]] = []
        try:
            ids = import_any(given, self.store, skip_bad_rows=skip, progress=lambda *said: told.append(said))
        except GapscopeError as error:
            message = str(error)
            assert "\n" not in message, what
            assert message.rstrip()[-1:] in ".?)", (what, message)
            assert "Traceback" not in message, what
            result: list[Any] | str = message
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        else:
            result = [open_bundle(self.store / run_id) for run_id in ids]
            for bundle in result:
                check_run(bundle, what)
            assert len(set(ids)) == len(ids) or len(ids) > 1, what
        assert all(share is None or 0 <= share <= 1 for share, _ in told), what
        hidden = [path.name for path in self.store.glob(".*")]
        assert hidden == [], (what, hidden)
        if isinstance(result, str):
            # Runs of the same input that came before the refused one may stay, whole.
            fresh = [path for path in sorted(self.store.glob("*")) if path not in before and path.name != "traces"]
            assert all((path / "run.json").is_file() for path in fresh), what
        return result


def check_run(bundle: Any, what: str) -> None:
    """It is whole, its rows are those that it counts, and it tells times or durations, not both."""
    assert bundle.verify() == [], what
    manifest = bundle.manifest
    checks = {check["check"]: check["verdict"] for check in manifest["qualification"]}
    assert checks.get("ledger_balances", "pass") == "pass", (what, manifest["ledger"])
    assert checks.get("rows_used") != "fail" or left_out(bundle), what
    if "requests" in bundle.tables:
        total = manifest["ledger"]["total"]
        outcomes = [total[word] or 0 for word in ("ok", "error", "rejected", "canceled", "in_flight")]
        assert sum(outcomes) == total["attempted"], what
        requests = bundle.table("requests", ["status", "phase", "first_visible_ns", "first_visible_after_ns"])
        sent = [row for row in requests.to_pylist() if row["status"] != "never_issued"]
        assert len(sent) == total["attempted"], what
        answered = [
            row for row in sent if row["first_visible_ns"] is not None and row["first_visible_after_ns"] is not None
        ]
        assert not answered, f"{what}: times and durations"


def left_out(bundle: Any) -> int:
    """How many rows a run says were left out."""
    failed = [check["detail"] for check in bundle.manifest["qualification"] if check["verdict"] == "fail"]
    counts = [re.search(r"(\d+)(?: of \d+)? rows (?:were )?left out", detail) for detail in failed]
    return max((int(found[1]) for found in counts if found), default=0)


def rows_of(result: list[Any] | str) -> int:
    """Rows of requests, or of passes or KV events where there are none, used or counted as left out."""
    assert not isinstance(result, str), result
    found = 0
    for bundle in result:
        table = next((name for name in ("requests", "passes", "kv_events") if name in bundle.tables), None)
        found += (bundle.rows(table) if table else 0) + left_out(bundle)
    return found


def said(result: list[Any], kind: str) -> bool:
    """Whether it is told that rows are missing: a run has become one without, or a check of a document fails."""
    kinds = {bundle.manifest["kind"] for bundle in result}
    verdicts = {check["verdict"] for bundle in result for check in bundle.manifest["qualification"]}
    return "imported_summary" in kinds or (kind == "document" and "fail" in verdicts)


def contents(result: list[Any] | str) -> list[dict[str, Any]]:
    """Digests of the tables of each run."""
    assert not isinstance(result, str), result
    return [{name: file["content"] for name, file in bundle.manifest["files"].items()} for bundle in result]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


# -- values ----------------------------------------------------------------------------------------------------

Place = tuple[str | int, ...]


def places(value: Any, above: Place = (), depth: int = 6) -> Iterator[Place]:
    """Where values lie: every key, the first and the last item of every list."""
    if depth == 0:
        return
    keys: list[str | int] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = sorted({0, len(value) - 1}) if value else []
    for key in keys:
        yield (*above, key)
        yield from places(value[key], (*above, key), depth - 1)


def altered(document: Any, place: Place, value: Any) -> Any:
    """The document with another value at ``place``."""
    copy = json.loads(json.dumps(document))
    inside = copy
    for key in place[:-1]:
        inside = inside[key]
    if value is DROPPED:
        del inside[place[-1]]
    else:
        inside[place[-1]] = value
    return copy


def kind_of(name: str, data: bytes) -> str:
    if name.endswith((".parquet", ".bin", ".gz")):
        return "binary"
    if name.endswith(".csv"):
        return "table"
    try:
        json.loads(data)
    except ValueError:
        lines = [line for line in data.splitlines() if line.strip()]
        if lines and lines[0].startswith(b"{"):
            return "rows"
        return "text"
    return "document"


Fault = tuple[str, str, Callable[[], bytes]]
"""File, what is done to it, and its bytes then."""


def faulty_values(files: Files, chosen: random.Random) -> list[Fault]:
    """A wrong value: one in a document, one in each row."""
    faults: list[Fault] = []
    for name, data in files.items():
        kind = kind_of(name, data)
        if kind == "document":
            document = json.loads(data)
            for place in places(document):
                faults += [
                    (name, f"{place} {fault}", partial(_faulty_document, document, place, value))
                    for fault, value in VALUES.items()
                ]
        elif kind == "rows":
            rows = [json.loads(line) for line in data.splitlines() if line.strip()]
            for fault, value in VALUES.items():
                for seed in range(20):
                    faults.append((name, f"{fault} {seed}", partial(_faulty_rows, rows, value, seed)))
        elif kind == "table":
            table = list(csv.reader(io.StringIO(data.decode())))
            for cell in CELLS:
                for seed in range(20):
                    faults.append((name, f"{cell!r} {seed}", partial(_faulty_table, table, cell, seed)))
    return chosen.sample(faults, len(faults))


CELLS = ("", "many", "nan", "-inf", str(10**30), "-1", "0.5", "True", "[1, null]", '"', "1e400")


def _faulty_document(document: Any, place: Place, value: Any) -> bytes:
    return json.dumps(altered(document, place, value)).encode()


def _faulty_rows(rows: list[Any], value: Any, seed: int) -> bytes:
    chosen = random.Random(seed)
    faulty = [altered(row, chosen.choice(list(places(row))), value) for row in rows]
    return b"".join(json.dumps(row).encode() + b"\n" for row in faulty)


def _faulty_table(table: list[list[str]], cell: str, seed: int) -> bytes:
    chosen = random.Random(seed)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for place, row in enumerate(table):
        faulty = list(row)
        if place and faulty:
            faulty[chosen.randrange(len(faulty))] = cell
        writer.writerow(faulty)
    return out.getvalue().encode()


def some(faults: list[Fault], name: str) -> list[Fault]:
    """As many of them as there is time for: recordings are larger than inputs made by hand."""
    return faults[: (6 if "/" in name else 20) * EFFORT]


@cache
def _seed(name: str) -> int:
    return zlib.crc32(name.encode())


@pytest.mark.parametrize("name", INPUTS)
def test_faulty_values(store: Store, name: str) -> None:
    """Rows that say nothing are left out and counted; nothing else is lost."""
    files = INPUTS[name]
    whole = rows_of(store.take(store.lay(files), name))
    for file, fault, faulty in some(faulty_values(files, random.Random(_seed(name))), name):
        what = f"{name}: {file} {fault}"
        result = store.take(store.lay({**files, file: faulty()}), what)
        if not isinstance(result, str):
            assert rows_of(result) >= whole or said(result, kind_of(file, files[file])), what


# -- files -----------------------------------------------------------------------------------------------------


def _zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


SAME: dict[str, Callable[[str, bytes], bytes]] = {
    "CRLF": lambda name, data: data if kind_of(name, data) == "binary" else data.replace(b"\n", b"\r\n"),
    "mark": lambda name, data: data if kind_of(name, data) == "binary" else b"\xef\xbb\xbf" + data,
    "gzip": lambda name, data: data if kind_of(name, data) == "binary" else gzip.compress(data),
    "zstd": lambda name, data: data if kind_of(name, data) == "binary" else _zstd(data),
    "CR": lambda name, data: data.replace(b"\n", b"\r") if kind_of(name, data) == "rows" else data,
}


@pytest.mark.parametrize("name", [*FOREIGN, "exported-csv", "exported-jsonl"])
def test_the_same_in_another_wrapping(store: Store, name: str) -> None:
    files = INPUTS[name]
    expected = contents(store.take(store.lay(files), name))
    for how, change in SAME.items():
        given = store.lay({file: change(file, data) for file, data in files.items()})
        assert contents(store.take(given, f"{name}: {how}")) == expected, how
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.add(store.lay(files), arcname=".")
    given = store.lay({"in.tgz": packed.getvalue()})
    assert contents(store.take(given / "in.tgz", f"{name}: tar")) == expected


def damaged(files: Files, chosen: random.Random) -> list[Fault]:
    """The bytes cut off, disturbed, doubled, shuffled, empty."""
    faults: list[Fault] = []
    for name, data in files.items():
        for share in range(1, 16):
            place = len(data) * share // 16
            faults += [
                (name, f"cut at {place}", partial(bytes, data[:place])),
                (name, f"byte {place} disturbed", partial(bytes, data[:place] + b"7" + data[place + 1 :])),
                (name, f"nothing at {place}", partial(bytes, data[:place] + bytes(20) + data[place + 20 :])),
            ]
        faults += [(name, how, partial(change, data)) for how, change in WHOLE.items()]
        if kind_of(name, data) in ("rows", "table"):
            head = kind_of(name, data) == "table"
            faults += [(name, how, partial(_lines_in, data, head, change)) for how, change in LINES.items()]
    return chosen.sample(faults, len(faults))


WHOLE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "noise": lambda data: random.Random(1).randbytes(500),
    "UTF-16": lambda data: b"\xff\xfe" + data.decode("utf-8", "replace").encode("utf-16-le"),
}
LINES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "backwards": lambda lines: lines[::-1],
    "no rows": lambda lines: [],
    "each twice": lambda lines: [line for line in lines for _ in range(2)],
}


def _lines_in(data: bytes, head: bool, change: Callable[[list[bytes]], list[bytes]]) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(lines[:head] + change(lines[head:]))


@pytest.mark.parametrize("name", INPUTS)
def test_damaged_files(store: Store, name: str) -> None:
    files = INPUTS[name]
    whole = rows_of(store.take(store.lay(files), name))
    for file, damage, data in some(damaged(files, random.Random(_seed(name) + 1)), name):
        what = f"{name}: {file} {damage}"
        given = store.lay({**files, file: data()})
        result = store.take(given, what)
        if damage in ("backwards", "each twice") and not isinstance(result, str):
            assert rows_of(result) >= whole, what
        store.take(given, what, skip=False)


def deeper(value: Any, change: Callable[[Any], Any]) -> Any:
    """``change`` applied to every object and list, innermost first."""
    if isinstance(value, dict):
        value = {key: deeper(inner, change) for key, inner in value.items()}
    elif isinstance(value, list):
        value = [deeper(inner, change) for inner in value]
    return change(value)


def _doubled(value: Any) -> Any:
    return value * 2 if isinstance(value, list) and value and isinstance(value[0], dict) else value


def _rewritten(name: str, data: bytes, change: Callable[[Any], Any]) -> bytes:
    kind = kind_of(name, data)
    if kind == "document":
        return json.dumps(change(json.loads(data))).encode()
    if kind == "rows":
        return b"".join(json.dumps(change(json.loads(line))).encode() + b"\n" for line in data.splitlines() if line)
    return data


@pytest.mark.parametrize("name", INPUTS)
def test_requests_that_are_there_twice(store: Store, name: str) -> None:
    """Ids repeat inside documents: each of their requests is used, or left out and counted."""
    files = INPUTS[name]
    whole = rows_of(store.take(store.lay(files), name))
    twice = {file: _rewritten(file, data, partial(deeper, change=_doubled)) for file, data in files.items()}
    result = store.take(store.lay(twice), f"{name}: twice")
    assert isinstance(result, str) or rows_of(result) >= whole


@pytest.mark.parametrize("name", FOREIGN)
def test_fields_that_nobody_knows(store: Store, name: str) -> None:
    """A newer version of a tool writes more: the requests are the same."""
    files = INPUTS[name]
    more = {
        file: _rewritten(file, data, lambda row: {**row, "x_unknown": {"a": [1]}} if isinstance(row, dict) else row)
        for file, data in files.items()
    }
    found = [contents(store.take(store.lay(given), f"{name}: more")) for given in (files, more)]
    tables = [[run.get("requests.parquet") for run in runs] for runs in found]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("name", INPUTS)
def test_a_canceled_import_leaves_nothing(store: Store, name: str) -> None:
    given = store.lay(INPUTS[name])
    with pytest.raises(GapscopeError, match="canceled"):
        import_any(given, store.store, cancel=lambda: True)
    assert list_bundles(store.store) == [] if store.store.exists() else True
    assert [path for path in store.store.glob("*") if path.name != "traces"] == []
