"""An anchor's curves carried over to widths that it was not measured on.

What is carried is measured; what changes it is the formula's whole step, on the measured widths and on the asked ones.
Where no part and model are named there is no formula, and only what needs none is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine.deployment import DTYPES, Deployment, dtype_bytes
from engine.errors import GapscopeError
from engine.timing.analytic import StepModel
from engine.timing.anchors.artefact import Anchor
from engine.timing.anchors.prefill import PrefillLine
from engine.timing.anchors.regime import of_anchor
from engine.timing.anchors.target import WIDTHS, Target, other_widths
from engine.timing.contract import PassQueries

LEAST_SHARE = 0.05
"""Of a measured step, what the formula may leave of it at least."""


@dataclass(frozen=True)
class Steps:
    """The formula on both sides: the target, and the target as the anchor was spread and kept its KV."""

    target: StepModel
    measured: StepModel

    def decode(self, measured: bool, batch: float, context: float, width: int) -> float:
        """A decode step without what GPUs say to each other, in milliseconds."""
        step = self.measured if measured else self.target
        found = step.parts(_decode_query(step, batch, context), width)
        return float(sum(time[0] for name, time in found.items() if name != "collectives")) / 1e6

    def handover(self, batch: float, context: float, width: int) -> float:
        """What the target's stages take longer to hand over to each other than the anchor's, in milliseconds."""
        here = self.measured.deployment.pp
        there = StepModel(replace(self.target.deployment, pp=here), "engine")
        query = _decode_query(self.target, batch, context)
        return (
            float(self.target.parts(query, width)["collectives"][0] - there.parts(query, width)["collectives"][0]) / 1e6
        )


@dataclass
class Transport:
    """From an anchor to a target. ``done`` says in sentences what was changed, for a reader.

    Raises:
        GapscopeError: the widths differ in a way that needs the formula, and no part and model are named.
    """

    anchor: Anchor
    target: Target
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        anchor, target = self.anchor, self.target
        sides = {width: (getattr(anchor, width), getattr(target, width)) for width in WIDTHS}
        known: dict[str, tuple[int, int]] = {width: both for width, both in sides.items() if None not in both}
        self._changed = other_widths(anchor, target)
        axis = of_anchor(anchor)["kv_dtype"]
        self._kv = axis if axis in DTYPES else None
        deployment = target.deployment
        self.steps: Steps | None = None
        if deployment is not None:
            as_measured: dict[str, Any] = {width: both[0] for width, both in known.items()}
            if self._kv:
                as_measured["kv_dtype"] = self._kv
            if not set(self._changed) <= {"pp"}:
                as_measured["dcp"] = 1
            measured = replace(deployment, **as_measured)
            self.steps = Steps(StepModel(deployment, "engine"), StepModel(measured, "engine"))

    @property
    def kv_ratio(self) -> float:
        """Bytes per element of the target's KV against the anchor's; 1 where either is unknown."""
        there = self.target.axes.get("kv_dtype")
        if self._kv is None or there not in DTYPES:
            return 1.0
        return dtype_bytes(str(there)) / dtype_bytes(self._kv)

    def measured_kv(self, needed: bool) -> StepModel | None:
        """The formula on the target's widths with the anchor's KV; None where there is no formula.

        Raises:
            GapscopeError: there is none, and it is ``needed``.
        """
        if self.steps is None:
            if needed:
                self._formula("KV")
            return None
        deployment = self.steps.target.deployment
        return StepModel(replace(deployment, kv_dtype=self._kv) if self._kv else deployment, "engine")

    @property
    def is_needed(self) -> bool:
        """Whether anything is spread differently."""
        return bool(self._changed)

    @property
    def context_factor(self) -> float:
        """On what a token of context takes: its KV is divided among the GPUs of a sequence.

        With another attention-DP layout or spread of experts it is the formula's ratio, at the widest measured batch.
        """
        others = set(self._changed) - {"tp", "pp"}
        widest = self.anchor.sweep[-1]
        if others and self.steps is not None and widest.context is not None:
            contexts = [widest.context, 2.0 * widest.context]
            there, here = (
                decode_steps_ms(step, widest.batch, contexts, 1) for step in (self.steps.target, self.steps.measured)
            )
            if here[1] > here[0]:
                return max(0.0, there[1] - there[0]) / (here[1] - here[0])
        return self.anchor.tp / self.target.tp if self.anchor.tp and self.target.tp else 1.0

    def decode(self, width: int) -> list[tuple[int, float]]:
        """Milliseconds of each batch of the sweep on the target's widths."""
        sweep = [(point.batch, point.ms) for point in self.anchor.sweep]
        if not self._changed:
            return sweep
        changed = dict(self._changed)
        stages = changed.pop("pp", None)
        contexts = [point.context or 1.0 for point in self.anchor.sweep]
        if set(changed) == {"tp"} and (floor := self._floor()) is not None:
            here, there = changed["tp"]
            sweep = [(batch, floor + (ms - floor) * here / there) for batch, ms in sweep]
            self.done.append(f"decode: tp {here} to {there}, {floor:.3g} ms of a step held and the rest shared")
        elif changed:
            steps = self._formula("decode")
            moved = []
            for (batch, ms), context in zip(sweep, contexts, strict=True):
                more = steps.decode(False, batch, context, width) - steps.decode(True, batch, context, width)
                moved.append((batch, max(LEAST_SHARE * ms, ms + more)))
            sweep = moved
            self.done.append(f"decode: {_said(changed)}, by the difference of the formula's whole steps")
        if stages is not None:
            steps = self._formula("decode")
            sweep = [
                (batch, ms + steps.handover(batch, context, width))
                for (batch, ms), context in zip(sweep, contexts, strict=True)
            ]
            self.done.append(f"decode: {_said({'pp': stages})}, what stages take to hand over")
        return sweep

    def prefill(self, line: PrefillLine, fitted: bool) -> PrefillLine:
        """The line of single prompts on the target's widths."""
        if not self._changed:
            return line
        if self.steps is None:
            if set(self._changed) != {"tp"}:
                self._formula("prefill")
            here, there = self._changed["tp"]
            self.done.append(f"prefill: tp {here} to {there}, tokens shared evenly and the fixed part held")
            return line.sharded(here / there)
        tokens = line.longest
        layout = "attention_dp" in self._changed
        chunks = float(self.target.attention_dp or 1) if layout else 1.0
        there_ms = self.steps.target.prefill_ns(chunks, chunks * tokens) / 1e6
        here_ms = self.steps.measured.prefill_ns(1, tokens) / 1e6
        if set(self._changed) == {"attention_dp"}:
            own = line.ms(tokens, 1)
            factor = max(1.0, (own + there_ms - here_ms) / own)
        else:
            factor = there_ms / here_ms
        self.done.append(f"prefill: {_said(self._changed)}, times {factor:.3g} by the formula's whole step")
        return line.scaled(factor) if fitted else line.sharded(factor)

    def _floor(self) -> float | None:
        if self.anchor.floor_ms is not None:
            return self.anchor.floor_ms
        return min(point.ms for point in self.anchor.sweep) if len(self.anchor.sweep) > 1 else None

    def _formula(self, what: str) -> Steps:
        if self.steps is None:
            changed = dict(self._changed)
            told = (_said(changed, only=0), _said(changed, only=1)) if changed else ("another KV dtype", "this one")
            raise GapscopeError(
                f"Anchor {self.anchor.name} was measured with {told[0]}, and the {what} of {told[1]} needs what the "
                "part can do: name part and model_preset, if this very deployment has presets, or take an anchor of "
                "these widths."
            )
        return self.steps


def decode_steps_ms(step: StepModel, batch: float, contexts: list[float], width: int) -> list[float]:
    """Whole decode steps at several contexts, in milliseconds."""
    kv = np.array([round(_largest(step.deployment, batch) * context) for context in contexts], np.int64)
    none = np.zeros(len(kv), np.int64)
    queries = PassQueries(none, none, none, np.full(len(kv), int(batch), np.int64), kv)
    return [float(ns) / 1e6 for ns in step.totals(queries, width)]


def _decode_query(step: StepModel, batch: float, context: float) -> PassQueries:
    none = np.zeros(1, np.int64)
    kv = round(_largest(step.deployment, batch) * context)
    return PassQueries(none, none, none, np.array([int(batch)]), np.array([kv]))


def _largest(deployment: Deployment, batch: float) -> float:
    """Requests of the rank that has most of them."""
    return float(-(-batch // deployment.attention_dp))


def _said(changed: dict[str, tuple[int, int]], only: int | None = None) -> str:
    if only is not None:
        return ", ".join(f"{width}={both[only]}" for width, both in changed.items())
    return ", ".join(f"{width} {here} to {there}" for width, (here, there) in changed.items())
