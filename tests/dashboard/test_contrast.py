"""Colours can be told from their ground: text at 4.5 to 1, marks of a chart at 3 to 1, in both themes (WCAG 2.2)."""

from __future__ import annotations

import tomllib
from itertools import combinations

import pytest

from dashboard.charts import style
from engine.stores import PROJECT

CONFIG = tomllib.loads((PROJECT / ".streamlit" / "config.toml").read_text(encoding="utf-8"))
GROUND = {theme: CONFIG["theme"][theme]["backgroundColor"] for theme in ("light", "dark")}
TEXT, GRAPHICS = 4.5, 3.0
ROLES = (*style.ROLES, style.REPEAT, *style.TOOLS)


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.2."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_measure_itself() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21.0)
    assert contrast("#767676", "#FFFFFF") == pytest.approx(4.54, abs=0.01)  # the grey of the guidelines


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_colours_of_runs_are_readable_as_lines_and_as_names(role: style.Role) -> None:
    assert contrast(role.light, GROUND["light"]) >= GRAPHICS
    assert contrast(role.dark, GROUND["dark"]) >= GRAPHICS
    assert contrast(role.ink(False), GROUND["light"]) >= TEXT
    assert contrast(role.ink(True), GROUND["dark"]) >= TEXT


@pytest.mark.parametrize("theme", GROUND)
@pytest.mark.parametrize("word", ["blue", "orange", "violet", "green", "gray"])
def test_coloured_text_of_the_theme(theme: str, word: str) -> None:
    assert contrast(CONFIG["theme"][theme][f"{word}TextColor"], GROUND[theme]) >= TEXT


@pytest.mark.parametrize("theme", GROUND)
def test_controls_and_what_stands_on_them(theme: str) -> None:
    primary = CONFIG["theme"][theme]["primaryColor"]
    assert (
        contrast(primary, GROUND[theme]) >= TEXT
    )  # as the label of what is chosen, and under the text of a main button


@pytest.mark.parametrize("table", [style.CLASSES, style.RESOLUTION], ids=["classes", "resolutions"])
def test_colours_of_classes_stand_out_from_the_ground(table: dict[str, tuple[str, str]]) -> None:
    for name, (light, dark) in table.items():
        assert contrast(light, GROUND["light"]) >= GRAPHICS, name
        assert contrast(dark, GROUND["dark"]) >= GRAPHICS, name


def test_roles_differ_in_dash_marker_and_colour() -> None:
    for one, other in combinations(style.ROLES, 2):
        assert one.dash != other.dash
        assert one.symbol != other.symbol
        assert one.glyph != other.glyph
        assert one.light != other.light
