"""The frame of a page: which runs stand side by side, in which colours, and what a strip must say of them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dashboard.charts.style import COMPARED, REFERENCE, REPEAT, ROLES, Role
from dashboard.compare import LABELS
from dashboard.compare.rows import ALIKE, places
from dashboard.metrics import Estimator, Population, Window
from dashboard.queries.identity import said_differing
from dashboard.serving.places import hidden
from dashboard.view import PARAMS
from engine.bundle import Bundle
from engine.definitions import differing
from engine.identity import FieldDiff

LEGEND_CHARS = 28
"""Of the name of a run in a legend."""


def cut(text: str, most: int) -> str:
    """A text that is cut where it is longer than ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


@dataclass(frozen=True)
class Side:
    """One run of the pair bar, seen from the measured run."""

    role: Role
    bundle: Bundle
    label: str = ""  # a key of LABELS; empty for the measured run itself
    diffs: tuple[FieldDiff, ...] = ()
    coverage: float | None = None  # share of modelled time inside the measured domain
    said: str = ""  # what the run is here, where it is no side of a pair

    @property
    def run_id(self) -> str:
        """Content id of the run."""
        return self.bundle.run_id

    @property
    def name(self) -> str:
        """What a legend says: the place, and the name of the run; its title and its id stand in the bar and strips."""
        return html.escape(f"{self.place}: {cut(self.run_id.rpartition('-')[0], LEGEND_CHARS)}", quote=False)

    @property
    def place(self) -> str:
        """What the run is here, as in the bar; a recording in the place of a replay, and the reverse, is said."""
        if self.said or self.role is REPEAT:
            return self.said or self.role.name
        kinds = {"measured": "a recording", "replay": "a replay"}
        usual = "measured" if self.role in (ROLES[0], REFERENCE) else "replay"
        if self.bundle.kind == usual or self.bundle.kind not in kinds:
            return self.role.name
        if self.role in (ROLES[0], ROLES[1]):  # these two names say another kind of run
            return f"in the place of the {self.role.name} run: {kinds[self.bundle.kind]}"
        return f"{self.role.name}: {kinds[self.bundle.kind]}"

    @property
    def noun(self) -> str:
        """What a sentence calls the run: the replay, or the run compared with it."""
        return f"run {self.role.name}" if self.role is COMPARED else self.role.name

    @property
    def called(self) -> str:
        """The run inside a sentence, with its article where it has one: the replay, candidate 2."""
        return self.noun if self.noun.startswith("candidate") else f"the {self.noun}"

    @property
    def differing(self) -> int:
        """Identity fields that differ."""
        return sum(diff.state == "differs" for diff in self.diffs)

    @property
    def unknown(self) -> int:
        """Identity fields that one side or both do not know."""
        return sum(diff.state.startswith("unknown") for diff in self.diffs)

    @property
    def regime(self) -> tuple[FieldDiff, ...]:
        """Differing fields that define the regime."""
        return tuple(diff for diff in self.diffs if diff.state == "differs" and diff.regime)


@dataclass(frozen=True)
class Frame:
    """What every chart of a page is about."""

    measured: Side
    replays: tuple[Side, ...]
    population: Population
    estimator: Estimator
    window: Window
    acknowledged: bool = False
    dark: bool = False
    link_of: Callable[[], str] = str
    pinned: bool = False  # the measured run is the pinned baseline of the view
    hidden: frozenset[str] = frozenset()  # ids of the runs that charts leave out

    @property
    def link(self) -> str:
        """The permalink of the view as it is now, with controls drawn after the frame was made; may be empty."""
        return self.link_of()

    @property
    def sides(self) -> tuple[Side, ...]:
        """The measured run, then the replays."""
        return (self.measured, *self.replays)

    @property
    def replay(self) -> Side | None:
        """The first replay: the one that tables compare with."""
        return self.replays[0] if self.replays else None

    @property
    def like_for_like(self) -> bool:
        """Whether no regime field differs, or the reader acknowledged that some do."""
        return self.acknowledged or not any(side.regime for side in self.replays)

    def counterpart(self, side: Side) -> str | None:
        """The run by which membership of a matched population is decided."""
        if side is self.measured:
            return self.replay.run_id if self.replay else None
        return self.measured.run_id

    def population_of(self, side: Side) -> Population:
        """The population of one side."""
        return self.population.for_side(self.counterpart(side))


