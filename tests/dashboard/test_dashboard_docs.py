"""docs/dashboard.md names every page and every parameter of a link."""

from __future__ import annotations

import re

from dashboard.charts.style import ROLES
from dashboard.view import KNOB_PREFIX, PAGES, PARAMS, SHARED
from engine.stores import PROJECT

TEXT = (PROJECT / "docs" / "dashboard.md").read_text(encoding="utf-8")


def table_after(heading: str) -> dict[str, str]:
    """First and second cell of the rows of the first table after a heading."""
    body = TEXT.split(f"## {heading}\n", 1)[1]
    rows = re.findall(r"^\|([^|]+)\|([^|]+)\|", body.split("\n## ")[0], flags=re.M)
    return {first.strip(): second.strip() for first, second in rows if not first.startswith("-")}


def test_every_page_has_its_question() -> None:
    assert set(PAGES.values()) <= set(table_after("Pages"))


def test_every_parameter_stands_in_the_row_of_its_owner() -> None:
    told = {owner: re.findall(r"`([a-z_]+)`", names) for names, owner in table_after("Links").items()}
    for param in PARAMS.values():
        if not param.name.startswith(KNOB_PREFIX):
            owner = "every page" if param.owner == SHARED else PAGES[param.owner]
            assert param.name in told[owner], param.name


def test_the_colours_are_those_of_the_code() -> None:
    for role in ROLES:
        assert f"`{role.light}` / `{role.dark}`" in table_after("The frame")[role.name]
