"""docs/importers.md: its example runs, and its table of checks is the code's."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recording_folder import Folder, write_sweep

from engine.bundle import open_bundle
from engine.errors import GapscopeError
from engine.importers import Importer, import_any

TEXT = (Path(__file__).parents[2] / "docs" / "importers.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_worked_example_imports_its_file(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    module, entry = blocks("python")
    exec(compile(module, "docs/importers.md", "exec"), names)
    (importer,) = eval(entry, {"Importer": Importer, "csv_log": SimpleNamespace(**names)})
    (example,) = blocks("csv")
    log = tmp_path / "log.csv"
    log.write_text(example)
    assert importer.recognises(log)
    assert not importer.recognises(tmp_path)
    bundle = open_bundle(tmp_path / "store" / importer.run(log, tmp_path / "store"))
    requests = bundle.table("requests")
    assert requests is not None
    assert requests["first_visible_ns"].to_pylist() == [250_000_000, None]
    assert bundle.ledger is not None
    assert (bundle.ledger["profile"]["ok"], bundle.ledger["profile"]["error"]) == (1, 1)
    log.write_text(example + "c,2.0,,,x,1,0\n")
    with pytest.raises(GapscopeError, match=r"log\.csv line 4"):
        importer.run(log, tmp_path / "store")
    partial = open_bundle(tmp_path / "store" / importer.run(log, tmp_path / "store", skip_bad_rows=True))
    assert {c.check: c.detail for c in partial.qualification}["rows_used"] == "left out lines: [4]"


def test_every_check_is_explained(tmp_path: Path) -> None:
    table = TEXT.partition("### Checks")[2].partition("### ")[0]
    explained = {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    folder = Folder()
    store = tmp_path / "store"
    full = import_any(folder.write(tmp_path / "rec"), store)
    (tmp_path / "rec" / "kv_events.jsonl.gz").unlink()
    runs = [full, import_any(tmp_path / "rec", store), import_any(write_sweep(tmp_path / "probe"), store)]
    asked = {c.check for run in runs for c in open_bundle(store / run).qualification}
    assert asked - {"ledger_balances"} == explained