def role(index: int) -> Role:
    """The role of the replay at this place of the pair bar."""
    return ROLES[min(index + 1, len(ROLES) - 1)]


def placed(measured: Side, replays: Sequence[Side]) -> tuple[Side, tuple[Side, ...]]:
    """The sides, called by their places where they are no recording and a replay of it."""
    kinds = [side.bundle.kind for side in replays]
    own = dict(zip(ROLES, roles(measured.bundle.kind, kinds), strict=True))
    left, *right = (replace(side, role=own.get(side.role, side.role)) for side in (measured, *replays))
    return left, tuple(right)


def roles(first: str, others: Sequence[str]) -> tuple[Role, ...]:
    """The roles of the pair bar, by the kind of the run in first place and of the others."""
    alike = bool(others) and all(places(first, other) == ALIKE for other in others)
    return (REFERENCE, COMPARED, *ROLES[2:]) if alike else ROLES


_SIDES = re.compile(r"\b(measured|replay|replayed)\b", re.IGNORECASE)


def header(frame: Frame, label: str) -> str:
    """The header of a column, with the words of the label for either side."""
    if frame.measured.role is not REFERENCE:
        return label
    words = {"measured": REFERENCE.name, "replay": COMPARED.name, "replayed": "compared"}

    def said(found: re.Match[str]) -> str:
        word = words[found[0].lower()]
        return word.capitalize() if found[0][0].isupper() else word

    return _SIDES.sub(said, label)


WHOLE_CAPTURE = "whole capture, every phase"


def is_whole(title: str) -> bool:
    """Whether a chart of this title is about the whole capture, whatever population stands in the bar."""
    return "whole capture" in title


def strip_lines(
    frame: Frame, n: Mapping[str, int | None], sides: tuple[Side, ...] | None = None, *, whole: bool = False
) -> list[str]:
    """The identity strip in Markdown: one line per run, one for population, estimator and window.

    ``n`` maps run ids to the number of rows that the chart rests on; ``whole`` says that it is about the whole
    capture, whatever population stands in the bar.
    """
    lines = []
    for side in sides or frame.sides:
        words = [f":{side.role.word}[{side.role.glyph} {escape(side.run_id)}] {side.place}"]
        if side is frame.measured and frame.pinned:
            words.append("**pinned baseline**")
        if side.label:
            words.append(f"**{LABELS[side.label]}**")
        if side.run_id in n:
            count = n[side.run_id]
            words.append("n not recorded" if count is None else f"n {count:,}")
        if side is not frame.measured:
            words.append(f"identity: {said_differing(side.diffs)}, {side.unknown} unknown")
            if side.regime and not frame.acknowledged:
                words.append("**not like for like**")
            own = differing(frame.measured.bundle.identity, side.bundle.identity)
            words += [f":orange-badge[{escape(rule)}]" for rule in own]
            if side.bundle.kind == "replay":
                share = "not recorded" if side.coverage is None else f"{100 * side.coverage:.1f} % of modelled time"
                words.append(f"coverage {share}")
        lines.append(" · ".join(words))
    lines.append(
        f"population: {WHOLE_CAPTURE if whole else frame.population.words} · "
        f"estimator: {PARAMS['est'].say(frame.estimator)} · window of rates: {PARAMS['win'].say(frame.window)}"
    )
    return lines


_LINK = re.compile(r"(?<=http:)(?=//)|(?<=https:)(?=//)|(?<=www)(?=[.])|(?=@)", re.IGNORECASE)
_MARKS = frozenset("\\`*_{}[]()#+-.!|<>$~:=&")


def escape(text: str) -> str:
    """Text of a run, so that Markdown shows it as it is: on one line, without links.

    A word joiner, which nobody sees, breaks addresses: Markdown makes links of bare ones even where they are escaped.
    """
    plain = _LINK.sub("\u2060", " ".join(hidden(text).split()))
    return "".join("\\" + char if char in _MARKS else char for char in plain)
