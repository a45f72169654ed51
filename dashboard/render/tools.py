"""Runs of several tools side by side as text: table, Markdown, JSON. The same content as the Cross-tool page."""

from __future__ import annotations

import json
import shlex
from typing import Any

from dashboard.catalogue import KIND_WORDS
from dashboard.compare.beside import Figure
from dashboard.compare.numbers import Number
from dashboard.compare.tool_runs import classes
from dashboard.compare.tools import RATES, STATISTICS, Cell, SideBySide
from dashboard.metrics import MEASURES, METRICS, Window
from dashboard.queries.outcomes import OUTCOMES
from dashboard.render.tables import NOTHING, grid, shown_unit, shown_value

Rows = list[tuple[str, ...]]


def tools_text(found: SideBySide, form: str) -> str:
    """Everything as ``table``, ``markdown`` or ``json``."""
    if form == "json":
        return json.dumps(tools_json(found), indent=1, ensure_ascii=False)
    markdown = form == "markdown"
    sections = {
        "Runs": grid(
            ("run", "tool", "kind", "id"),
            [(run.letter, run.tool, KIND_WORDS[run.bundle.kind], run.run_id) for run in found.runs],
            markdown,
        ),
        "What became of the requests": _outcomes(found, markdown),
        "What the numbers mean": _definitions(found, markdown),
        "Numbers by one rule": _numbers(found, markdown),
        "Rates by window": _rates(found, markdown),
        "The tools' own figures beside ours": _own(found, markdown),
        "Why they disagree": "\n".join(f"- {sentence}" for sentence in found.reasons),
    }
    mark = "## " if markdown else ""
    parts = [f"{mark}{name}\n{chr(10) if markdown else ''}{body}" for name, body in sections.items() if body]
    parts.append(f"population: {found.population.words}; percentiles: {found.estimator.words}")
    command = reproduce(found)
    parts.append(f"    {command}" if markdown else f"again: {command}")
    return "\n\n".join(parts)


def reproduce(found: SideBySide) -> str:
    """The command that gives this again."""
    words = ["gapscope", "tools", *(run.run_id for run in found.runs)]
    words += ["--population", found.population.name]
    words += ["--estimator", found.estimator.value, "--window", found.window.value]
    return shlex.join(words)


def _count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def _outcomes(found: SideBySide, markdown: bool) -> str:
    names = classes(found.runs, found.population)
    head = ("run", "sent", *(OUTCOMES[name] for name in names), "never issued", "its own successes", "the tool's words")
    rows: Rows = []
    for run in found.runs:
        words = [f"{OUTCOMES[name]}: {said}" for name in names if (said := run.words(name, found.population))]
        own = run.tool_successes
        rows.append(
            (
                run.letter,
                _count(run.attempted(found.population)),
                *(_count(run.count(name, found.population)) for name in names),
                _count(run.outcomes.never_issued),
                f"{own[1]:,.0f} ({own[0]})" if own else NOTHING,
                "; ".join(words) or NOTHING,
            )
        )
    return grid(head, rows, markdown)


def _definitions(found: SideBySide, markdown: bool) -> str:
    rows: Rows = []
    for one in found.definitions:
        rules: dict[str, tuple[list[str], list[str]]] = {}
        for run, field in zip(found.runs, one.fields, strict=True):
            letters, sources = rules.setdefault(NOTHING if field is None else str(field.value), ([], []))
            letters.append(run.letter)
            if field is not None and field.source and field.source not in sources:
                sources.append(field.source)
        state = "some do not say" if one.state == "unknown" else one.state
        for place, (rule, (letters, sources)) in enumerate(rules.items()):
            head = ("", "") if place else (one.label, state)
            rows.append((*head, ", ".join(letters), rule, "; ".join(sources)))
    return grid(("definition", "state", "run", "rule", "source"), rows, markdown) if rows else ""


