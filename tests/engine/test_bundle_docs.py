"""docs/bundle.md says what the code does, column by column."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from engine.bundle import LABELS, manifest
from engine.bundle.rows import ROW_GROUP
from engine.bundle.schema import CLOCKS, KINDS, REQUIRED_TABLES, TABLES
from engine.identity import FIELDS

DOC = (Path(__file__).parents[2] / "docs" / "bundle.md").read_text()


def section(heading: str) -> str:
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^##|\Z)", DOC, re.MULTILINE | re.DOTALL)
    assert found, f"docs/bundle.md has no section {heading!r}"
    return found[1]


def rows(text: str, which: int = 0) -> list[list[str]]:
    """Cells of one of the tables in a section, without its head."""
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in tables[which].splitlines()[2:]]


def codes(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def in_words(type_: pa.DataType) -> str:
    if pa.types.is_dictionary(type_):
        return "string, repeats"
    if pa.types.is_list(type_):
        return f"list<{in_words(type_.value_type)}>"
    if pa.types.is_struct(type_):
        return "struct<" + ", ".join(f"{f.name}: {in_words(f.type)}" for f in type_) + ">"
    return {"double": "float64"}.get(str(type_), str(type_))


@pytest.mark.parametrize("name", TABLES)
def test_columns(name: str) -> None:
    table, text = TABLES[name], section(f"### {name}")
    documented = [(codes(column)[0], column.endswith("*"), type_, clock) for column, type_, clock, _ in rows(text)]
    assert documented == [
        (f.name, f.name in table.required, in_words(f.type), CLOCKS.get(name, {}).get(f.name, "")) for f in table.schema
    ]
    enums = {codes(column)[0]: codes(meaning.rpartition(":")[2]) for column, _, _, meaning in rows(text)}
    for column, values in table.enums.items():
        assert enums[column] == list(values)
    assert all(meaning for *_, meaning in rows(text))
    (order,) = re.findall(r"Sorted by (.*)\.$", text, re.MULTILINE)
    assert codes(order) == list(table.sorted_by)


def test_every_table_is_there_in_order() -> None:
    assert re.findall(r"^### (\w+)$", DOC, re.MULTILINE) == list(TABLES)
    assert f"row groups of {ROW_GROUP:,} rows" in DOC


def test_kinds_and_what_they_require() -> None:
    documented = {codes(kind)[0]: tuple(codes(tables)) for kind, _, tables in rows(section("# Run bundle"))}
    assert documented == REQUIRED_TABLES
    assert tuple(documented) == KINDS


def test_keys_of_the_manifest_and_labels() -> None:
    documented = rows(section("## run.json"))
    assert [codes(key)[0] for key, *_ in documented] == list(manifest._SHAPE)
    assert {codes(key)[0] for key, _, part in documented if not part} == set(manifest._OUTSIDE_THE_ID)
    assert {codes(label)[0] for label, _ in rows(section("## run.json"), 1)} == set(LABELS)


def test_fields_of_the_identity() -> None:
    documented = {}
    for group, fields in rows(section("## Identity")):
        documented[codes(group)[0]] = [
            (name, bool(flag)) for name, flag in re.findall(r"`(\w+)`( \(\*regime\*\))?", fields)
        ]
    assert documented == {g: [(n, s.regime) for n, s in fields.items()] for g, fields in FIELDS.items()}
