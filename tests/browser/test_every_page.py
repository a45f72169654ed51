"""Every second page once, by looking.py; the others are in another file, for a second worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from driving import opened
from looking import STREAMLITS, look_at

from dashboard.view import PAGES

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(browser: Any, server: str) -> Iterator[Any]:
    with opened(browser, server, reduced_motion="reduce") as found:
        yield found


@pytest.fixture(scope="module")
def excused() -> dict[str, set[str]]:
    """Rules that were excused, by page."""
    return {}


@pytest.mark.parametrize("name", [*PAGES][::2])
def test_a_page(page: Any, server: str, pair: tuple[str, str], excused: dict[str, set[str]], name: str) -> None:
    wrong, excused[name] = look_at(page, server, name, pair[0])
    assert not wrong, "\n".join(wrong)


def test_what_is_excused_still_occurs(excused: dict[str, set[str]]) -> None:
    if len(excused) < len([*PAGES][::2]):
        pytest.skip("not every page was looked at")
    assert set().union(*excused.values()) == STREAMLITS.keys(), "drop what Streamlit mended"
