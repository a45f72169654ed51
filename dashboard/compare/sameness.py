"""Several identity records side by side: which fields differ from the baseline, and whether that is one configuration.

Values that hold several settings (launch arguments, sampling) are taken apart, a line for each. What nobody sets but a
run shows, as the windows of its phases and the load of its machine, is *observed*: it is shown and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dashboard.queries.identity import VARYING_FIELDS
from engine.bundle import Bundle
from engine.identity import FIELDS, GROUPS, Field, diff

State = Literal["same", "differs", "unknown", "not applicable"]
Kind = Literal["regime", "configuration", "observed"]
NOT_GIVEN = "not given"
"""A setting that one launch names and the other, which is known as well, does not."""
WINDOWS = "Phases as they ran"
_PHASES = {"warmup": "warm-up", "cooldown": "cool-down"}


@dataclass(frozen=True, slots=True)
class Line:
    """One field on all sides. ``fields`` and ``states`` are in the order of the runs; the baseline has no state."""

    group: str  # in words
    label: str
    kind: Kind
    fields: tuple[Field | None, ...]
    states: tuple[State, ...]

    @property
    def state(self) -> State:
        """Of all candidates together: one that differs, else one that is unknown, decides."""
        return next((one for one in ("differs", "unknown", "same") if one in self.states), "not applicable")

    def said(self, place: int) -> str:
        """The value of one side in words, marked where it differs from the baseline."""
        found = self.fields[place]
        if found is None or found.value is None:
            return "does not apply" if place and self.states[place - 1] == "not applicable" else "unknown"
        return f"differs: {plain(found.value)}" if place and self.states[place - 1] == "differs" else plain(found.value)

    def holds(self, words: Sequence[str]) -> bool:
        """Whether every word (lower case) occurs in the field or in a value of it."""
        text = " ".join([self.group, self.label, *(self.said(place) for place in range(len(self.fields)))]).lower()
        return all(word in text for word in words)


@dataclass(frozen=True, slots=True)
class Sameness:
    """Whether one candidate has the configuration of the baseline: how many lines that count differ, and so on."""

    differing: tuple[Line, ...]
    unknown: int  # known on one side only
    nowhere: int  # recorded on neither
    same: int

    @property
    def state(self) -> Literal["refused", "not shown", "same"]:
        """One difference refuses it; what one side only knows leaves it open."""
        return "refused" if self.differing else "not shown" if self.unknown else "same"

    @property
    def words(self) -> str:
        """In a sentence."""
        if self.differing:
            first = ", ".join(line.label for line in self.differing[:3])
            more = f" and {len(self.differing) - 3} more" if len(self.differing) > 3 else ""
            return f"not the same configuration: {_settings(len(self.differing))} ({first}{more})"
        if self.unknown:
            return (
                f"not shown to be the same configuration: no setting differs, {self.unknown} are known on one side only"
            )
        return (
            f"the same configuration as far as recorded: {self.same} settings are equal, {self.nowhere} known on no "
            "side"
        )


def _settings(count: int) -> str:
    return "1 setting differs" if count == 1 else f"{count} settings differ"


def lines(baseline: Bundle, others: Sequence[Bundle]) -> list[Line]:
    """Every field of the runs, in the order of the record; the windows of phases come last."""
    diffs = [{(d.group, d.field): d for d in diff(baseline.identity, other.identity)} for other in others]
    names = list(dict.fromkeys(name for found in diffs for name in found))
    made: list[Line] = []
    for group, name in names:
        fields = tuple(one.identity.get(group, name) for one in (baseline, *others))
        states = tuple(_state(found[group, name].state) if (group, name) in found else "unknown" for found in diffs)
        spec = FIELDS.get(group, {}).get(name)
        kind: Kind = "regime" if spec and spec.regime else "configuration"
        kind = "observed" if (group, name) in VARYING_FIELDS else kind
        line = Line(GROUPS.get(group, group), spec.label if spec else name.replace("_", " "), kind, fields, states)
        made += _apart(line)
    return made + _windows(baseline, others)


def by_weight(found: Sequence[Line]) -> list[Line]:
    """Lines of the regime first, what is only observed last; inside each in the order of the record."""
    return sorted(found, key=lambda line: ("regime", "configuration", "observed").index(line.kind))


def sameness(found: Sequence[Line], place: int) -> Sameness:
    """Whether the candidate at this place (from 0) has the configuration of the baseline."""
    counting = [line for line in found if line.kind != "observed"]
    differing = tuple(line for line in counting if line.states[place] == "differs")
    unknown = [line for line in counting if line.states[place] == "unknown"]
    one_side = sum(any(_known(line.fields[at]) for at in (0, place + 1)) for line in unknown)
    same = sum(line.states[place] == "same" for line in counting)
    return Sameness(differing, one_side, len(unknown) - one_side, same)


def plain(value: Any) -> str:
    """A value as text; lists with commas."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(one) for one in value)
    return str(value)


def _state(state: str) -> State:
    if state.startswith("unknown"):
        return "unknown"
    return "not applicable" if state == "not_applicable" else state  # type: ignore[return-value]


def _known(field: Field | None) -> bool:
    return field is not None and field.value is not None


def _apart(line: Line) -> list[Line]:
    """A line for each setting where every side that is known holds several; otherwise the line itself."""
    known = [field for field in line.fields if field is not None and field.value is not None]
    if not known or not all(isinstance(field.value, Mapping) for field in known):
        return [line]
    made = []
    for key in dict.fromkeys(key for field in known for key in field.value):
        fields = tuple(
            None if field is None or field.value is None else Field(field.value.get(key, NOT_GIVEN), field.source)
            for field in line.fields
        )
        made.append(Line(line.group, f"{line.label}: {key}", line.kind, fields, _against_first(fields)))
    return made


def _against_first(fields: Sequence[Field | None]) -> tuple[State, ...]:
    first = fields[0]
    return tuple(
        "unknown"
        if first is None or other is None or None in (first.value, other.value)
        else "same"
        if first.value == other.value
        else "differs"
        for other in fields[1:]
    )


def _windows(baseline: Bundle, others: Sequence[Bundle]) -> list[Line]:
    """The windows of the phases, in seconds from the start of profile."""
    found = [{phase.name: phase for phase in one.phases} for one in (baseline, *others)]
    made = []
    for name in dict.fromkeys(name for phases in found for name in phases):
        fields = tuple(
            Field(_span(phases[name].start_ns, phases[name].end_ns), "run.json: phases") if name in phases else None
            for phases in found
        )
        made.append(Line(WINDOWS, _PHASES.get(name, name), "observed", fields, _against_first(fields)))
    return made


def _span(start_ns: int, end_ns: int) -> str:
    return f"{start_ns / 1e9:.3f} to {end_ns / 1e9:.3f} s"
