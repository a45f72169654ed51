"""How things look: one encoding of provenance everywhere, number formats, axes.

Colours are fixed by role and told apart by dash and marker as well, so that greyscale print and colour-blind readers
cope. Better and worse are told by sign and word, tinted blue to orange; red against green is never used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Role:
    """One side of a comparison: its colour in both themes, dash and marker, and the colour's name in Markdown."""

    name: str
    light: str
    dark: str
    dash: str
    symbol: str
    glyph: str  # stands for line and marker where there is only text
    word: str

    def colour(self, dark: bool) -> str:
        """The colour in the theme that is on."""
        return self.dark if dark else self.light

    def ink(self, dark: bool) -> str:
        """The colour of words in the theme that is on: a line may be fainter than text."""
        return self.colour(dark) if dark else INK.get(self.light, self.light)


INK = {"#D55E00": "#C25400"}
"""Of lines that are too faint for text on white; the text colours of the theme say the same."""

ROLES: tuple[Role, ...] = (
    Role("measured", "#0072B2", "#56B4E9", "solid", "circle", "━", "blue"),
    Role("replay", "#D55E00", "#E69F00", "dash", "diamond", "╍", "orange"),
    Role("candidate 2", "#7B3FA0", "#C79BE0", "dot", "square", "┄", "violet"),
    Role("candidate 3", "#007F5F", "#4FC3A1", "dashdot", "triangle-up", "┅", "green"),
    Role("candidate 4", "#5A5A5A", "#B8B8B8", "longdash", "x", "╌", "gray"),
)
"""The measured run first, then the replays in the order of the pair bar."""
REFERENCE, COMPARED = replace(ROLES[0], name="reference"), replace(ROLES[1], name="compared with it")
"""The same two places where they are not a recording and a replay (``dashboard.compare.rows.places``)."""
REPEAT = Role("repeat", "#3E7E92", "#8CC7D6", "longdashdot", "cross", "┉", "blue")
"""A repeat of the measured run that is not in the pair bar; one that is keeps the role of its place there."""

_MORE = (
    Role("F", "#8A6D00", "#E6C229", "longdashdot", "cross", "╌", "yellow"),
    Role("G", "#A61E69", "#F08BC0", "4px,2px", "hexagon", "┉", "red"),
    Role("H", "#3E7E92", "#8CC7D6", "12px,4px", "star", "┅", "blue"),
)
TOOLS: tuple[Role, ...] = (*(replace(role, name=letter) for role, letter in zip(ROLES, "ABCDE", strict=True)), *_MORE)
"""Runs side by side that play no part of a comparison: each has a letter."""

DIVERGING = ((0.0, "#0B5A8A"), (0.25, "#7FB4D6"), (0.5, "#F2F0EC"), (0.75, "#EDA66F"), (1.0, "#B34700"))
"""Blue: the replay is lower; orange: it is higher."""
DIVERGING_DARK = ((0.0, "#7CC4F0"), (0.25, "#37718F"), (0.5, "#2A2A2E"), (0.75, "#96591F"), (1.0, "#F0A640"))
SEQUENTIAL = ((0.0, "#EEF4F9"), (0.5, "#6FA8CE"), (1.0, "#0B4A75"))
SEQUENTIAL_DARK = ((0.0, "#1B2430"), (0.5, "#33729A"), (1.0, "#9AD3F5"))

CLASSES: dict[str, tuple[str, str]] = {
    "prefill_only": ("#8A4B5C", "#DDA3B1"),
    "mixed": ("#B8860B", "#F0C75E"),
    "decode_only": ("#4A6A8A", "#9DB8D2"),
    "idle": ("#8F8F8F", "#6A6A6A"),
}
"""Colours of pass classes where the side is told by position, not by colour."""

PARTS: tuple[tuple[str, str], ...] = (("#5E6B74", "#A9B7C0"), ("#B09A6B", "#D9C79A"), ("#8A4B5C", "#DDA3B1"))
"""Colours of the parts of a gap: of none of the sides."""

RESOLUTION: dict[str, tuple[str, str]] = {
    "exact": ("#0B4A75", "#9AD3F5"),
    "interpolated": ("#5596C4", "#4A90BF"),
    "analytic": ("#8C7AA9", "#B7A5D6"),
    "clamped": ("#D67A22", "#D08A4A"),
    "extrapolated": ("#BF5B1C", "#E89B4F"),
    "refused": ("#8A2F00", "#F2B04A"),
}
"""Best first."""
RESOLUTION_SYMBOL: dict[str, str] = {
    "exact": "circle",
    "interpolated": "circle-open",
    "analytic": "square-open",
    "clamped": "triangle-up",
    "extrapolated": "diamond",
    "refused": "x",
}
"""The second cue of a resolution."""

NOISE = ("rgba(128,128,136,0.26)", "rgba(128,128,136,0.13)")
"""Where the measured side may lie when nothing changes; and how far redrawing reaches beyond one or two repeats."""
NOISE_WORDS = "noise of the measured run", "redrawing beyond its repeats"
GRID_LIGHT, GRID_DARK = "#E4E4E7", "#34343A"
HEIGHT = 340


def pick(pair: tuple[str, str], dark: bool) -> str:
    """The colour of a (light, dark) pair."""
    return pair[1] if dark else pair[0]


def fixed(value: float | None, decimals: int = 1) -> str:
    """A number with fixed decimals and thousands separated; a dash where it is unknown."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.{decimals}f}"


def percent(ratio: float | None, decimals: int = 1) -> str:
    """A share as a percentage."""
    return "–" if ratio is None or not math.isfinite(ratio) else f"{100 * ratio:.{decimals}f} %"


def gap(ratio: float | None, decimals: int = 1) -> str:
    """A signed relative difference as a percentage."""
    return "–" if ratio is None or not math.isfinite(ratio) else f"{100 * ratio:+.{decimals}f} %"


def count(value: float | None) -> str:
    """A whole number with thousands separated."""
    return "–" if value is None else f"{value:,.0f}"


def noise_note(first: str = "measured") -> str:
    """What the grey of a chart shows; ``first`` is what the side is called whose noise it is."""
    return (
        f"Grey: where the {first} side itself may lie when nothing changes (repeats, else a bootstrap); light grey: "
        "what redrawing adds to one or two repeats. Only what lies beyond both is outside the noise."
    )
