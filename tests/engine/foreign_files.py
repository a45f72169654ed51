"""Files of other tools, written by hand, and what becomes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.bundle import Bundle, open_bundle
from engine.importers import Options, Plan, plan_import
from engine.intake import open_intake


def write(folder: Path, files: dict[str, Any]) -> Path:
    """Text as it is, a list of rows under ``*.jsonl`` as JSON Lines, everything else as a JSON document."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        elif name.endswith(".jsonl"):
            path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
        else:
            path.write_text(json.dumps(content), encoding="utf-8")
    return folder


def plan(folder: Path) -> Plan:
    with open_intake(folder) as intake:
        return plan_import(intake)


def runs(folder: Path, store: Path, **options: Any) -> list[Bundle]:
    with open_intake(folder) as intake:
        return [open_bundle(store / part.run(store, Options(**options))) for part in plan_import(intake).parts]


def rows(bundle: Bundle, table: str = "requests") -> list[dict[str, Any]]:
    found = bundle.table(table)
    assert found is not None
    return found.to_pylist()


def by_id(bundle: Bundle) -> dict[str, dict[str, Any]]:
    return {row["request_id"]: row for row in rows(bundle)}


def figures(bundle: Bundle, scope: str = "run") -> dict[tuple[str, str], float]:
    return {(r["name"], r["statistic"]): r["value"] for r in rows(bundle, "reported") if r["scope"] == scope}


def checks(bundle: Bundle) -> dict[str, tuple[str, str]]:
    return {c["check"]: (c["verdict"], c["detail"]) for c in bundle.manifest["qualification"]}


def verdict(bundle: Bundle, check: str) -> str:
    return checks(bundle)[check][0]


def fact(bundle: Bundle, group: str, field: str) -> Any:
    return bundle.identity.value(group, field)
