"""Phases of a run as shaded bands behind a chart over time."""

from __future__ import annotations

from typing import Any

from dashboard.charts.figures import Figure
from dashboard.frame import Frame, Side

TIME = "s from profile start"
"""Title of an axis that phases can be drawn along."""
WORDS = {"warmup": "warm-up", "cooldown": "cool-down"}
SHADES = {"primer": 0.20, "warmup": 0.11, "profile": 0.0, "grace": 0.11, "drain": 0.17, "cooldown": 0.23}
"""How dark a band is, from 0 to 1: the profile is the ground that the others stand out from."""
APART_S = 1.0
"""By how much a phase of another side may differ before it is said, in seconds."""


def spans(side: Side) -> dict[str, tuple[float, float]]:
    """Start and end of every phase of a run that lasts, in seconds from profile start."""
    return {
        phase.name: (phase.start_ns / 1e9, phase.end_ns / 1e9)
        for phase in side.bundle.phases
        if phase.end_ns > phase.start_ns
    }


def apart(frame: Frame, side: Side) -> dict[str, tuple[float, float]]:
    """The phases of a side that lie elsewhere than those of the measured run, or that it does not have, in seconds."""
    own = spans(frame.measured)
    return {
        name: (start, end)
        for name, (start, end) in spans(side).items()
        if name not in own or max(abs(start - own[name][0]), abs(end - own[name][1])) > APART_S
    }


def shaded(frame: Frame, figure: Figure, *, every: bool = False) -> Figure:
    """The figure with the phases of the measured run behind it, where an x axis is time; ``every``: all of them are.

    Where those of another side begin or end elsewhere, lines in its colour and dash say so.
    """
    layout = figure["layout"]
    axes = sorted((name for name in layout if name.startswith("xaxis")), key=lambda name: int(name[5:] or 1))
    shown = [name for name in axes if every or layout[name].get("title", {}).get("text") == TIME]
    shapes: list[dict[str, Any]] = list(layout.get("shapes", ()))
    for at, name in enumerate(shown):
        own = name[5:]
        for phase, (start, end) in spans(frame.measured).items():
            label = WORDS.get(phase, phase) + (" (chosen)" if phase in frame.population.phases else "")
            shapes.append(
                _shape(own, "rect", start, end)
                | {
                    "line": {"width": 0},
                    "fillcolor": f"rgba(128,128,136,{SHADES.get(phase, 0.11)})",
                    "label": {
                        "text": label if at == 0 else "",
                        "textposition": "top center" if phase == "profile" else "top left",
                        "font": {"size": 10, "color": "#9A9AA2" if frame.dark else "#6F6F76"},
                    },
                }
            )
        for side in frame.replays:
            line = {"color": side.role.colour(frame.dark), "dash": side.role.dash, "width": 1}
            for edge in _edges_apart(frame, side):
                shapes.append(_shape(own, "line", edge, edge) | {"line": line})
    if shapes:
        layout["shapes"] = shapes
    return figure


def _edges_apart(frame: Frame, side: Side) -> list[float]:
    """Where a phase of a side begins or ends and none of the measured run does, in seconds."""
    own = [edge for span in spans(frame.measured).values() for edge in span]
    edges = {edge for span in apart(frame, side).values() for edge in span}
    return sorted(edge for edge in edges if all(abs(edge - one) > APART_S for one in own))


def _shape(axis: str, kind: str, start: float, end: float) -> dict[str, Any]:
    """A shape over the whole height of a panel."""
    ends = {"x0": start, "x1": end, "y0": 0, "y1": 1}
    return {"type": kind, "layer": "below", "xref": f"x{axis}", "yref": f"y{axis} domain"} | ends


def said(frame: Frame) -> str:
    """What the bands are, and which phases of other sides lie elsewhere or are not there."""
    own = spans(frame.measured)
    words = [f"Shaded: phases of the {frame.measured.role.name} run."] if own else []
    for side in frame.replays if own else ():
        told = [
            f"{WORDS.get(name, name)} {start:,.1f} to {end:,.1f} s" for name, (start, end) in apart(frame, side).items()
        ]
        told += [f"no {WORDS.get(name, name)}" for name in own if name not in spans(side)]
        words += [f"Of {side.called}, as thin lines: {', '.join(told)}."] if told else []
    return " ".join(words)
