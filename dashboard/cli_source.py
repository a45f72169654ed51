"""``gapscope source``: where a run comes from, what is asked of it, and what its tool said itself."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from engine.cli import main as engine_cli

if TYPE_CHECKING:
    from dashboard.compare.source import Source

EPILOG = """\
examples:
  gapscope source aiperf_run
  gapscope source vllm_run --window observed_span --format json
"""


def add_source(commands: Any) -> None:
    """Add the command."""
    from dashboard.metrics import Estimator, Window

    parser = commands.add_parser(
        "source",
        help="where a run comes from, its checks, and its tool's own figures beside ours",
        description="Files and checks of a run, what its format does not record, how its numbers are defined, and the "
        "figures of its tool beside ours with what explains a difference.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[engine_cli.store_options()],
    )
    parser.add_argument("ref", metavar="RUN", help="run id, name or beginning of an id; of any kind")
    parser.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    parser.add_argument("--population", default="profile", metavar="PHASE[.SUBSET]", help="as for compare")
    parser.add_argument("--estimator", choices=[e.value for e in Estimator], default="linear", help="of percentiles")
    parser.add_argument("--window", choices=[w.value for w in Window], default="fixed", help="of our rates")
    parser.set_defaults(run=run_source)


def run_source(arguments: argparse.Namespace) -> int:
    """``gapscope source``."""
    from dashboard.compare.source import source
    from dashboard.metrics import Estimator, Population, Window
    from dashboard.store import Store

    store = Store(engine_cli.stores_of(arguments))
    told = source(
        store,
        store.find(arguments.ref).run_id,
        Population.parse(arguments.population),
        Estimator(arguments.estimator),
        Window(arguments.window),
    )
    print(json.dumps(_json(told), indent=1) if arguments.format == "json" else _text(told, arguments.format))
    return 0


def _text(told: Source, form: str) -> str:
    from dashboard.render import NOTHING, grid, shown_unit, shown_value

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
