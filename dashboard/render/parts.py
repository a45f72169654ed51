"""The parts of the gaps of the means as cells of a table and as JSON values."""

from __future__ import annotations

from typing import Any

from dashboard.compare import Comparison, judged
from dashboard.compare.decomposition import Decomposition, Part
from dashboard.render.tables import NOTHING

PARTS_HEAD = ("metric", "part", "ms", "share of gap", "noise, ms", "state")


def parts_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Each gap and, under it, its parts, in the order of PARTS_HEAD; those that are not recorded are in the notes."""
    rows: list[tuple[str, ...]] = []
    for found in comparison.decompositions:
        if found.gap is None:
            continue
        mean = comparison.row(f"{found.metric}.mean")
        rows.append((found.label, "gap of the mean", f"{found.gap:+,.2f}", "100%", "", judged(mean)))
        rows += [_cells(found, part) for part in found.parts if not _silent(part)]
    return rows


def parts_notes(comparison: Comparison) -> list[str]:
    """What the parts are over, and what could not be told apart; one sentence for the metrics that it is true of."""
    notes: dict[str, list[str]] = {}
    for found in comparison.decompositions:
        notes.setdefault(found.note, []).append(found.label)
    return [f"{', '.join(names)}: {note}" for note, names in notes.items()]


def _silent(part: Part) -> bool:
    """Whether a part says nothing here: it is not recorded, as a note says, or all was split."""
    return part.value_ms is None or (part.name == "unsplit" and part.value_ms == 0)


def _cells(found: Decomposition, part: Part) -> tuple[str, ...]:
    """One part as text, in the order of PARTS_HEAD."""
    share = f"{round((part.value_ms or 0.0) / found.gap, 2) + 0.0:+.0%}" if found.gap else NOTHING
    noise = NOTHING if part.low_ms is None or part.high_ms is None else f"{part.low_ms:+,.2f}..{part.high_ms:+,.2f}"
    return "", part.label, f"{part.value_ms or 0.0:+,.2f}", share, noise, part.state


def decomposition_json(found: Decomposition) -> dict[str, Any]:
    """A gap and its parts in ms, unrounded."""
    return {
        "metric": found.metric,
        "measured": found.measured,
        "replay": found.replay,
        "gap": found.gap,
        "n": list(found.n),
        "shared": found.shared,
        "note": found.note,
        "parts": [
            {
                "part": part.name,
                "ms": part.value_ms,
                "low": part.low_ms,
                "high": part.high_ms,
                "state": part.state,
                "rests_on": part.rests_on,
            }
            for part in found.parts
        ],
    }
