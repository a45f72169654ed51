"""A comparison as text: table, Markdown, JSON. The same numbers as the pages, laid out once."""

from __future__ import annotations

import json
import shlex
from typing import Any

from dashboard.compare import LABELS, Comparison, judged
from dashboard.compare.numbers import Number
from dashboard.compare.rows import ALIKE, Row, nearly_equal
from dashboard.queries.identity import said_differing
from dashboard.render.parts import PARTS_HEAD, decomposition_json, parts_notes, parts_rows
from dashboard.render.tables import NOTHING, grid, section, shown_unit, shown_value


def shown_gap(row: Row) -> str:
    """The signed gap in percent; of a share also the difference in points."""
    if row.gap is None:
        return NOTHING
    text = f"{row.gap:+.1%}"
    if row.key.unit == "share" and row.measured.value is not None and row.replay.value is not None:
        text += f" ({100 * (row.replay.value - row.measured.value):+.2f} pp)"
    return text


def shown_noise(row: Row) -> str:
    """The noise as signed gaps."""
    if row.noise is None or row.measured.value is None:
        return NOTHING
    relative = row.noise.relative(row.measured.value)
    if relative is None:
        return f"{shown_value(row.noise.low, row.key.unit)}..{shown_value(row.noise.high, row.key.unit)}"
    low, high = relative
    few = f", {row.noise.few}" if row.noise.few else ""
    return f"±{high:.1%}{few}" if row.noise.kind == "repeats" else f"{low:+.1%}..{high:+.1%}"


def reproduce(comparison: Comparison) -> str:
    """The command that gives this comparison again."""
    words = ["gapscope", "compare", comparison.measured, comparison.replay]
    words += ["--population", comparison.population.name]
    words += ["--estimator", comparison.estimator.value, "--window", comparison.window.value]
    for result in comparison.gates:
        words += ["--gate", result.gate.text]
    return shlex.join(words)


HEAD = ("metric", "statistic", "unit", "measured", "replay", "gap", "noise", "n measured", "n replay", "state")


def _head(comparison: Comparison) -> tuple[str, ...]:
    """HEAD in the words of the label."""
    first, second = comparison.places
    return tuple(name.replace("measured", first).replace("replay", second) for name in HEAD)


def cells(row: Row) -> tuple[str, ...]:
    """One row as text, in the order of HEAD."""
    weak = " (few)" if row.weak else ""
    return (
        row.key.label,
        row.key.statistic.replace("_", " ") + weak,
        shown_unit(row.key.unit),
        shown_value(row.measured.value, row.key.unit),
        shown_value(row.replay.value, row.key.unit),
        shown_gap(row),
        shown_noise(row),
        f"{row.measured.n:,}",
        f"{row.replay.n:,}",
        shown_state(row),
    )


def shown_state(row: Row) -> str:
    """The state; where it rests on no noise, on too little, or on a gap too small to be shown, that is said."""
    return judged(row) if row.noise is None or nearly_equal(row) or row.state in ("open", "repeat") else row.state


def _ledger(comparison: Comparison, markdown: bool) -> str:
    head = ("side", "phase", "attempted", "ok", "error", "rejected", "canceled", "in flight")
    rows = [
        (side, r.phase, *(f"{n:,}" for n in (r.attempted, r.ok, r.error, r.rejected, r.canceled, r.in_flight)))
        for side, told in zip(comparison.places, comparison.ledgers, strict=True)
        for r in told.rows
    ]
    return grid(head, rows, markdown)


def _gates(comparison: Comparison, markdown: bool) -> str:
    rows = [(result.gate.text, result.verdict, result.reason) for result in comparison.gates]
    return grid(("gate", "verdict", "reason"), rows, markdown)


def _consistency(comparison: Comparison) -> list[str]:
    lines = []
    for side, c in zip(comparison.places, comparison.consistency, strict=True):
        little, observed = shown_value(c.little, "requests"), shown_value(c.observed, "requests")
        lanes = NOTHING if c.lanes is None else f"{c.lanes:,}"
        note = f" ({c.note.rstrip('.')})" if c.note else ""
        lines.append(
            f"{side}: throughput x mean E2E = {little} in flight, counted {observed}{note}, configured lanes {lanes}"
        )
    return lines


def _parts(comparison: Comparison, markdown: bool) -> list[str]:
    """The gaps of the means, taken apart; the parts of each sum to its total."""
    rows, mark = parts_rows(comparison), "- " if markdown else "  "
    table = [grid(PARTS_HEAD, rows, markdown), *[""] * markdown] if rows else []
    return [*table, *(mark + note for note in parts_notes(comparison))]


