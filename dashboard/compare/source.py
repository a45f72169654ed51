"""Where a run comes from: its files, what is asked of it, and what its tool said itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dashboard.catalogue import KIND_WORDS
from dashboard.compare.beside import Figure, figures
from dashboard.compare.tool_runs import tool_of
from dashboard.metrics import MEASURES, METRICS, STATISTICS, Estimator, Population, Window
from dashboard.store import Store
from engine.bundle import Bundle, Check
from engine.definitions import INSIDE_ENGINE
from engine.identity import FIELDS

ORDER = ("fail", "unknown", "pass")
"""Checks stand in this order: what is wrong first."""


@dataclass(frozen=True, slots=True)
class Source:
    """Everything that the Source page and ``gapscope source`` show of one run."""

    bundle: Bundle
    tool: str
    files: tuple[tuple[str, str], ...]
    """Name and SHA-256 of each file that was read."""
    facts: tuple[tuple[str, str], ...]
    """What the import did, in words: label and value."""
    not_recorded: tuple[str, ...]
    checks: tuple[Check, ...]
    definitions: tuple[tuple[str, str, str], ...]
    """Label, rule and where it was read."""
    figures: tuple[Figure, ...]
    """Those of time slices excepted: they are a chart."""
    sql: str

    @property
    def light(self) -> str:
        """The worst verdict of the checks; unknown without any."""
        return next((verdict for verdict in ORDER if any(c.verdict == verdict for c in self.checks)), "unknown")

    @property
    def beside(self) -> list[Figure]:
        """The tool's figures that are of a number of ours, in the order of our numbers; those of the warm-up last."""
        names, words = (*METRICS, *MEASURES), (*STATISTICS, *Window)
        found = [(figure.key, figure) for figure in self.figures if figure.key is not None]
        ranked = sorted(
            found, key=lambda one: (one[1].scope != "run", names.index(one[0].metric), words.index(one[0].statistic))
        )
        return [figure for _, figure in ranked]

    @property
    def others(self) -> list[Figure]:
        """The tool's other figures."""
        return [figure for figure in self.figures if figure.key is None]


def source(
    store: Store,
    run_id: str,
    population: Population,
    estimator: Estimator = Estimator.LINEAR,
    window: Window = Window.FIXED,
) -> Source:
    """What is known about the origin of a run.

    Raises:
        GapscopeError: the run is absent or altered.
    """
    bundle = store.bundle(run_id)
    found, sql = figures(store, run_id, population, estimator, window)
    lineage = bundle.lineage
    files = lineage.get("source_files")
    return Source(
        bundle=bundle,
        tool=tool_of(bundle, "a tool that its files do not name"),
        files=tuple(sorted((str(k), str(v)) for k, v in files.items())) if isinstance(files, dict) else (),
        facts=tuple(_facts(bundle)),
        not_recorded=tuple(_not_recorded(store, bundle)),
        checks=tuple(sorted(bundle.qualification, key=lambda check: ORDER.index(check.verdict))),
        definitions=tuple(
            (FIELDS["definitions"][name].label if name in FIELDS["definitions"] else name, str(f.value), f.source)
            for group, name, f in bundle.identity
            if group == "definitions"
        ),
        figures=tuple(found),
        sql=sql,
    )


def _not_recorded(store: Store, bundle: Bundle) -> Iterator[str]:
    """What the files of the run lack, a sentence each; of the engine, what attached streams do not tell either."""
    for sentence in map(str, _list(bundle.lineage.get("not_recorded"))):
        if not (sentence.startswith(INSIDE_ENGINE) and bundle.lineage.get("attached_to")):
            yield sentence
        elif missing := _unknown_of_engine(store, bundle):
            yield f"{INSIDE_ENGINE}: {', '.join(missing)}."


def _unknown_of_engine(store: Store, bundle: Bundle) -> list[str]:
    facts = store.query("engine_facts", runs={"run": bundle.run_id}).one()
    known = facts | {"passes": "passes" in bundle.tables, "KV blocks": "kv_events" in bundle.tables}
    return [name for name, found in known.items() if not found]


def _facts(bundle: Bundle) -> list[tuple[str, str]]:
    lineage = bundle.lineage
    facts = [("Kind", KIND_WORDS[bundle.kind]), ("Format", str(lineage.get("format") or "not said"))]
    for table in bundle.tables:
        facts.append((f"Rows of {table.replace('_', ' ')}", f"{bundle.rows(table):,}"))
    left = lineage.get("rows_left_out")
    if left is not None:
        facts.append(("Rows left out", f"{left:,}" if isinstance(left, int) else str(left)))
    aligned = lineage.get("alignment")
    if isinstance(aligned, dict):
        facts.append(("Clocks", _aligned(aligned)))
    return facts


def _aligned(record: dict[str, Any]) -> str:
    words = [f"aligned by {record.get('method')}", f"{record.get('n')} requests bound the offset"]
    residual = record.get("residual_ns")
    if isinstance(residual, dict):
        words.append("residual " + ", ".join(f"{name} {value / 1e6:,.1f} ms" for name, value in residual.items()))
    words.append(f"{record.get('violations')} violations")
    return "; ".join(words)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
