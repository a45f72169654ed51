"""Why tools that looked at one server disagree: short sentences, each from a difference that was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dashboard.compare.beside import Figure
from dashboard.compare.tool_runs import ToolRun
from dashboard.metrics import Population
from engine.definitions import FIRST_CHUNK, ROLE_CHUNK, TOKENS_REQUESTED
from engine.importers.clients.flags import ASKED_LENGTH, BURST

_OWN = {"ttft": "mean", "tpot": "mean", "itl": "mean", "request_rate": "", "output_rate": ""}
"""The tool's own figures whose differences are told, each with its statistic (rates have one only)."""


def reasons(runs: Sequence[ToolRun], figures: Mapping[str, Sequence[Figure]], population: Population) -> list[str]:
    """The sentences; empty where nothing was found that differs. ``figures`` are the tools' own, by letter."""
    return [
        *_populations(runs, population),
        *_words_for(runs, population, "zero_output", "finished without content", "they are one class, without latency"),
        *_words_for(runs, population, "unfinished", "broke off without finish or usage", "they are told apart"),
        *_first_token(runs),
        *_tokens(runs),
        *_chunks(runs),
        *_rule(runs, "throughput_denominator", "Rates are over different times", "Ours are over one window"),
        *_rule(runs, "percentiles", "Percentiles are read off by different rules", "Ours are read off by one"),
        *_rule(runs, "tpot", "TPOT is defined differently", "Ours is computed from the rows by one rule"),
        *_own_figures(runs, figures),
        *_without_rows(runs),
    ]


def _populations(runs: Sequence[ToolRun], population: Population) -> list[str]:
    counts = {run.letter: run.attempted(population) for run in runs if run.rows}
    if len(counts) < 2:
        return []
    told = ", ".join(f"{letter} {count:,}" for letter, count in counts.items())
    alike = len(set(counts.values())) == 1
    return [
        f"The populations are {'equally large but not' if alike else 'not'} the same: requests sent are {told}. No "
        "request is joined across tools, so only distributions stand side by side."
    ]


def _first_token(runs: Sequence[ToolRun]) -> list[str]:
    # As engine.definitions has it: rows whose rule nobody named are taken for those of the usual one.
    rules = {run.letter: run.bundle.identity.value("definitions", "first_token") for run in runs if run.rows}
    early = [letter for letter, rule in rules.items() if rule in (ROLE_CHUNK, FIRST_CHUNK)]
    other = [letter for letter in rules if letter not in early]
    if not early or not other:
        return []
    return [
        f"{_names(early)} {_has(early, 'takes', 'take')} the first chunk of any kind for the first token, which may "
        f"hold a role and no text; {_names(other)} the first content. TTFT of {_names(early)} is too short by the time "
        "between the two, and TPOT holds that time as well."
    ]


def _words_for(runs: Sequence[ToolRun], population: Population, outcome: str, what: str, here: str) -> list[str]:
    having = [run for run in runs if run.rows and run.count(outcome, population)]
    if not having:
        return []
    told = [
        f"{run.count(outcome, population):,} in {run.letter}"
        + (f", which calls {'it' if run.count(outcome, population) == 1 else 'them'} {words!r}" if words else "")
        for run in having
        for words in (run.words(outcome, population),)
    ]
    return [f"Requests that {what}: {'; '.join(told)}. Here {here}."]


def _tokens(runs: Sequence[ToolRun]) -> list[str]:
    asked = [
        run
        for run in runs
        if run.bundle.identity.value("definitions", "token_source") == TOKENS_REQUESTED or run.flags.get(ASKED_LENGTH)
    ]
    if not asked:
        return []
    told = [
        f"{run.letter} ({run.flags[ASKED_LENGTH]:,} requests)" if run.flags.get(ASKED_LENGTH) else run.letter
        for run in asked
    ]
    return [
        f"Output tokens of {_names(told)} are the length that was asked for where the server did not count: token "
        "counts and rates are too high there."
    ]


def _chunks(runs: Sequence[ToolRun]) -> list[str]:
    having = [f"{run.letter} ({run.flags[BURST]:,} requests)" for run in runs if run.flags.get(BURST)]
    if not having:
        return []
    return [
        f"Some responses came in fewer chunks than tokens: {_names(having)}. Gaps between chunks are not gaps between "
        "tokens there; TPOT divides by the number of tokens and does not depend on chunks."
    ]


def _rule(runs: Sequence[ToolRun], field: str, what: str, ours: str) -> list[str]:
    by_rule: dict[str, list[str]] = {}
    for run in runs:
        if rule := run.bundle.identity.value("definitions", field):
            by_rule.setdefault(str(rule), []).append(run.letter)
    if len(by_rule) < 2:
        return []
    told = "; ".join(f"{_names(letters)}: {rule}" for rule, letters in by_rule.items())
    return [f"{what} ({told}). {ours}."]


def _own_figures(runs: Sequence[ToolRun], figures: Mapping[str, Sequence[Figure]]) -> list[str]:
    """Where a tool's own figure is not what its rows give by our rule, and by what definition."""
    found = []
    for run in runs:
        for figure in figures[run.letter]:
            key = figure.key
            if (
                key is None
                or figure.scope != "run"
                or figure.ours is None
                or figure.agrees
                or _OWN.get(key.metric) not in ("", key.statistic)
            ):
                continue
            what = f"{key.label} {figure.statistic}" if _OWN[key.metric] else key.label
            found.append(
                f"{run.letter} says {what} {figure.value:,.2f} {figure.unit}, its rows give "
                f"{figure.ours.value or 0.0:,.2f} by our rule: {figure.explanation}."
            )
    return found


def _without_rows(runs: Sequence[ToolRun]) -> list[str]:
    bare = [run.letter for run in runs if not run.rows]
    if not bare:
        return []
    return [
        f"{_names(bare)} {_has(bare, 'has', 'have')} no rows: the tool's own figures are shown with their definitions "
        "and are not differenced."
    ]


def _names(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _has(words: Sequence[str], one: str, several: str) -> str:
    return one if len(words) == 1 else several
