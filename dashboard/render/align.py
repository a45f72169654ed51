"""An alignment in words, on the page and on the command line: rungs, checks with bounds, and what may be claimed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from dashboard.compare import LABELS
from dashboard.compare.align import WORDS, Alignment, Check, Rung
from dashboard.render.tables import NOTHING, grid

NOT_YET = "not to be read yet"
RUNG_HEAD = ("rung", "name", "verdict", "what")
HEAD = ("check", "side", "unit", "expected", "found", "off", "allowed", "noise", "n", "verdict", "why")
_DECIMALS = {"ms": 2, "1/s": 3, "tok/s": 1, "requests": 2, "lanes": 2, "GiB": 2, "sequences": 2}
_PERCENT = "share"


def figure(value: float | str | None, unit: str) -> str:
    """A figure of a check in fixed decimals."""
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return value
    if unit == _PERCENT:
        return f"{100 * value:,.2f}"
    return f"{value:,.{_DECIMALS.get(unit, 0)}f}"


def unit_of(check: Check) -> str:
    """The unit as a column names it."""
    return "%" if check.unit == _PERCENT else check.unit


def share(value: float | None, sign: str = "") -> str:
    """A share in percent; ``sign`` is ``+`` for a signed one."""
    return NOTHING if value is None else f"{value:{sign}.1%}"


def verdict_of(found: Alignment, rung: Rung) -> str:
    """The verdict in words, or that it is not to be read yet."""
    return WORDS[rung.verdict] if found.readable(rung) else NOT_YET


def says(found: Alignment, rung: Rung) -> str:
    """One sentence on a rung: its own, or which rung comes first."""
    if not found.readable(rung):
        first = found.first_failed
        assert first is not None
        return f"Rung {first.number} ({first.name}) fails: whatever stands here may be its doing."
    below = found.rests_on(rung)
    if not below or rung.verdict == "unknown":
        return rung.says
    words = ", ".join(str(one.number) for one in below)
    return f"{rung.says} Read it without rung{'s' if len(below) > 1 else ''} {words}, which could not be judged."


def cells(check: Check) -> tuple[str, ...]:
    """One check as text, in the order of HEAD."""
    return (
        check.name,
        "" if check.side == "both" else check.side,
        unit_of(check),
        figure(check.expected, check.unit),
        figure(check.found, check.unit),
        share(check.off, "+"),
        share(check.allowed),
        share(check.noise),
        NOTHING if check.n is None else f"{check.n:,}",
        WORDS[check.verdict],
        check.why,
    )


def alignment_text(found: Alignment, form: str = "table", ahead: bool = False) -> str:
    """An alignment as ``table``, ``markdown`` or ``json``; ``ahead`` shows the figures of rungs not to be read yet."""
    if form == "json":
        return json.dumps(alignment_json(found), indent=1, ensure_ascii=False)
    markdown = form == "markdown"
    bullet, head = ("- ", "## ") if markdown else ("  ", "")
    lines = [f"{'# ' if markdown else ''}alignment of measured {found.measured}, replay {found.replay}", ""]
    lines += [bullet + fact for fact in facts(found)]
    rungs = [(str(rung.number), rung.name, verdict_of(found, rung), says(found, rung)) for rung in found.rungs]
    parts = ["\n".join(lines), grid(RUNG_HEAD, rungs, markdown)]
    for rung in found.rungs:
        title = f"{head}rung {rung.number}: {rung.name}, {verdict_of(found, rung)}"
        body = [title, "", rung.question]
        if found.readable(rung) or ahead:
            body += ["", grid(HEAD, [cells(check) for check in rung.checks], markdown)]
            told = [*rung.notes, *(f"needed: {need}" for need in rung.needed)]
            body += ["", *(bullet + words for words in told)] if told else []
        else:
            body += ["", says(found, rung)]
        parts.append("\n".join(body))
    parts.append("\n".join([f"{head}what may be claimed", "", *(bullet + words for words in found.claim)]))
    parts.append(f"reproduce: {reproduce(found)}")
    return "\n\n".join(parts)


def facts(found: Alignment) -> list[str]:
    """What stands beside every rung."""
    repeats = ", ".join(found.repeats) or "none in the store"
    lines = [
        f"label: {LABELS[found.label]}",
        f"population: {found.population.words}",
        f"percentiles: {found.estimator.words}",
        f"tolerance: {found.tolerance:.1%} of what is expected, or the noise where that is more",
        f"repeats of the measured run: {repeats}",
    ]
    if found.regime:
        lines.append(f"not like for like: {', '.join(found.regime)} differ")
    return lines


def reproduce(found: Alignment) -> str:
    """The command that gives this alignment again."""
    words = ["gapscope", "align", found.measured, "--replay", found.replay, "--population", found.population.name]
    words += ["--estimator", found.estimator.value, "--tolerance", f"{100 * found.tolerance:g}"]
    for option, name in (("--part", found.presets.part), ("--model-preset", found.presets.model)):
        words += [option, name] if name else []
    return shlex.join([*words, *(["--anyway"] if found.acknowledged else [])])


def alignment_json(found: Alignment) -> dict[str, Any]:
    """An alignment as JSON values; figures are unrounded."""
    return {
        "measured": found.measured,
        "replay": found.replay,
        "label": found.label,
        "population": found.population.name,
        "estimator": found.estimator.value,
        "tolerance": found.tolerance,
        "repeats": list(found.repeats),
        "verdict": found.verdict,
        "first_failed": None if found.first_failed is None else found.first_failed.number,
        "rungs": [
            {
                "rung": rung.number,
                "name": rung.name,
                "question": rung.question,
                "verdict": rung.verdict,
                "readable": found.readable(rung),
                "says": says(found, rung),
                "needed": list(rung.needed),
                "notes": list(rung.notes),
                "checks": _checks(rung.checks),
            }
            for rung in found.rungs
        ],
        "claim": list(found.claim),
    }


def _checks(checks: Sequence[Check]) -> list[dict[str, Any]]:
    return [
        {
            "check": check.name,
            "side": check.side,
            "unit": check.unit,
            "expected": check.expected,
            "found": check.found,
            "off": check.off,
            "allowed": check.allowed,
            "noise": check.noise,
            "n": check.n,
            "verdict": check.verdict,
            "decides": check.decides,
            "why": check.why,
            "needed": check.needed,
        }
        for check in checks
    ]
