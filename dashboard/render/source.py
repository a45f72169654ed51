"""Where a run comes from, as text: files, checks, definitions, and the tool's own figures beside ours."""

from __future__ import annotations

import json
from typing import Any

from dashboard.compare.source import Source
from dashboard.render.tables import NOTHING, grid, shown_unit, shown_value


def source_text(told: Source, form: str) -> str:
    """A run and its tool as ``table``, ``markdown`` or ``json``."""
    if form == "json":
        return json.dumps(_json(told), indent=1)
    markdown = form == "markdown"
    figures = [
        (
            "warm-up" if figure.scope == "warmup" else figure.scope,
            figure.key.label if figure.key else figure.name,
            figure.statistic,
            shown_unit(figure.unit),
            shown_value(figure.value, figure.unit),
            NOTHING if figure.ours is None else shown_value(figure.ours.value, figure.unit),
            NOTHING if figure.relative is None else f"{100 * figure.relative:+.2f} %",
            figure.explanation,
        )
        for figure in told.beside
    ]
    checks = [(check.verdict, check.check, check.detail) for check in told.checks]
    sections = {
        f"{told.bundle.run_id}: {told.bundle.title}": grid(
            ("what", "value"), [("Tool", told.tool), *told.facts], markdown
        ),
        "Checks": grid(("verdict", "check", "detail"), checks, markdown),
        "Not recorded": "\n".join(f"- {sentence}" for sentence in told.not_recorded),
        "What the numbers of the rows mean": grid(("definition", "rule", "source"), told.definitions, markdown),
        "The tool's own figures beside ours": grid(
            ("about", "metric", "statistic", "unit", "the tool", "ours", "difference", "why"), figures, markdown
        )
        if figures
        else "",
        "Files": grid(("file", "sha256"), told.files, markdown) if told.files else "",
    }
    mark, gap = ("## ", "\n\n") if markdown else ("", "\n")
    return "\n\n".join(f"{mark}{name}{gap}{body}" for name, body in sections.items() if body)


def _json(told: Source) -> dict[str, Any]:
    return {
        "run": told.bundle.run_id,
        "kind": told.bundle.kind,
        "tool": told.tool,
        "facts": dict(told.facts),
        "light": told.light,
        "checks": [{"check": c.check, "verdict": c.verdict, "detail": c.detail} for c in told.checks],
        "not_recorded": list(told.not_recorded),
        "definitions": {label: {"rule": rule, "source": where} for label, rule, where in told.definitions},
        "files": dict(told.files),
        "figures": [
            {
                "scope": figure.scope,
                "name": figure.name,
                "statistic": figure.statistic,
                "labels": figure.labels,
                "unit": figure.unit,
                "value": figure.value,
                "n": figure.n,
                "definition": figure.definition,
                "ours": None if figure.ours is None else figure.ours.value,
                "difference": figure.difference,
                "explanation": figure.explanation,
            }
            for figure in told.figures
        ],
    }
