"""A candidate in one cell: value, gap and a word or sign for what the noise says."""

from __future__ import annotations

import pytest

from dashboard.charts.comparison.cells import cell, number, short, signed
from dashboard.compare.noise import Noise, open_words, words_of
from dashboard.compare.rows import NEARLY, REPEAT


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("worse, outside the noise", "worse"),
        ("better, noise unknown", "better, noise?"),
        (words_of("inside", None), "~"),
        (words_of("outside", None), "outside"),
        (open_words(Noise("repeats", 96.0, 104.0, 1)), "open"),
        (f"{NEARLY}, outside the noise", NEARLY),
        (REPEAT, ""),
        ("same", "same"),
        ("not comparable", "not comparable"),
    ],
)
def test_a_state_is_a_word_or_a_sign(state: str, said: str) -> None:
    assert short(state) == said


def test_a_cell_says_only_what_is_known() -> None:
    assert cell("227.0", "+5.7 %", "worse, outside the noise") == "227.0 · +5.7 % worse"
    assert cell("227.0", "+5.7 %", "~ inside the noise", base="214.7") == "214.7 → 227.0 · +5.7 % ~"
    assert cell("209.6", "-2.4 %", REPEAT) == "209.6 · -2.4 %"
    assert cell("", "", "not comparable") == "–"
    assert cell("214.7", "+0.0 %", f"{NEARLY}, outside the noise") == f"214.7 · {NEARLY}"


def test_numbers_have_thousands_and_changes_a_sign() -> None:
    assert (number(1234.56, 1), number(None, 1)) == ("1,234.6", "")
    assert (signed(0.04), signed(-0.04), signed(5.66, 1, " %"), signed(None)) == ("+0.0", "+0.0", "+5.7 %", "")
