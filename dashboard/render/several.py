"""Several replays beside one measured run as text: one table for all, then what each pair claims."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from dashboard.compare import LABELS, Comparison
from dashboard.compare.nearest import REPEAT_LABELS, Nearest, nearest, nearest_claim, short_names
from dashboard.compare.rows import Row
from dashboard.metrics import headline_numbers
from dashboard.render.comparison import comparison_json, reproduce, shown_gap, shown_noise, shown_state
from dashboard.render.tables import grid, section, shown_unit, shown_value


def comparisons_text(found: Sequence[Comparison], form: str) -> str:
    """Comparisons of one measured run with several others as ``table``, ``markdown`` or ``json``."""
    closest = nearest_of(found)
    if form == "json":
        return json.dumps(comparisons_json(found, closest), indent=1, ensure_ascii=False)
    markdown = form == "markdown"
    mark, title, bullet = ("# ", "## ", "- ") if markdown else ("", "", "  ")
    names = names_of(found)
    parts = [f"{mark}measured {found[0].measured}, compared with {', '.join(one.replay for one in found)}"]
    told = [f"population: {found[0].population.words}", f"percentiles: {found[0].estimator.words}"]
    told.append(f"rates: {found[0].window.words}")
    told += [f"{name}: {LABELS[one.label]}, {one.replay}" for name, one in zip(names, found, strict=True)]
    parts.append("\n".join(bullet + line for line in told))
    parts.append(_numbers(found, names, closest, markdown))
    if closest:
        headline = headline_numbers(found[0].window)
        counted = [one for one in closest if str(one.key) in headline]
        said = nearest_claim({at: names[at] for at in competing(found)}, counted)
        parts.append(section(title, "Nearer to the measured run", [bullet + line for line in said]))
    for name, one in zip(names, found, strict=True):
        said = [*one.claim, *(f"warning: {warning.text}" for warning in one.warnings)]
        said += [f"gate {r.gate.text}: {r.verdict}, {r.reason}" for r in one.gates]
        parts.append(section(title, name, [bullet + sentence for sentence in said]))
    command = again(found)
    parts.append(f"    {command}" if markdown else f"again: {command}")
    return "\n\n".join(parts)


def names_of(found: Sequence[Comparison]) -> list[str]:
    """What the columns of the replays are called: the name of each, with its digest where two share one."""
    return short_names([one.replay for one in found])


def competing(found: Sequence[Comparison]) -> list[int]:
    """Places of the replays that can be nearer than another: no repeats of the measured run, no unlike pairs."""
    return [at for at, one in enumerate(found) if one.label not in REPEAT_LABELS and not one.identity.regime_differs]


def nearest_of(found: Sequence[Comparison]) -> list[Nearest]:
    """Of every number, which replay is nearest; empty where fewer than two compete."""
    places = competing(found)
    if len(places) < 2:
        return []
    told = [nearest([found[at].rows[row] for at in places]) for row in range(len(found[0].rows))]
    return [one if one.at is None else Nearest(one.key, places[one.at]) for one in told]


def _numbers(found: Sequence[Comparison], names: Sequence[str], closest: Sequence[Nearest], markdown: bool) -> str:
    own = found[0].population.matched  # the members, and so the measured value, are those of each pair
    head = ["metric", "statistic", "unit", "better"] + ([] if own else ["measured", "noise"])
    for name in names:
        head += [*([f"measured, {name}"] if own else []), name, "gap", "state", "n"]
    head += ["nearest"] if closest else []
    rows = []
    for at, first in enumerate(found[0].rows):
        cells = [
            first.key.label,
            first.key.statistic.replace("_", " "),
            shown_unit(first.key.unit),
            first.key.direction,
        ]
        cells += [] if own else [shown_value(first.measured.value, first.key.unit), shown_noise(first)]
        for one in found:
            cells += _cells(one.rows[at], own)
        if closest:
            place = closest[at].at
            cells.append(closest[at].why if place is None else names[place])
        rows.append(tuple(cells))
    return grid(head, rows, markdown)


def _cells(row: Row, own: bool) -> list[str]:
    measured = [shown_value(row.measured.value, row.key.unit)] if own else []
    return [
        *measured,
        shown_value(row.replay.value, row.key.unit),
        shown_gap(row),
        shown_state(row),
        f"{row.replay.n:,}",
    ]


def comparisons_json(found: Sequence[Comparison], closest: Sequence[Nearest]) -> dict[str, Any]:
    """Every pair as ``gapscope compare`` of one replay gives it, and which replay is nearest; numbers are unrounded."""
    return {
        "measured": found[0].measured,
        "replays": [comparison_json(one) for one in found],
        "nearest": [
            {
                "metric": one.key.metric,
                "statistic": one.key.statistic,
                "replay": None if one.at is None else found[one.at].replay,
                "why": one.why,
            }
            for one in closest
        ],
        "passed": all(one.passed for one in found),
        "command": again(found),
    }


def again(found: Sequence[Comparison]) -> str:
    """The command that gives these comparisons again."""
    words = shlex.split(reproduce(found[0]))
    return shlex.join([*words[:3], *(one.replay for one in found), *words[4:]])
