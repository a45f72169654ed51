"""The ``anchor`` source: passes priced from measured curves, inside the regime they were measured in."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from engine.bundle.schema import RESOLUTIONS
from engine.deployment import deployment_of
from engine.errors import GapscopeError
from engine.timing.analytic import StepModel
from engine.timing.analytic.source import plain, regime_of
from engine.timing.anchors import regime
from engine.timing.anchors.acceptance import LAYERS, LAYOUT, Acceptance, judge
from engine.timing.anchors.artefact import Anchor, read_anchor
from engine.timing.anchors.decode import DecodeCurves
from engine.timing.anchors.prompts import PromptPrices
from engine.timing.anchors.rows import Row, RowTable
from engine.timing.anchors.target import Target, with_knobs
from engine.timing.anchors.transport import Transport
from engine.timing.anchors.verification import verify_of
from engine.timing.contract import Ints, PassQueries, PassTimes, Refused
from engine.timing.model_file import ANCHOR_KIND, check_model
from engine.timing.surface import COMPOSITIONS

REFUSED, EXTRAPOLATED, CLAMPED, ANALYTIC, INTERPOLATED, EXACT = (
    RESOLUTIONS.index(name) for name in ("refused", "extrapolated", "clamped", "analytic", "interpolated", "exact")
)
SOURCES = ("anchor", "anchor decode, analytic prefill", "analytic")
"""What answered: measured curves; they and the formula; the formula alone."""
CHUNK = 65_536
"""Queries that are answered at a time: what is between stays in the cache."""
ALLOWED = (*regime.AXES, LAYOUT, LAYERS)
"""What ``anchor_allow`` may name."""


def build(knobs: Mapping[str, Any], model: Mapping[str, Any] | None, folders: Sequence[Path] = ()) -> AnchorTiming:
    """The source from an anchor under the knobs; ``folders`` hold a user's presets.

    ``model`` is what :func:`engine.timing.anchors.model.model_of` returned.

    Raises:
        GapscopeError: no anchor, one that does not apply (the axes are named), or one that lacks what is asked for.
    """
    if model is None:
        raise GapscopeError("Knob timing='anchor' needs an anchor: name one of the store (`gapscope anchor list`).")
    check_model(model, kind=ANCHOR_KIND)
    anchor = read_anchor(model["artefact"], model["name"])
    deployment = deployment_of(knobs, folders) if knobs["part"] and knobs["model_preset"] else None
    target = with_knobs(Target.from_json(model["target"]), knobs, deployment)
    return AnchorTiming(anchor, target, knobs, model)


def require(anchor: Anchor, target: Target, allow: Sequence[str] = ()) -> Acceptance:
    """The acceptance of an anchor that applies.

    Raises:
        GapscopeError: it does not; every reason is said.
    """
    verdict = judge(anchor, target, allow)
    if verdict.refusals:
        raise GapscopeError(
            f"Anchor {anchor.name} does not apply ({verdict.distance} "
            f"{'axis differs' if verdict.distance == 1 else 'axes differ'}): "
            + " ".join(finding.sentence for finding in verdict.refusals)
        )
    return verdict


def allowed_of(text: str) -> tuple[str, ...]:
    """What ``anchor_allow`` names.

    Raises:
        GapscopeError: a word that is no axis.
    """
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    for word in words:
        if word not in ALLOWED:
            raise GapscopeError(f"Knob anchor_allow={text}: {word!r} is none of {', '.join(ALLOWED)}.")
    return words


class AnchorTiming:
    """Prices passes from one anchor on one target.

    Decode and prefill are accepted each for itself: a prefill that was refused is priced by the formula of the named
    deployment. Under speculation the width of a verification is part of the step. Answers are the same at any time;
    what is kept of them only makes the next ones faster.

    Raises:
        GapscopeError: the anchor does not apply, or lacks what the target needs.
    """

    knows_width = True

    def __init__(
        self, anchor: Anchor, target: Target, knobs: Mapping[str, Any], model: Mapping[str, Any] | None = None
    ) -> None:
        self.anchor, self.target = anchor, target
        self.acceptance = require(anchor, target, allowed_of(knobs["anchor_allow"]))
        asked = float(knobs["between_passes_ms"])
        self.between_ns = anchor.between_ns if asked < 0 else round(asked * 1e6)
        self._knobs, self._model = knobs, model
        self._scale = float(knobs["pass_scale"]) * 1e6  # from milliseconds
        on_refused = knobs["on_refused"]
        extrapolate = on_refused == "extrapolate"
        self._outside = {"clamp": CLAMPED, "extrapolate": EXTRAPOLATED}.get(on_refused, REFUSED)
        self._transport = transport = Transport(anchor, target)
        self._verify = verify = verify_of(anchor, knobs)
        self._decode = DecodeCurves(anchor, transport, verify, extrapolate)
        self._knots = list(self._decode.knots)
        self._rows: dict[int, Row] = {}
        self._ranks = knobs["attention_dp"]
        self._combined = self._ranks > 1 and knobs["dp_price"] == "combined"
        self._step: StepModel | None = None
        self._factor = 1.0
        if target.deployment is not None:
            self._step = StepModel(target.deployment, "engine" if self._combined else "rank")
            self._factor = self._step.fixed.mixed_factor
        self._prompts = PromptPrices(
            anchor,
            self.acceptance,
            transport,
            self._step,
            ranks=self._ranks if self._combined else 1,
            beyond=EXTRAPOLATED if extrapolate else CLAMPED,
        )
        composition = knobs["mixed_composition"]
        own = anchor.meta.get("mixed_composition")
        self.composition = composition if composition != "auto" else own if own in COMPOSITIONS else "sum"
        self._floor = self._decode.lowest_ms if self.composition == "marginal" else 0.0
        self._by_prompts: dict[tuple[int, int, int], tuple[float, int]] = {}

    # One pass.

    def pass_ns(
        self,
        prefill_requests: int,
        new_tokens: int,
        prefill_kv_tokens: int,
        decode_requests: int,
        decode_kv_tokens: int,
    ) -> int:
        """Duration of one pass in nanoseconds, at least 1.

        Raises:
            Refused: it lies outside what was measured, and the knobs ask for it to be refused.
        """
        prompts = decodes = 0.0
        worst = EXACT
        if decode_requests:
            batch, own = self._shares(decode_requests)
            decodes, worst = self._decode_price(batch, decode_kv_tokens / own)
        if prefill_requests or new_tokens:
            key = (prefill_requests, new_tokens, prefill_kv_tokens)
            prompts, resolution = self._by_prompts.get(key) or self._prompt_price(key)
            worst = min(worst, resolution)
            if decode_requests:
                decodes = max(0.0, decodes - self._floor) * self._factor
                prompts = prompts * self._factor
        if worst <= CLAMPED and self._outside == REFUSED:
            self._refuse(prefill_requests, new_tokens, prefill_kv_tokens, decode_requests, decode_kv_tokens)
        return int(prompts * self._scale + 0.5) + int(decodes * self._scale + 0.5) or 1

    def decode_run(
        self, decode_requests: int, contexts: Iterable[int], now_ns: int, until_ns: int
    ) -> tuple[list[int], list[int], int]:
        """See :class:`engine.timing.contract.DecodeRuns`."""
        starts: list[int] = []
        durations: list[int] = []
        batch, own = self._shares(decode_requests)
        row, knots, between, scale = self._row(batch), self._knots, self.between_ns, self._scale
        at, slope, ratio, bend, least, (low, high) = row[:6]
        only, i = len(knots) == 1, 0
        refuses = self._outside == REFUSED
        for kv in contexts:
            context = kv / own
            if refuses and self._resolution(row, context) <= CLAMPED:
                self._refuse(0, 0, 0, decode_requests, kv)
            c = low if context < low else high if context > high else context
            if not only:
                i = bisect_right(knots, c) - 1
            ms = at[i] + slope[i] * c
            duration = int((ms if ms > least else least) * (ratio[i] + bend[i] * c) * scale + 0.5) or 1
            starts.append(now_ns)
            durations.append(duration)
            now_ns += duration + between
            if now_ns >= until_ns:
                break
        return starts, durations, now_ns

    def _shares(self, requests: int) -> tuple[int, int]:
        """Requests of the whole engine, and of the rank whose KV is summed, from those of a query."""
        if self._combined:
            return requests, -(-requests // self._ranks)
        return requests * self._ranks, requests

    def _row(self, batch: int) -> Row:
        row = self._rows.get(batch)
        if row is None:
            row = self._rows[batch] = self._decode.row(batch)
        return row

    def _decode_price(self, batch: int, context: float) -> tuple[float, int]:
        row = self._row(batch)
        low, high = row.held
        c = min(max(context, low), high)
        i = bisect_right(self._knots, c) - 1
        ms = max(row.at[i] + row.slope[i] * c, row.least) * (row.ratio[i] + row.bend[i] * c)
        return ms, self._resolution(row, context)

    @staticmethod
    def _resolution(row: Row, context: float) -> int:
        if context == row.exact:
            return row.resolution
        return min(row.resolution, INTERPOLATED if row.inside[0] <= context <= row.inside[1] else row.beyond)

    def _prompt_price(self, key: tuple[int, int, int]) -> tuple[float, int]:
        price, resolution = self._prompts.prices(*(np.array([axis], np.int64) for axis in key))
        answer = self._by_prompts[key] = (float(price[0]), int(resolution[0]))
        return answer

    # Many passes.

    def explain(self, queries: PassQueries) -> PassTimes:
        """The same answers for whole arrays, with resolution, source and what they were read from."""
        times = self.marked(queries)
        if refused := queries.first(times.resolution == REFUSED):
            self._refuse(*refused)
        return times

    def marked(self, queries: PassQueries) -> PassTimes:
        """See :class:`engine.timing.contract.Covering`."""
        n = len(queries)
        prefill, decode = np.zeros(n, np.int64), np.zeros(n, np.int64)
        resolution, source = np.full(n, EXACT, np.int8), np.zeros(n, np.int8)
        batches, where = np.unique(self._engine_batch(queries.decode_requests), return_inverse=True)
        table = RowTable([self._row(int(batch)) if batch else None for batch in batches], len(self._knots))
        for at in range(0, n, CHUNK):
            here = slice(at, at + CHUNK)
            some = queries.at(here)
            self._answer(some, where[here], table, prefill[here], decode[here], resolution[here], source[here])
        prompts = (queries.prefill_requests > 0) | (queries.new_tokens > 0)
        codes, sites = np.unique(where.reshape(-1) * 2 + prompts, return_inverse=True)
        names = [" + ".join(filter(None, (table.names[c // 2], self._prompts.name if c % 2 else ""))) for c in codes]
        if self._outside == REFUSED:
            resolution[resolution <= CLAMPED] = REFUSED
        return PassTimes(
            prefill_ns=prefill,
            decode_ns=decode,
            overhead_ns=(prefill + decode == 0).astype(np.int64),
            resolution=resolution,
            source=source,
            sources=SOURCES,
            sites=sites.reshape(-1).astype(np.int32),
            site_names=tuple(names),
        )

    def _answer(
        self,
        queries: PassQueries,
        where: Any,
        table: RowTable,
        prefill: Ints,
        decode: Ints,
        resolution: Any,
        source: Any,
    ) -> None:
        """Fill in the answers to some queries; ``where`` is the row of each in the table."""
        decodes = queries.decode_requests > 0
        prompts = (queries.prefill_requests > 0) | (queries.new_tokens > 0)
        own = -(-queries.decode_requests // self._ranks) if self._combined else queries.decode_requests
        context = queries.decode_kv_tokens / np.maximum(own, 1)
        ms, found = table.price(where, context, np.array(self._knots))
        ms, found = np.where(decodes, ms, 0.0), np.where(decodes, found, EXACT)
        at = np.flatnonzero(prompts)
        if len(at):
            asked = (queries.prefill_requests[at], queries.new_tokens[at], queries.prefill_kv_tokens[at])
            price, resolutions = self._prompts.prices(*asked)
            mixed = decodes[at]
            factor = np.where(mixed, self._factor, 1.0)
            ms[at] = np.where(mixed, np.maximum(0.0, ms[at] - self._floor) * factor, 0.0)
            prefill[at] = np.floor(price * factor * self._scale + 0.5).astype(np.int64)
            found[at] = np.minimum(found[at], resolutions)
            if not self._prompts.is_measured:
                source[at] = np.where(mixed, 1, 2)
        decode[:] = np.floor(ms * self._scale + 0.5).astype(np.int64)
        resolution[:] = found

    def _engine_batch(self, requests: Ints) -> Ints:
        return requests if self._combined else requests * self._ranks

    def _refuse(self, prompts: int, tokens: int, kv: int, decodes: int, decode_kv: int) -> None:
        low, high = self.anchor.sweep[0].batch, self.anchor.sweep[-1].batch
        raise Refused(
            f"Pass of {prompts} prefill requests ({tokens} new tokens, {kv} KV) and {decodes} decode requests "
            f"({decode_kv} KV) lies outside what anchor {self.anchor.name} measured (decode batches {low} to {high}, "
            f"prompts to {self._prompts.widest:,.0f} tokens): take another anchor, or set on_refused to clamp or "
            "extrapolate."
        )

    # What it is.

    def describe(self) -> dict[str, Any]:
        """What this source is, what of it was measured, and why (JSON-ready)."""
        anchor, verdict, deployment = self.anchor, self.acceptance, self.target.deployment
        told: dict[str, Any] = {
            "kind": "anchor",
            "model_digest": self._model["digest"] if self._model else None,
            "model": dict(self._model) if self._model else None,
            "anchor": anchor.name,
            "artefact_digest": anchor.digest,
            "decode_source": "anchor",
            "prefill_source": "anchor" if self._prompts.is_measured else "analytic",
            "calibrated": verdict.calibrated,
            "observable": anchor.observable,
            "acceptance": verdict.to_json(),
            "transport": list(self._transport.done),
            "kv_ratio": self._transport.kv_ratio,
            "verification": asdict(self._verify),
            "data_regime": {axis: value for axis, value in regime.of_anchor(anchor).items() if value is not None},
            "composition": self.composition,
            "on_refused": self._knobs["on_refused"],
            "pass_scale": self._knobs["pass_scale"],
            "between_ns": self.between_ns,
        }
        if deployment is not None:
            told["deployment"] = plain(deployment)
            told["regime"] = regime_of(deployment)
        return told
