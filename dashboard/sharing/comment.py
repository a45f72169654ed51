"""A block for a review comment: verdict in one line, permalink, the identity of each run, and what was drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dashboard.charts.answer import Answer
from dashboard.compare import LABELS, compare
from dashboard.compare.claim import brief
from dashboard.compare.contract import parse_gates
from dashboard.frame import WHOLE_CAPTURE, Frame, Side, is_whole
from dashboard.queries.identity import said_differing
from dashboard.sharing.plain import grid, literal, markdown_table
from dashboard.store import Store
from dashboard.view import PARAMS
from engine.definitions import differing
from engine.errors import GapscopeError

ROWS = 15
"""Rows of a table in a comment: what was left out is said."""
WHOLE = ("gaps", "gates", "numbers")
"""Charts and tables that a verdict rests on: none of their rows is left out."""
PROSE = ("reason",)
"""Columns that only explain another one of the same table, row by row."""


@dataclass(frozen=True)
class Drawn:
    """A chart or a table that a page shows. ``sides`` are the runs it is about, where not all of the frame."""

    frame: Frame
    key: str
    title: str
    answer: Answer
    note: str = ""
    sides: tuple[Side, ...] | None = None

    @property
    def anchor(self) -> str:
        """Where a link within the page leads to it."""
        return "chart-" + "".join(char if char.isalnum() else "-" for char in self.key)


@dataclass
class Shown:
    """What a page drew in its last run, by the key of the chart: one that is drawn again replaces itself.

    ``link`` gives the permalink of the page as its controls stand, ``contract`` the gates that they hold.
    """

    store: Store
    page: str
    link: Callable[[], str]
    contract: Callable[[], str] = str
    drawn: dict[str, Drawn] = field(default_factory=dict)

    def tell(self, one: Drawn) -> None:
        """Remember a chart or a table."""
        self.drawn[one.key] = one

    def page_comment(self, only: Callable[[str], bool] = lambda key: True) -> str:
        """The page for a comment; ``only`` chooses among what it drew by the keys."""
        chosen = [one for key, one in self.drawn.items() if only(key)]
        if not chosen:
            return f"**gapscope: {literal(self.page)}**\n\n[this view]({self.link()})\n"
        frame = chosen[0].frame
        return comment(
            f"gapscope: {self.page}", frame, verdicts(frame, self.store, self.contract()), self.link(), chosen
        )

    def verdict_comment(self) -> str:
        """The verdict alone: headline numbers and gates of the contract; all numbers where gaps are withheld."""
        headline = any(key == "gaps" for key in self.drawn)
        return self.page_comment(lambda key: key.startswith(("gaps", "gates") if headline else ("numbers", "gates")))

    def chart_comment(self, one: Drawn) -> str:
        """One chart or table for a comment."""
        frame = one.frame
        return comment("", frame, verdicts(frame, self.store, self.contract(), one.sides), self.link(), [one])


def verdicts(
    frame: Frame, store: Store, contract: str = "", sides: Sequence[Side] | None = None
) -> list[tuple[Side, str]]:
    """The bounded claim on each replay in one line, in plain text."""
    found = []
    for side in frame.replays:
        if sides is None or side in sides:
            found.append((side, verdict(frame, store, side, contract)))
    return found


def verdict(frame: Frame, store: Store, side: Side, contract: str = "") -> str:
    """The bounded claim on one replay with its warnings in one line, in plain text; else why there is none."""
    if side.regime and not frame.acknowledged:
        names = ", ".join(diff.label for diff in side.regime)
        return f"Not like for like ({names}): gaps are withheld."
    try:
        gates, ids = parse_gates(contract), (frame.measured.run_id, side.run_id)
        found = compare(store, *ids, frame.population, frame.estimator, frame.window, gates)
        return " ".join([brief(found.claim), *(f"Warning: {warning.text}" for warning in found.warnings)])
    except GapscopeError as error:
        return f"No verdict: {error}"


def comment(title: str, frame: Frame, told: Sequence[tuple[Side, str]], link: str, drawn: Iterable[Drawn]) -> str:
    """The whole block; everything that a run says in it is plain text."""
    drawn = list(drawn)
    sides = drawn[0].sides if len(drawn) == 1 and drawn[0].sides else frame.sides
    parts = [f"**{literal(title)}**"] if title else []
    parts += [f"{literal(_label(side))}: {literal(words)}" for side, words in told]
    parts += [f"[This view]({link})"] if link else []
    parts += [identities(frame, sides, drawn[0].answer.n if len(drawn) == 1 else None)]
    parts += [scope(frame, whole=all(is_whole(one.title) for one in drawn))]
    keys = {one.key for one in drawn}
    for one in drawn:
        if f"{one.key}-table" not in keys:  # else the same rows come again as a table
            parts += [f"**{literal(one.title)}**", table_of(one.answer, None if one.key in WHOLE else ROWS)]
    return "\n\n".join(parts) + "\n"


def _label(side: Side) -> str:
    return f"{side.run_id} ({LABELS[side.label]})" if side.label else side.run_id


def identities(frame: Frame, sides: Sequence[Side], n: Mapping[str, int | None] | None = None) -> str:
    """Who stands in the comment: run, place, label, fields that differ and are unknown, n where a chart rests on it."""
    counts = n or {}
    head = ["run", "is", "label", "identity", "coverage", *(["n"] if counts else [])]
    rows = []
    for side in sides:
        identity, coverage = "", ""
        if side is not frame.measured and side.label:
            identity = f"{said_differing(side.diffs)}, {side.unknown} unknown"
            rules = differing(frame.measured.bundle.identity, side.bundle.identity)
            identity += f"; other definitions: {'; '.join(rules)}" if rules else ""
        if side.bundle.kind == "replay":
            share = side.coverage
            coverage = "not recorded" if share is None else f"{100 * share:.1f} % of modelled time"
        row = [side.run_id, side.place, LABELS.get(side.label, ""), identity, coverage]
        if counts:
            count = counts.get(side.run_id)
            row.append("–" if count is None else f"{count:,}")
        rows.append(row)
    return grid(head, rows, [name == "n" for name in head])


def scope(frame: Frame, *, whole: bool = False) -> str:
    """Population, estimator and window in a line of Markdown; ``whole`` as in the strip of a chart."""
    return literal(
        f"Population: {WHOLE_CAPTURE if whole else frame.population.words}. "
        f"Estimator: {PARAMS['est'].say(frame.estimator)}. Window of rates: {PARAMS['win'].say(frame.window)}."
    )


def table_of(answer: Answer, rows: int | None = ROWS) -> str:
    """The rows of an answer as a Markdown table, all or the first ones with what was cut; a sentence without any."""
    if answer.not_recorded:
        return literal(answer.not_recorded)
    if not answer.rows.num_rows:
        return literal(answer.empty)
    columns = [column for column in answer.shown if column.name not in PROSE]
    total = answer.rows.num_rows
    rows = total if rows is None else rows
    lines = [markdown_table(answer.rows.slice(0, rows), columns)]
    if total > rows or answer.truncated:
        more = ", and the answer itself was cut there" if answer.truncated else ""
        lines.append(f"{min(rows, total):,} of {total:,} rows{more}.")
    lines += [literal(answer.partly)] if answer.partly else []
    return "\n\n".join(lines)
