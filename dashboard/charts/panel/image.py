"""A chart that explains itself outside its page: with its title and the identity of its runs inside the picture."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from dashboard.charts import style
from dashboard.charts.figures import Figure
from dashboard.frame import Side

FORMATS = ("png", "svg")
LINE_PX, TITLE_PX, WORDS_PER_LINE = 15, 30, 112
_ROOM = 18
"""Between the words and a legend that needs a second line."""


def captioned(figure: Figure, title: str, lines: Sequence[str], width: int) -> Figure:
    """The figure with a title and, below it, the lines of its strip; taller by what they need.

    Args:
        figure: as the page draws it.
        title: of the chart, with its unit.
        lines: of the strip in plain text; long ones are wrapped. Nothing in them is read as tags.
        width: of the picture, in pixels.
    """
    wrapped = [part for line in lines for part in textwrap.wrap(line, WORDS_PER_LINE)]
    more = TITLE_PX + LINE_PX * len(wrapped) + _ROOM
    layout = figure["layout"]
    margin = layout.get("margin", {})
    return {
        "data": figure["data"],
        "layout": {
            **layout,
            "width": width,
            "height": layout.get("height", style.HEIGHT) + more,
            "margin": {**margin, "t": margin.get("t", 28) + more},
            "title": {
                "text": html.escape(title, quote=False),
                "subtitle": {
                    "text": "<br>".join(html.escape(line, quote=False) for line in wrapped),
                    "font": {"size": 11},
                },
                "font": {"size": 15},
                "x": 0,
                "xref": "container",
                "xanchor": "left",
                "y": 1,
                "yref": "container",
                "yanchor": "top",
                "pad": {"t": 10, "l": 10},
            },
        },
    }


_MARKED = re.compile(r":[a-z-]+\[((?:\\.|[^\]\\])*)\]")
_ESCAPED = re.compile(r"\\(.)")


def plain_strip(lines: Sequence[str]) -> list[str]:
    """The lines of an identity strip without their markup."""
    return [_ESCAPED.sub(r"\1", _MARKED.sub(r"\1", line).replace("**", "")).replace("\u2060", "") for line in lines]


def image_options(key: str, format: str, sides: Sequence[Side], width: int | None = None) -> dict[str, Any]:
    """What the chart's own menu makes of it; the name of the file says which runs it shows."""
    runs = "-".join(side.run_id for side in sides[:2])
    size = {} if width is None else {"width": width}
    return {"filename": f"gapscope-{key}-{runs}", "format": format, "scale": 2 if format == "png" else 1} | size
