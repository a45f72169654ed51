"""How to read a chart and how it was computed: the panel under every chart, and the definitions at its axes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import streamlit as st

from dashboard.charts.panel.reading import reading
from dashboard.frame import Side, escape
from dashboard.sharing.comment import Drawn
from dashboard.view import PARAMS
from engine.definitions import differing

_FILE = re.compile(r"^-- \w+: (?P<file>\w+\.parquet) of run (?P<run>\S+)$", re.MULTILINE)
"""The line by which a query says what a relation in it is."""
_LATENCY = re.compile(r"\b(TTFT|TPOT|ITL|E2E)\b")
_CLOCKS = {"TTFT": ("dispatched_ns", "first_visible_ns"), "TPOT": ("first_visible_ns", "last_visible_ns")}
_CLOCKS |= {"ITL": ("first_visible_ns", "last_visible_ns"), "E2E": ("dispatched_ns", "last_visible_ns")}
_RULES = {
    "first token": ("first_token", ("TTFT", "TPOT", "ITL")),
    "end of latency": ("end_of_latency", ("TPOT", "E2E")),
    "divisor, output tokens": ("token_source", ("TPOT",)),
}


@dataclass(frozen=True, slots=True)
class Rests:
    """A file that rows of a chart came from, with the digest of its content; ``rows`` None where unknown."""

    run: str
    file: str
    digest: str
    rows: int | None


def rests_on(sql: str, sides: Sequence[Side]) -> list[Rests]:
    """The files that the queries of a chart read; without queries the runs as wholes, whose ids are their digests."""
    bundles = {side.run_id: side.bundle for side in sides}
    found: list[Rests] = []
    for file, run in dict.fromkeys((one["file"], one["run"]) for one in _FILE.finditer(sql)):
        entry = bundles[run].manifest["files"].get(file, {}) if run in bundles else {}
        found.append(Rests(run, file, str(entry.get("content", ""))[:12] or "in its run.json", entry.get("rows")))
    return found or [Rests(run, "the run as a whole", run.rpartition("-")[2], None) for run in bundles]


def panel(page: str, drawn: Drawn) -> None:
    """Reading, definition, whose rows, and the files that they came from."""
    sides = drawn.sides or drawn.frame.sides
    frame, answer = drawn.frame, drawn.answer
    st.markdown(f"**How to read it.** {escape(reading(page, drawn.key))}")
    if answer.definition:
        st.markdown(f"**How it was computed.** {escape(answer.definition)}")
    for column in answer.columns:
        if column.help:
            st.markdown(f"{escape(column.label)}: {escape(column.help)}")
    estimator, window = PARAMS["est"].say(frame.estimator), PARAMS["win"].say(frame.window)
    st.markdown(
        f"**Which rows.** {escape(frame.population.words)}; estimator {escape(estimator)}, rates over the "
        f"{escape(window)}. A title that says *whole capture* is about all phases."
    )
    rests = rests_on(answer.sql, sides)
    st.dataframe(
        pa.table(
            {
                "run": [one.run for one in rests],
                "file": [one.file for one in rests],
                "digest of its content": [one.digest for one in rests],
                "rows in it": pa.array([one.rows for one in rests], pa.int64()),
            }
        ),
        key=f"files-{drawn.key}",
        hide_index=True,
        placeholder="–",
        alt="Files that the rows came from",
    )


def chips(sides: Sequence[Side], title: str) -> list[str]:
    """Definitions behind a latency in a title that differ between sides or that a side does not name, as Markdown.

    Which first token, which end, which divisor, which clock; what is the same on all sides and known needs no chip.
    """
    named = set(_LATENCY.findall(title))
    if not named or len(sides) < 2:
        return []
    told = list(dict.fromkeys(words for side in sides[1:] for words in _apart(sides[0], side, named)))
    made = [f":orange-badge[{escape(words)}]" for words in told]
    for words, (field, metrics) in _RULES.items():
        if named.intersection(metrics):
            silent = [side.role.name for side in sides if side.bundle.identity.value("definitions", field) is None]
            made += [f":gray-badge[{escape(words)}: not named by {escape(', '.join(silent))}]"] if silent else []
    return made + _clocks(sides, named)


def _apart(first: Side, side: Side, named: set[str]) -> list[str]:
    """The rules that differ and that one of the latencies rests on."""
    found = differing(first.bundle.identity, side.bundle.identity)
    own = {"first token": "first token", "end of latency": "end of latency", "output tokens": "divisor, output tokens"}
    kept = [words for words in found if named.intersection(_RULES[own[words.partition(":")[0]]][1])]
    return [f"{words} ({side.role.name})" for words in kept]


def _clocks(sides: Sequence[Side], named: set[str]) -> list[str]:
    columns = dict.fromkeys(column for name in sorted(named) for column in _CLOCKS[name])
    made: dict[str, None] = {}
    for column in columns:
        found = [side.bundle.manifest["clocks"].get(f"requests.{column}") for side in sides]
        moment = column.removesuffix("_ns").replace("_", " ")
        known = dict.fromkeys(str(clock) for clock in found if clock)
        if len(known) > 1:
            made[f":orange-badge[clock of {moment}: {escape(' or '.join(known))}]"] = None
        silent = [side.role.name for side, clock in zip(sides, found, strict=True) if not clock]
        if silent:
            made[f":gray-badge[clock of {moment}: not named by {escape(', '.join(silent))}]"] = None
    return list(made)
