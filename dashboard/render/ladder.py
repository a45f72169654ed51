"""A ladder in words, on pages and on the command line: which layer holds a gap, and every step as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.compare.climb import Change, Climb, Gap, Setting, Step
from dashboard.compare.noise import MARKS, Place, open_words
from dashboard.compare.numbers import Key
from dashboard.metrics import LADDER_NUMBERS
from dashboard.render.tables import NOTHING, grid, shown_unit, shown_value
from engine.ladder.rungs import PARITY_RUNG, RUNGS

SUMMED_UP = (
    Key("ttft", "mean"),
    Key("tpot", "mean"),
    Key("e2e", "mean"),
    Key("ttft", "p99"),
    Key("request_rate", "fixed"),
)
"""The numbers whose sentences the command line prints."""
MARKED = "~ is inside the noise of the measured side, (open) beyond one or two repeats and not confirmed by redrawing"
"""What the marks of differences mean."""
FEEDBACK = {2, 4}
"""Rungs that take the arrivals and the pass durations."""
BATCHES = 5
"""The rung that takes the batches."""
MANY = 1.5
FOREIGN = 0.1
"""Share of the pass time of rung 4 from which on it is said that its shapes were not recorded."""


def name_of(key: Key) -> str:
    """A number as a sentence names it."""
    return LADDER_NUMBERS.get(str(key), f"{key.label} {key.statistic.replace('_', ' ')}")


def signed(difference: float | None, unit: str) -> str:
    """A difference with its sign, without its unit."""
    if difference is None:
        return NOTHING
    text = shown_value(difference, unit)
    return text if text.startswith("-") else f"+{text}"


def unit_of(key: Key) -> str:
    """The unit of a difference of the number."""
    shown = shown_unit(key.unit)
    return {"%": "percentage points", "count": ""}.get(shown, shown)


def with_unit(difference: float | None, key: Key) -> str:
    """A difference with its sign and unit."""
    return f"{signed(difference, key.unit)} {unit_of(key)}".rstrip()


def cell(change: Change, key: Key) -> str:
    """One step of one number with its mark: :data:`MARKED` says which."""
    return signed(change.difference, key.unit) + mark_of(change.difference, change.where)


def mark_of(difference: float | None, where: Place) -> str:
    """What stands behind a difference: inside the noise, or open; nothing behind none."""
    return MARKS[where] if difference else ""


def share_words(share: float | None) -> str:
    """A share of the gap, in words where other steps make it exceed the whole."""
    if share is None:
        return NOTHING
    return f"{share:.0%}" if share < MANY else f"{share:.1f} times the whole, which other steps hide"


def sentences(gap: Gap) -> list[str]:
    """What a number's steps say: the layer that holds most of its gap, what cancels, and what the noise allows."""
    key, name = gap.key, name_of(gap.key)
    if gap.gap is None:
        return [f"The {name} has no gap to split: {gap.why}."]
    value, unit = (lambda v: shown_value(v, key.unit)), shown_unit(key.unit)
    ends = f"{value(gap.prediction.value)} predicted, {value(gap.measured.value)} measured" + (
        f" ({unit})" if unit != "count" else ""
    )
    found = []
    if gap.step is None:
        found.append(f"The {name} has no gap: {ends}.")
    elif gap.where == "inside" and gap.noise:
        found.append(
            f"The whole {name} gap, {with_unit(gap.gap, key)}, lies inside the noise of the measured side "
            f"({gap.noise.words}), so no layer holds it: {ends}."
        )
    elif gap.where == "open":
        found.append(
            f"The whole {name} gap, {with_unit(gap.gap, key)}, is not shown to be one ({open_words(gap.noise)}), so no "
            f"layer is shown to hold it: {ends}."
        )
    else:
        found.append(
            f"The largest part of the {name} gap is the {gap.step.layer} ({gap.step.rungs}): "
            f"{with_unit(gap.difference, key)} of {with_unit(gap.gap, key)}, {share_words(gap.share)}; {ends}."
        )
    if gap.canceling:
        parts = " and ".join(
            f"{step.layer} ({step.rungs}) {with_unit(step.changes[key].difference, key)}" for step in gap.canceling
        )
        found.append(f"Steps of opposite sign cancel: {parts}. The {name} gap alone hides them.")
        if {step.right for step in gap.canceling} == FEEDBACK:
            found.append(
                "With measured arrivals the loop no longer answers to what is modelled wrong behind it, so the step of "
                "the client may be the other side of an error of the timing model (or of the scheduler's settings)."
            )
            found.append(_taken_together(gap))
    named = (gap.step, *gap.canceling, gap.beside)
    if gap.exact_scheduler and any(step and step.right == BATCHES for step in named):
        found.append(
            "Fed by arrival pass, the scheduler forms every recorded batch: the step to rung 5 is no error of the "
            "scheduler, but what passes last once a request came a pass earlier or later than recorded."
        )
    return found


def _taken_together(gap: Gap) -> str:
    """What steps that may be one error come to, and what stands beside them."""
    first, last = gap.canceling[0].left, gap.canceling[-1].right
    words = (
        f"The steps from rung {first} to {last} together move the {name_of(gap.key)} by {with_unit(gap.net, gap.key)}"
    )
    if gap.beside is None:
        return f"{words}; no other step exceeds the noise."
    other = with_unit(gap.beside.changes[gap.key].difference, gap.key)
    return f"{words}; of the others the {gap.beside.layer} ({gap.beside.rungs}) is the largest, {other}."


