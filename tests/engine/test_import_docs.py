"""docs/importers.md: its example runs, and its table of checks is the code's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from recording_folder import Folder, write_sweep

from engine.bundle import Bundle, open_bundle
from engine.errors import GapscopeError
from engine.importers import Options, import_any
from engine.intake import open_intake

TEXT = (Path(__file__).parents[2] / "docs" / "importers.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_worked_example_imports_its_file(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    module, entry = blocks("python")
    exec(compile(module, "docs/importers.md", "exec"), names)
    (importer,) = eval(entry, names)
    (example,) = blocks("csv")
    log = tmp_path / "log.csv"
    log.write_text(example)

    def imported(**options: Any) -> Bundle:
        with open_intake(log) as intake:
            (part,) = importer.find(intake)
            return open_bundle(tmp_path / "store" / part.run(tmp_path / "store", Options(**options)))

    bundle = imported()
    requests = bundle.table("requests")
    assert requests is not None
    assert requests["first_visible_ns"].to_pylist() == [250_000_000, None]
    assert bundle.ledger is not None
    assert (bundle.ledger["profile"]["ok"], bundle.ledger["profile"]["error"]) == (1, 1)
    log.write_text(example + "c,2.0,,,x,1,0\n")
    with pytest.raises(GapscopeError, match=r"log\.csv line 4"):
        imported()
    partial = imported(skip_bad_rows=True)
    assert "1 rows left out: log.csv line 4" in {c.check: c.detail for c in partial.qualification}["rows_used"]
    other = tmp_path / "other.csv"
    other.write_text("id,sent_s\n")
    with open_intake(other) as intake:
        assert importer.find(intake) == []


def test_every_check_is_explained(tmp_path: Path) -> None:
    table = TEXT.partition("### Checks")[2].partition("### ")[0]
    explained = {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    folder = Folder()
    store = tmp_path / "store"
    full = import_any(folder.write(tmp_path / "rec"), store)[0]
    (tmp_path / "rec" / "kv_events.jsonl.gz").unlink()
    runs = [full, import_any(tmp_path / "rec", store)[0], import_any(write_sweep(tmp_path / "probe"), store)[0]]
    told = Folder()
    told.identity |= {"run": "told", "client": {"lateness_ms": {"p99": 0.5}}, "server_rows": {"lost": []}}
    for row in told.requests:
        row["response_id"] = f"cmpl-{row['request_id']}"
    folder_told = told.write(tmp_path / "told")
    (folder_told / "summary.json").write_text("{}")
    runs.append(import_any(folder_told, store)[0])
    told.identity |= {"run": "client", "recorded": "client"}
    alone = told.write(tmp_path / "client")
    for name in ("fpm.jsonl.gz", "kv_events.jsonl.gz"):
        (alone / name).unlink()
    runs.append(import_any(alone, store)[0])
    asked = {c.check for run in runs for c in open_bundle(store / run).qualification}
    assert asked - {"ledger_balances"} == explained
