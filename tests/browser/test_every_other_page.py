"""The pages that test_every_page.py leaves to a second worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from driving import opened
from looking import look_at

from dashboard.view import PAGES

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(browser: Any, server: str) -> Iterator[Any]:
    with opened(browser, server, reduced_motion="reduce") as found:
        yield found


@pytest.mark.parametrize("name", [*PAGES][1::2])
def test_a_page(page: Any, server: str, pair: tuple[str, str], name: str) -> None:
    wrong, _ = look_at(page, server, name, pair[0])
    assert not wrong, "\n".join(wrong)