def _numbers(found: SideBySide, markdown: bool) -> str:
    rows: Rows = []
    for cell in found.cells:
        metric = METRICS[cell.metric]
        values = (shown_value(cell.numbers[name].value, metric.unit) for name in STATISTICS)
        rows.append((metric.label, cell.letter, shown_unit(metric.unit), *values, f"{cell.n:,}", cell.beside))
    return grid(("metric", "run", "unit", *STATISTICS, "n", "beside the first run"), rows, markdown) if rows else ""


def _rates(found: SideBySide, markdown: bool) -> str:
    rows: Rows = []
    for name in RATES:
        measure = MEASURES[name]
        for run in found.runs:
            cell = found.cell(name, run.letter)
            numbers = [cell.numbers[window.value] for window in Window]
            values = [
                shown_value(one.value, measure.unit) + (f" (n {one.n:,})" if one.value is not None else "")
                for one in numbers
            ]
            rows.append((measure.label, run.letter, shown_unit(measure.unit), *values, cell.beside))
    windows = (window.value.replace("_", " ") for window in Window)
    return grid(("rate", "run", "unit", *windows, "beside the first run"), rows, markdown)


def _own(found: SideBySide, markdown: bool) -> str:
    rows: Rows = []
    for run in found.runs:
        for figure in found.own(run.letter):
            assert figure.key is not None
            unit = figure.key.unit
            rows.append(
                (
                    run.letter,
                    figure.key.label,
                    figure.statistic,
                    shown_unit(unit),
                    shown_value(figure.value, unit),
                    shown_value(figure.ours.value if figure.ours else None, unit),
                    NOTHING if figure.relative is None else f"{figure.relative:+.1%}",
                    figure.explanation,
                )
            )
    head = ("run", "metric", "statistic", "unit", "the tool", "ours", "difference", "why")
    return grid(head, rows, markdown) if rows else ""


def tools_json(found: SideBySide) -> dict[str, Any]:
    """Everything, unrounded."""
    names = list(OUTCOMES)
    return {
        "population": found.population.name,
        "estimator": found.estimator.value,
        "window": found.window.value,
        "runs": [
            {
                "run": run.letter,
                "run_id": run.run_id,
                "kind": run.bundle.kind,
                "tool": run.tool,
                "sent": run.attempted(found.population),
                "outcomes": {name: run.count(name, found.population) for name in names} if run.rows else None,
                "tool_words": {name: said for name in names if (said := run.words(name, found.population))},
                "never_issued": run.outcomes.never_issued,
                "tool_successes": run.tool_successes and {"name": run.tool_successes[0], "n": run.tool_successes[1]},
                "flags": dict(run.flags),
                "own_figures": [_figure_json(figure) for figure in found.figures[run.letter]],
            }
            for run in found.runs
        ],
        "definitions": [
            {
                "definition": one.name,
                "state": one.state,
                "runs": {
                    run.letter: None if field is None else {"rule": field.value, "source": field.source}
                    for run, field in zip(found.runs, one.fields, strict=True)
                },
            }
            for one in found.definitions
        ],
        "numbers": [_cell_json(cell) for cell in (*found.cells, *found.rates)],
        "reasons": list(found.reasons),
    }


def _cell_json(cell: Cell) -> dict[str, Any]:
    refused = cell.refused and {"reason": cell.refused.reason, "remedy": cell.refused.remedy}
    numbers = {name: _number_json(found) for name, found in cell.numbers.items()}
    return {"metric": cell.metric, "run": cell.letter, "not_comparable": refused, "numbers": numbers}


def _number_json(found: Number) -> dict[str, Any]:
    return {"value": found.value, "n": found.n, "undefined": found.undefined, "why": found.why}


def _figure_json(figure: Figure) -> dict[str, Any]:
    return {
        "scope": figure.scope,
        "name": figure.name,
        "statistic": figure.statistic,
        "labels": figure.labels,
        "value": figure.value,
        "unit": figure.unit,
        "n": figure.n,
        "ours": figure.ours and figure.ours.value,
        "ours_n": figure.ours and figure.ours.n,
        "difference": figure.difference,
        "why": figure.explanation,
    }