def _facts(comparison: Comparison) -> list[str]:
    m, diff = comparison.matched, comparison.identity
    repeats = ", ".join(comparison.repeats) or "none in the store"
    alike = comparison.places == ALIKE
    measured, replayed = ("", "") if alike else (" measured", " replayed")
    successes = f"{m.measured_ok}{measured} and {m.replay_ok}{replayed} successes"
    return [
        f"label: {LABELS[comparison.label]}",
        f"population: {comparison.population.words}",
        f"percentiles: {comparison.estimator.words}",
        f"rates: {comparison.window.words}",
        f"repeats of the {'reference' if alike else 'measured run'}: {repeats}",
        f"identity: of the fields {said_differing(diff.rows)}, {diff.unknown} are unknown on a side or both",
        f"shared source-turns: {m.matched} of {successes} ({m.rule})",
    ]


def comparison_text(comparison: Comparison, form: str) -> str:
    """A comparison as ``table``, ``markdown`` or ``json``."""
    if form == "json":
        return json.dumps(comparison_json(comparison), indent=1, ensure_ascii=False)
    markdown = form == "markdown"
    bullet, title = ("- ", "## ") if markdown else ("  ", "")
    first, second = comparison.places
    rows = grid(_head(comparison), [cells(row) for row in comparison.rows], markdown)
    head = [f"{'# ' if markdown else ''}{first} {comparison.measured}, {second} {comparison.replay}"]
    head += [""] * markdown + [bullet + fact for fact in _facts(comparison)]
    parts = ["\n".join(head)]
    if comparison.warnings:
        parts.append(section(title, "Warnings", [bullet + w.text for w in comparison.warnings]))
    if comparison.gates:
        parts.append(section(title, "Gates", [_gates(comparison, markdown)]))
    parts.append(rows)
    parts.append(section(title, "Parts of the gaps of the means", _parts(comparison, markdown)))
    parts.append(section(title, "Cohort", [_ledger(comparison, markdown)]))
    parts.append(section(title, "Consistency", [bullet + line for line in _consistency(comparison)]))
    parts.append(section(title, "Claim", [bullet + sentence for sentence in comparison.claim]))
    command = reproduce(comparison)
    parts.append(f"    {command}" if markdown else f"again: {command}")
    return "\n\n".join(parts)


def _number(found: Number) -> dict[str, Any]:
    return {
        "value": found.value,
        "n": found.n,
        "undefined": found.undefined,
        "supported": found.supported,
        "why": found.why,
    }


def row_json(row: Row) -> dict[str, Any]:
    """A row with unrounded values."""
    spread = row.noise
    return {
        "metric": row.key.metric,
        "statistic": row.key.statistic,
        "unit": row.key.unit,
        "measured": _number(row.measured),
        "replay": _number(row.replay),
        "gap": row.gap,
        "noise": None
        if spread is None
        else {
            "kind": spread.kind,
            "low": spread.low,
            "high": spread.high,
            "n": spread.n,
            "units": spread.units,
            "redrawn": spread.redrawn and list(spread.redrawn),
        },
        "state": row.state,
        "reason": row.reason,
    }


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison as JSON values; numbers are unrounded."""
    return {
        "measured": comparison.measured,
        "replay": comparison.replay,
        "label": comparison.label,
        "population": comparison.population.name,
        "estimator": comparison.estimator.value,
        "window": comparison.window.value,
        "rows": [row_json(row) for row in comparison.rows],
        "rates": [row_json(row) for row in comparison.rates],
        "decompositions": [decomposition_json(found) for found in comparison.decompositions],
        "warnings": [{"code": w.code, "text": w.text} for w in comparison.warnings],
        "gates": [
            {
                "gate": g.gate.text,
                "verdict": g.verdict,
                "value": g.value,
                "measured": g.measured,
                "replay": g.replay,
                "reason": g.reason,
            }
            for g in comparison.gates
        ],
        "passed": comparison.passed,
        "ledgers": {
            side: {
                "phases": {
                    r.phase: {
                        "attempted": r.attempted,
                        "ok": r.ok,
                        "error": r.error,
                        "rejected": r.rejected,
                        "canceled": r.canceled,
                        "in_flight": r.in_flight,
                    }
                    for r in told.rows
                },
                "never_issued": told.never_issued,
                "in_graph": told.in_graph,
                "balanced": told.balanced,
            }
            for side, told in zip(("measured", "replay"), comparison.ledgers, strict=True)
        },
        "consistency": {
            side: {"little": c.little, "observed": c.observed, "lanes": c.lanes, "note": c.note}
            for side, c in zip(("measured", "replay"), comparison.consistency, strict=True)
        },
        "matched": {
            "rule": comparison.matched.rule,
            "matched": comparison.matched.matched,
            "measured_ok": comparison.matched.measured_ok,
            "replay_ok": comparison.matched.replay_ok,
            "measured_attempted": comparison.matched.measured_attempted,
            "replay_attempted": comparison.matched.replay_attempted,
        },
        "identity": {"differing": comparison.identity.differing, "unknown": comparison.identity.unknown},
        "repeats": list(comparison.repeats),
        "claim": list(comparison.claim),
        "command": reproduce(comparison),
    }
