"""The list of what is on a long page: every link leads to a chart that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Open
from streamlit.testing.v1 import AppTest

from dashboard.shell.contents import NAME_CHARS, entries
from dashboard.view import PAGES


def links(app: AppTest) -> list[tuple[str, str]]:
    """Name and target of every link of the list; none where there is no list."""
    lists = [one.value for one in app.markdown if one.value.startswith(":small[On this page: ")]
    return [(name, to) for words in lists for name, to in re.findall(r"\[((?:\\.|[^\]\\])+)\]\(#([\w-]+)\)", words)]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_charts_of_the_page(opened: Open, paired: Path, page: str) -> None:
    app = opened(paired, page)
    assert not app.exception
    anchors = [found[1] for one in app.get("html") if (found := re.search(r'id="(chart-[\w-]+)"', one.proto.body))]
    assert len(anchors) == len(set(anchors))
    told = links(app)
    assert {to for _, to in told} <= set(anchors)
    assert bool(told) == (len(anchors) > 3)
    if page in ("verdict", "cohort", "percentiles", "passes", "cache_events", "boundaries"):
        assert len(told) > 3


def test_charts_of_one_name_are_listed_once(opened: Open, paired: Path) -> None:
    app = opened(paired, "cache_events", r=[one.name for one in sorted(paired.glob("*-*")) if "ample8-r" in one.name])
    assert [name for name, _ in links(app)].count("Reuse per source\\-turn") == 1


def test_a_name_is_the_beginning_of_a_title() -> None:
    class One:
        def __init__(self, title: str) -> None:
            self.title, self.anchor = title, f"chart-{len(title)}"

    titles = ["TTFT (ms): share at or below", "TTFT (ms), side by side", "KV pool over time, whole capture", "x" * 90]
    assert [name for _, name in entries([One(title) for title in titles])] == [  # type: ignore[list-item]
        "TTFT (ms)",
        "TTFT (ms), side by side",
        "KV pool over time",
        "x" * (NAME_CHARS - 1) + "…",
    ]
