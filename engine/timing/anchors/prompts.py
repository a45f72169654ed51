"""Time of the prompts of passes: measured where the probe was accepted, by the formula where it was refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from engine.bundle.schema import RESOLUTIONS
from engine.deployment import model_names, part_names
from engine.errors import GapscopeError
from engine.timing.analytic import StepModel
from engine.timing.anchors.acceptance import Acceptance
from engine.timing.anchors.artefact import Anchor
from engine.timing.anchors.canonical import model_key
from engine.timing.anchors.prefill import PrefillLine, curve_of, hits_of, line_of, packed_rate
from engine.timing.anchors.regime import of_anchor
from engine.timing.anchors.transport import Transport
from engine.timing.contract import Ints, PassQueries

ANALYTIC, INTERPOLATED = (RESOLUTIONS.index(name) for name in ("analytic", "interpolated"))


def _way_out(transport: Transport) -> str:
    """What helps where a probe is refused: presets of its own deployment, where there are some."""
    axes, target = of_anchor(transport.anchor), transport.target.axes
    part, model = (axes[axis] or target.get(axis) for axis in ("part", "model"))
    presets = [name for name in model_names() if model_key(name) == model]
    if part in part_names() and presets:
        return f"name part={part} and model_preset={presets[0]}, by whose formula prompts are priced."
    return (
        f"take an anchor with other prompts. (A formula needs presets of this very deployment, part "
        f"{part or 'unknown'} and model {model or 'unknown'}, and gapscope brings none: others are another regime.)"
    )


class PromptPrices:
    """Milliseconds of prompts on the target. ``ranks`` above 1: a query is the batch of so many ranks together.

    ``beyond`` is the resolution of what lies outside the probe.

    Raises:
        GapscopeError: the probe was refused, and there is no ``step`` that could price prompts instead.
    """

    def __init__(
        self,
        anchor: Anchor,
        verdict: Acceptance,
        transport: Transport,
        step: StepModel | None,
        *,
        ranks: int,
        beyond: int,
    ) -> None:
        self._step, self._ranks, self._beyond = step, ranks, beyond
        self._best = ANALYTIC if transport.is_needed else INTERPOLATED
        self._single: PrefillLine | None = None
        self._packed: PrefillLine | None = None
        self._hits: tuple[Any, Any] | None = None
        self.is_measured = verdict.prefill_accepted
        self.name = "prefill by the formula"
        self.widest = self._widest_pack = self._shortest = 0.0
        self._several = 1
        probe = anchor.prefill
        if probe is None or not self.is_measured:
            if step is None:
                reasons = " ".join(finding.sentence for finding in verdict.prefill_refusals)
                raise GapscopeError(
                    f"The prefill of anchor {anchor.name} is refused: {reasons} Its decode applies, and nothing "
                    f"is there to price prompts: {_way_out(transport)}"
                )
            return
        self.widest = max(point.tokens for point in probe.points)
        self._several = max(point.prompts for point in probe.points)
        self._shortest = min(point.tokens for point in probe.points)
        if verdict.prefill == "cache_hits":
            self._hits, self.name = hits_of(probe), "prefill of cache hits"
            return
        fitted = verdict.prefill == "curve"
        line = curve_of(probe) if fitted else line_of(probe)
        assert line is not None
        self._single = transport.prefill(line, fitted)
        self.name = "prefill curve" if fitted else "prefill line"
        if probe.packed is not None and verdict.packed:
            factor = self._single.first / line.first if line.first else 1.0
            pack = packed_rate(line, probe.packed).scaled(factor)
            self._packed = replace(pack, fixed=self._single.fixed)
            self._widest_pack = max(tokens for tokens, _, _ in probe.packed.points)

    def prices(self, prompts: Ints, tokens: Ints, cached: Ints) -> tuple[Any, Any]:
        """Milliseconds and resolutions of the prompts of passes, an element each."""
        if not self.is_measured:
            assert self._step is not None
            none = np.zeros(len(prompts), np.int64)
            ns = self._step.totals(PassQueries(prompts, tokens, cached, none, none), 1)
            return ns / 1e6, np.full(len(prompts), ANALYTIC)
        own = np.maximum(prompts, 1)
        share = np.ones(len(prompts))
        if self._ranks > 1:
            mine = -(-own // self._ranks)
            share, own = mine / own, mine
        new, read = tokens * share, cached * 1.0
        if self._hits is not None:
            lengths, ms = self._hits
            length = (new + read) / own
            inside = (length >= lengths[0]) & (length <= lengths[-1])
            return np.interp(length, lengths, ms), np.where(inside, self._best, self._beyond)
        line, several = self._single, own > 1
        assert line is not None
        price = line.ms(new, own, read)
        widest, covered = np.full(len(prompts), self.widest), own <= self._several
        if self._packed is not None:
            price = np.where(several, self._packed.ms(new, own, read), price)
            widest, covered = np.where(several, self._widest_pack, widest), np.ones(len(prompts), bool)
        length = (new + 2.0 * read) / own
        inside = covered & (new <= widest) & (new >= self._shortest) & (length <= line.longest)
        return np.maximum(price, 0.0), np.where(inside, self._best, self._beyond)
