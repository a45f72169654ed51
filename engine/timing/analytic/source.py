"""The ``analytic`` source: passes of a deployment priced by the roofline of what it computes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from engine.bundle.schema import RESOLUTIONS
from engine.deployment import Deployment, deployment_of, load_model
from engine.identity import NOT_APPLICABLE
from engine.timing.analytic.amounts import Amount
from engine.timing.analytic.drafters import Drafter
from engine.timing.analytic.step import StepModel
from engine.timing.analytic.work import AskedOf, Work
from engine.timing.contract import PassQueries, PassTimes

ANALYTIC = RESOLUTIONS.index("analytic")
CHUNK = 16_384
"""Queries that are answered at a time: what is between stays in the cache."""
MOST_KEPT = 100_000
"""Prompts whose price an instance keeps."""


def build(
    knobs: Mapping[str, Any], model: Mapping[str, Any] | None = None, folders: Sequence[Path] = ()
) -> AnalyticTiming:
    """The source from the deployment knobs; ``folders`` hold a user's presets, a model is not looked at.

    Raises:
        GapscopeError: no such preset, or a deployment that cannot be.
    """
    deployment = deployment_of(knobs, folders)
    asked_of: AskedOf = "engine" if deployment.attention_dp > 1 and knobs["dp_price"] == "combined" else "rank"
    drafting = drafting_of(knobs, deployment, asked_of, folders)
    between = max(0, round(float(knobs["between_passes_ms"]) * 1e6))
    return AnalyticTiming(deployment, asked_of, drafting, between_ns=between, scale=float(knobs["pass_scale"]))


def drafting_of(
    knobs: Mapping[str, Any], deployment: Deployment, asked_of: AskedOf, folders: Sequence[Path]
) -> Drafter | float | None:
    """What drafts, or the share of a plain decode that they take together where that was given."""
    if not knobs["spec_tokens"]:
        return None
    if knobs["spec_draft_cost"]:
        return float(knobs["spec_draft_cost"] * knobs["spec_tokens"])
    draft = load_model(knobs["draft_preset"], folders) if knobs["draft_preset"] else None
    return Drafter(deployment, knobs["spec_method"], knobs["spec_tokens"], asked_of, draft)


class AnalyticTiming:
    """Prices passes of a deployment from nothing but what its part and its model are.

    A pass computes the deployment's verify width per decoding request, and ``drafting`` besides (a :class:`Drafter`, or
    the share of a plain decode of the same requests). Answers are the same at any time; what is kept of them only makes
    the next ones faster.
    """

    knows_width = True
    """Prices what verifying drafts costs itself (see :func:`engine.timing.verify.priced`)."""

    def __init__(
        self,
        deployment: Deployment,
        asked_of: AskedOf = "rank",
        drafting: Drafter | float | None = None,
        *,
        between_ns: int = 0,
        scale: float = 1.0,
    ) -> None:
        self.between_ns = between_ns
        self.step = StepModel(deployment, asked_of)
        self._drafting, self._pass_scale = drafting, scale
        self._by_prompts: dict[tuple[int, int, int], float] = {}

    def pass_ns(
        self,
        prefill_requests: int,
        new_tokens: int,
        prefill_kv_tokens: int,
        decode_requests: int,
        decode_kv_tokens: int,
    ) -> int:
        """Duration of one pass in nanoseconds, at least 1."""
        step = self.step
        work = step.work(prefill_requests, new_tokens, prefill_kv_tokens, decode_requests, decode_kv_tokens)
        computed = step.by_tokens(work.tokens, work.all_tokens)
        prompts = 0.0
        if prefill_requests or new_tokens or prefill_kv_tokens:
            asked = (prefill_requests, new_tokens, prefill_kv_tokens)
            prompts = self._by_prompts.get(asked, -1.0)
            if prompts < 0:
                prompts = step.of_prompts(work)
                if len(self._by_prompts) < MOST_KEPT:
                    self._by_prompts[asked] = prompts
        gpu = computed + step.by_rows(work.rows) + prompts + step.of_decodes(work)
        total = step.finished(gpu, prefill_requests > 0 and decode_requests > 0)
        if self._drafting is not None:
            total = total + self._draft(work)
        return int(total * self._pass_scale + 0.5) or 1

    def explain(self, queries: PassQueries) -> PassTimes:
        """The same answers for whole arrays.

        What all tokens share is split by who computes them; fixed costs are overhead; drafting counts as decoding, and
        in a pass that decodes nothing as prefill.
        """
        n = len(queries)
        total, prefill, decode = (np.zeros(n) for _ in range(3))
        for at in range(0, n, CHUNK):
            here = slice(at, at + CHUNK)
            total[here], prefill[here], decode[here] = self._split(queries.at(here))
        whole = np.maximum(np.floor(total + 0.5).astype(np.int64), 1)
        prefill_ns = np.minimum(np.floor(prefill + 0.5).astype(np.int64), whole)
        decode_ns = np.minimum(np.floor(decode + 0.5).astype(np.int64), whole - prefill_ns)
        deployment = self.step.deployment
        return PassTimes(
            prefill_ns=prefill_ns,
            decode_ns=decode_ns,
            overhead_ns=whole - prefill_ns - decode_ns,
            resolution=np.full(n, ANALYTIC, dtype=np.int8),
            source=np.zeros(n, dtype=np.int8),
            sources=("analytic",),
            sites=np.zeros(n, dtype=np.int32),
            site_names=(f"{deployment.model.name} on {deployment.gpus} {deployment.part.name}",),
        )

    def describe(self) -> dict[str, Any]:
        """The whole deployment with its figures, and what it is in the words of an identity (JSON-ready)."""
        deployment, drafting = self.step.deployment, self._drafting
        drafts: Any = None
        if isinstance(drafting, Drafter):
            drafts = {"drafts": drafting.drafts, "shape": drafting.shape and plain(drafting.shape)}
        elif drafting is not None:
            drafts = {"share_of_a_plain_decode": drafting}
        scale = self.step.scale
        return {
            "kind": "analytic",
            "deployment": plain(deployment),
            "regime": regime_of(deployment),
            "batch_of": self.step.asked_of,
            "sparse_attention": None if scale is None else scale.kind,
            "drafting": drafts,
            "pass_scale": self._pass_scale,
            "between_ns": self.between_ns,
        }

    def _split(self, queries: PassQueries) -> tuple[Amount, Amount, Amount]:
        step = self.step
        work = step.work(*queries.axes)
        computed, rows = step.by_tokens(work.tokens, work.all_tokens), step.by_rows(work.rows)
        prompts, decodes = step.of_prompts(work), step.of_decodes(work)
        total = step.finished(computed + rows + prompts + decodes, (work.prompts > 0) & (work.decodes > 0))
        of_tokens = work.new_tokens / np.maximum(work.tokens, 1.0)
        of_rows = work.prompts / np.maximum(work.prompts + work.decodes * work.width, 1.0)
        prefill = computed * of_tokens + rows * of_rows + prompts
        decode = np.where(work.decodes > 0, computed * (1.0 - of_tokens) + rows * (1.0 - of_rows) + decodes, 0.0)
        if self._drafting is not None:
            drafting = self._draft(work)
            total = total + drafting
            decode, prefill = decode + drafting * (work.decodes > 0), prefill + drafting * (work.decodes == 0)
        return total * self._pass_scale, prefill * self._pass_scale, decode * self._pass_scale

    def _draft(self, work: Work) -> Amount:
        if isinstance(self._drafting, Drafter):
            return self._drafting(work)
        return self.step.priced(self.step.plain_decode(work)) * self._drafting * (work.decodes > 0)


def plain(record: Any) -> Any:
    """A record as JSON has it: names as keys, lists."""
    return json.loads(json.dumps(asdict(record)))


def regime_of(deployment: Deployment) -> dict[str, dict[str, Any]]:
    """What a deployment says of itself, by group and field of :data:`engine.identity.FIELDS`."""
    model, part = deployment.model, deployment.part
    weights = deployment.weight_dtype
    memory = None if part.hbm_gib is None else int(part.hbm_gib * 2**30)
    kernels: dict[str, Any] = {"graph_mode": deployment.graph}
    if deployment.attention_family:
        kernels["attention_family"] = deployment.attention_family
    return {
        "model": {
            "name": model.name,
            "weights_dtype": weights,
            "expert_dtype": (deployment.expert_dtype or weights) if model.experts else NOT_APPLICABLE,
            "kv_dtype": deployment.kv_dtype,
        },
        "hardware": {"part": part.name, "count": deployment.gpus, "memory_bytes": memory},
        "topology": {
            "tp": deployment.tp,
            "pp": deployment.pp,
            "ep": deployment.ep,
            "context_parallel": deployment.dcp,
        },
        "kernels": kernels,
    }
