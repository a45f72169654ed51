"""Of what regime the timing of a replay is, what of it was accepted, and what was done to its level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dashboard.store import Store
from engine.bundle import Bundle
from engine.errors import GapscopeError
from engine.timing.anchors.regime import AxisRow, compare, distance, of_identity
from engine.timing.notes import circular, other_fallback
from engine.timing.tables.identity import regime_of_cell

PARTS = {"decode": "decode", "prefill": "prefill", "packed": "several prompts in one pass"}


@dataclass(frozen=True, slots=True)
class Held:
    """One record of measurements against a target, axis by axis."""

    what: str
    rows: tuple[AxisRow, ...]

    @property
    def distance(self) -> int:
        """Axes that differ and were not allowed to."""
        return distance(self.rows)


@dataclass(frozen=True, slots=True)
class Part:
    """What became of one part of a source. ``state``: accepted, refused, warning, allowed or left out."""

    part: str
    state: str
    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Change:
    """Something that was done to what was measured, or to the level of what is predicted."""

    what: str
    value: str
    basis: str


@dataclass(frozen=True)
class TimingRegime:
    """``kind`` of the source, ``target`` in words, what was compared with it, and what followed from that."""

    kind: str
    target: str
    held: tuple[Held, ...] = ()
    parts: tuple[Part, ...] = ()
    changes: tuple[Change, ...] = ()
    absent: tuple[str, ...] = field(default=())  # runs that it was measured on, in none of the stores


def timing_regime(store: Store, replay: Bundle, measured: Bundle) -> TimingRegime | None:
    """What the record of a replay says of the regime of its timing; None where it says nothing of its timing.

    Anchors and tables are compared as they were when the replay was made. The runs that a model was fitted on are
    compared with the deployment of the replay, and a named deployment with the measured run.
    """
    timing = replay.lineage.get("timing") or {}
    kind = timing.get("kind")
    if not kind:
        return None
    held: list[Held] = []
    parts: list[Part] = []
    absent: list[str] = []
    target = f"what replay {replay.run_id} stands for"
    if kind == "anchor":
        acceptance = timing.get("acceptance") or {}
        held.append(Held(f"anchor {timing.get('anchor', '')}", tuple(AxisRow(**row) for row in acceptance["rows"])))
        parts += _accepted(timing, acceptance)
    elif kind == "table":
        axes = ((timing.get("model") or {}).get("target") or {}).get("axes") or of_identity(replay.identity)
        held.append(
            Held(f"table {timing.get('table', '')}", tuple(compare(regime_of_cell(timing["table_identity"]), axes)))
        )
        parts += [
            Part("whole", "allowed", "forced", f"Forced: {said}.") for said in timing.get("forced_differences") or ()
        ]
        rows = timing.get("rows") or {}
        parts += [Part(part, "accepted", "rows", f"{count:,} rows of this deployment.") for part, count in rows.items()]
    elif kind in ("fpm", "measured"):
        own = of_identity(replay.identity)
        for source in timing.get("sources") or ():
            run_id, phases = source.get("run_id", ""), source.get("phases")
            what = run_id + (f" ({', '.join(phases)})" if phases else "")
            fitted = _found(store, run_id)
            if fitted is None:
                absent.append(run_id)
                continue
            configs = [bundle.identity.value("model", "config_digest") for bundle in (fitted, replay)]
            digests = tuple(None if one is None else str(one) for one in configs)
            held.append(Held(what, tuple(compare(of_identity(fitted.identity), own, (), (digests[0], digests[1])))))
            parts.append(_fitted(what, source))
        forced = timing.get("forced_differences") or ()
        parts += [Part("whole", "allowed", "forced", f"Forced, although it differs: {said}.") for said in forced]
    elif kind == "analytic":
        target = f"the measured run {measured.run_id}"
        rows = compare(of_identity(replay.identity), of_identity(measured.identity))
        held.append(Held("the named deployment", tuple(rows)))
        parts.append(
            Part(
                "whole",
                "accepted",
                "formula",
                "Nothing was measured: all of it is the roofline of the named deployment.",
            )
        )
    fallback = timing.get("fallback") or {}
    if fallback:
        sentence = f"What the {kind} source refuses is answered by the {fallback.get('kind')} source."
        note = other_fallback(timing, measured.identity)
        parts.append(Part("whole", "warning" if note else "allowed", "chain", f"{sentence} {note}".strip()))
    if note := circular(timing, measured.run_id):
        parts.append(Part("whole", "warning", "learned_on", note))
    return TimingRegime(kind, target, tuple(held), tuple(parts), tuple(_changes(timing)), tuple(absent))


def _found(store: Store, run_id: str) -> Bundle | None:
    try:
        return store.bundle(run_id)
    except GapscopeError:
        return None


def _accepted(timing: Mapping[str, Any], acceptance: Mapping[str, Any]) -> list[Part]:
    """Every part of an anchor with its refusals, and its warnings."""
    accepted = acceptance.get("accepted") or {}
    refusals = {
        "decode": acceptance.get("refusals") or (),
        "prefill": acceptance.get("prefill_refusals") or (),
        "packed": acceptance.get("packed_refusals") or (),
    }
    used = {"decode": timing.get("decode_source"), "prefill": timing.get("prefill_source"), "packed": ""}
    parts = []
    for name, words in PARTS.items():
        if accepted.get(name):
            by = f"Priced by the {used[name]}." if used[name] else "Measured, and used."
            parts.append(Part(words, "accepted", "", by))
        elif refusals[name]:
            parts += [Part(words, "refused", one["code"], one["sentence"]) for one in refusals[name]]
        else:
            parts.append(Part(words, "not measured", "", "The anchor says nothing of it."))
    for one in acceptance.get("warnings") or ():
        state = "allowed" if one["code"].startswith("allowed_") else "warning"
        parts.append(Part("whole", state, one["code"], one["sentence"]))
    return parts


def _fitted(what: str, source: Mapping[str, Any]) -> Part:
    count = source.get("passes")
    left = {name.replace("_", " "): n for name, n in (source.get("left_out") or {}).items() if n}
    said = f"{count:,} passes" if isinstance(count, int) else "its passes"
    rest = f"; left out: {', '.join(f'{n:,} {name}' for name, n in left.items())}" if left else ""
    return Part("whole", "accepted", "fitted_on", f"Fitted on {said} of {what}{rest}.")


def _changes(timing: Mapping[str, Any]) -> Iterable[Change]:
    for name, level in (timing.get("levels") or {}).items():
        if level.get("basis") != "none":
            of = str(level["basis"]).replace("_", " ")
            basis = f"{level['passes']:,} {of} passes of the run at whose level it predicts"
            yield Change(f"level of {name.replace('_', ' ')} passes", f"{level['factor']:.3f}", basis)
    for sentence in timing.get("transport") or ():
        yield Change("transport", "", sentence)
    verification = timing.get("verification") or {}
    if verification.get("width", 1) > 1:
        basis = f"drafting adds {verification.get('drafting', 0):.3f} of a plain step"
        yield Change("verify width", str(verification["width"]), basis)
    if correction := timing.get("correction"):
        learned = ", ".join(
            f"{one['run_id']}" + (f" ({', '.join(one['phases'])})" if one.get("phases") else "")
            for one in correction.get("learned_on") or ()
        )
        for name, factors in (correction.get("factors") or {}).items():
            known = [factor for factor in factors if factor is not None]
            value = f"{min(known):.3f} to {max(known):.3f}" if known else "1 (none ready)"
            basis = (
                f"correction {correction.get('name', '')}, learned on {learned}: {len(known)} of {len(factors)} buckets"
            )
            yield Change(f"correction of {name.replace('_', ' ')} passes", value, basis)
    if timing.get("pass_scale") not in (None, 1.0):
        yield Change("all passes", f"{timing['pass_scale']:g}", "knob pass_scale")