def doubts(climb: Climb) -> list[str]:
    """What to know before the steps are read: settings that differ, and pass times that rest on other shapes."""
    found = []
    if words := _settings_words(climb):
        found.append(words)
    if climb.foreign is not None and climb.foreign > FOREIGN:
        found.append(
            f"{climb.foreign:.0%} of the pass time of rung {PARITY_RUNG} rests on recorded passes of another shape, as "
            "its batches were never recorded: the steps to it and from it are the less certain for that."
        )
    return found


def _settings_words(climb: Climb) -> str:
    told = (
        f"{setting.label} {setting.predicted}, {_recorded(setting)} ({RUNGS[setting.rung].isolates})"
        for setting in climb.settings
    )
    words = "; ".join(told)
    return f"The prediction is set otherwise than the recording: {words}." if words else ""


def _recorded(setting: Setting) -> str:
    return "nothing recorded" if setting.recorded is None else f"recorded {setting.recorded}"


def ladder_text(climb: Climb, form: str, why: Mapping[int, str] | None = None) -> str:
    """A ladder as ``table``, ``markdown`` or ``json``; ``why`` has the reasons of rungs that could not be built."""
    why = why or {}
    if form == "json":
        return json.dumps(ladder_json(climb, why), indent=1, ensure_ascii=False)
    markdown = form == "markdown"
    bullet = "- " if markdown else "  "
    head = [f"{'# ' if markdown else ''}ladder of measured {climb.measured}, prediction {climb.base}", ""]
    head += [f"{bullet}population: {climb.population.words}", f"{bullet}percentiles: {climb.estimator.words}"]
    head += [bullet + words for words in doubts(climb)]
    parts = ["\n".join(head), _rung_rows(climb, why, markdown), _step_rows(climb, markdown)]
    parts.append(
        f"Differences lead from the prediction to the measurement, in the number's unit; they sum to the gap. {MARKED}."
    )
    said = (sentence for key in SUMMED_UP if key in climb.gaps for sentence in sentences(climb.gaps[key]))
    parts.append("\n".join(bullet + sentence for sentence in dict.fromkeys(said)))  # each sentence once
    return "\n\n".join(part for part in parts if part)


def _rung_rows(climb: Climb, why: Mapping[int, str], markdown: bool) -> str:
    rows = [
        (str(rung.number), rung.name, rung.taken, climb.runs.get(rung.number) or why.get(rung.number) or "not built")
        for rung in RUNGS
    ]
    return grid(("rung", "name", "taken from the measurement", "run"), rows, markdown)


def _step_rows(climb: Climb, markdown: bool) -> str:
    steps = [f"{step.left}→{step.right}" for step in climb.steps]
    head = ("metric", "unit", "prediction", *steps, "measured", "gap", "largest", "n predicted", "n measured")
    rows = []
    for key, gap in climb.gaps.items():
        rows.append(
            (
                name_of(key) + " (few)" * gap.weak,
                shown_unit(key.unit),
                shown_value(gap.prediction.value, key.unit),
                *(cell(step.changes[key], key) for step in climb.steps),
                shown_value(gap.measured.value, key.unit),
                signed(gap.gap, key.unit) + mark_of(gap.gap, gap.where),
                _largest(gap),
                f"{gap.prediction.n:,}",
                f"{gap.measured.n:,}",
            )
        )
    return grid(head, rows, markdown)


def _largest(gap: Gap) -> str:
    """The step that holds most of a gap and its share; none of a gap that the noise may explain."""
    if gap.step is None or gap.share is None or gap.explained:
        return NOTHING
    return f"{gap.step.left}→{gap.step.right} " + (f"{gap.share:.0%}" if gap.share < MANY else f"{gap.share:.1f}×")


def ladder_json(climb: Climb, why: Mapping[int, str]) -> dict[str, Any]:
    """A ladder as JSON values; numbers are unrounded."""
    return {
        "measured": climb.measured,
        "base": climb.base,
        "population": climb.population.name,
        "estimator": climb.estimator.value,
        "foreign_pass_time": climb.foreign,
        "settings": [
            {"setting": one.label, "predicted": one.predicted, "recorded": one.recorded, "rung": one.rung}
            for one in climb.settings
        ],
        "rungs": [
            {
                "rung": rung.number,
                "name": rung.name,
                "taken": rung.taken,
                "isolates": rung.isolates,
                "run_id": climb.runs.get(rung.number),
                "why": None if rung.number in climb.runs else why.get(rung.number),
            }
            for rung in RUNGS
        ],
        "steps": [{"from": s.left, "to": s.right, "runs": list(s.runs), "layers": list(s.layers)} for s in climb.steps],
        "numbers": [_number_json(key, gap, climb.steps) for key, gap in climb.gaps.items()],
    }


def _number_json(key: Key, gap: Gap, steps: Sequence[Step]) -> dict[str, Any]:
    return {
        "number": str(key),
        "unit": key.unit,
        "prediction": gap.prediction.value,
        "measured": gap.measured.value,
        "n": [gap.prediction.n, gap.measured.n],
        "too_few_values": gap.weak,
        "gap": gap.gap,
        "against_noise": gap.where,
        "noise": None if gap.noise is None else {"low": gap.noise.low, "high": gap.noise.high, "from": gap.noise.words},
        "steps": [
            {
                "from": step.changes[key].since,
                "to": step.right,
                "difference": step.changes[key].difference,
                "relative": step.changes[key].relative,
                "against_noise": step.changes[key].where,
            }
            for step in steps
        ],
        "largest": None
        if gap.step is None
        else {"from": gap.step.left, "to": gap.step.right, "layer": gap.step.layer, "share": gap.share},
        "canceling": [{"from": step.left, "to": step.right} for step in gap.canceling],
        "says": sentences(gap),
    }
