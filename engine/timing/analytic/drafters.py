"""What drafting costs, by the shape of what drafts.

A drafter is a small model on the same GPUs. It runs over all tokens of the pass once, as it needs them in its own KV,
and then once per further draft over one token of each decoding request:

    mtp          one layer of the target with its experts, and the target's head
    eagle3       one layer without experts, a head of 32,000 words
    draft_model  the model that is named
    dspark       three layers of the target with a window of 128 tokens, once per block of drafts; a serial head of
                 rank 256 then goes over them one by one
    ngram        nothing that a GPU computes
"""

from __future__ import annotations

from dataclasses import replace

from engine.deployment import Attention, Deployment, Experts, ModelShape
from engine.errors import GapscopeError
from engine.timing.analytic.amounts import Amount
from engine.timing.analytic.roofline import Gemm, Rates
from engine.timing.analytic.step import StepModel
from engine.timing.analytic.work import AskedOf, Work

EAGLE_VOCAB = 32_000
EAGLE_HEAD_DIM, EAGLE_KV_HEADS = 128, 8
DSPARK_LAYERS, DSPARK_WINDOW, DSPARK_RANK = 3, 128, 256


class Drafter:
    """Nanoseconds that ``drafts`` per decoding request take in one pass of the target.

    Raises:
        GapscopeError: no such method, or ``draft_model`` without a model.
    """

    def __init__(
        self,
        deployment: Deployment,
        method: str,
        drafts: int,
        asked_of: AskedOf = "rank",
        draft_model: ModelShape | None = None,
    ) -> None:
        self.drafts = drafts
        self.shape = drafter_shape(deployment.model, method, draft_model)
        self._step: StepModel | None = None
        self._serial: Gemm | None = None
        self._again = drafts - 1
        self._per_request = 1.0
        if self.shape is None:
            return
        own = replace(deployment, model=self.shape, verify_width=1, dcp=1)
        if self.shape.experts is None:
            own = replace(own, ep=1, ep_imbalance=1.0)
        self._step = StepModel(own, asked_of)
        rates, hidden = Rates(deployment.part), self.shape.hidden
        form, tp = rates.of(deployment.weight_dtype), deployment.tp
        self._join = {
            "mtp": Gemm(rates, 2 * hidden, hidden, form),
            "eagle3": Gemm(rates, 3 * hidden, hidden, form),
        }.get(method)
        if method == "dspark":
            self._again, self._per_request = 0, float(drafts)
            self._serial = Gemm(rates, DSPARK_RANK, self.shape.vocab / tp, rates.of("bf16"), float(drafts))

    def __call__(self, work: Work) -> Amount:
        """Nanoseconds beside a pass of the target that does ``work``."""
        step = self._step
        if step is None or not self.drafts:
            return 0.0 * work.tokens
        ranks = float(step.deployment.attention_dp)
        sampled = (work.prompts + work.decodes * self._per_request) * ranks
        time = step.priced(replace(work, rows=sampled))
        if self._join is not None:
            time = time + self._join(work.tokens)
        decodes = work.decodes
        if self._again:
            alone = step.plain_decode(work)
            again = step.priced(alone)
            if self._join is not None:
                again = again + self._join(decodes)
            time = time + self._again * again * (decodes > 0)
        if self._serial is not None:
            time = time + self._serial(decodes * ranks) * (decodes > 0)
        return time * (work.tokens > 0)


def drafter_shape(target: ModelShape, method: str, draft_model: ModelShape | None = None) -> ModelShape | None:
    """The model that drafts for ``target``; None where nothing does.

    Raises:
        GapscopeError: no such method, or ``draft_model`` without a model.
    """
    if method == "ngram":
        return None
    if method == "draft_model":
        if draft_model is None:
            raise GapscopeError("A draft model has no shape of its own: name its preset (draft_preset).")
        return draft_model
    if method == "mtp":
        scheduled = target.sparse is not None and bool(target.sparse.schedule)
        window = target.sparse.window if target.sparse is not None and scheduled else 0
        uniform = None if target.sparse is None or scheduled else replace(target.sparse, indexed_layers=1)
        return _layers(target, method, 1, window, replace(_none_dense(target), sparse=uniform))
    if method == "dspark":
        return _layers(target, method, DSPARK_LAYERS, DSPARK_WINDOW, replace(_none_dense(target), sparse=None))
    if method == "eagle3":
        attention = target.attention
        if attention.is_latent:
            attention = Attention(attention.heads, min(EAGLE_KV_HEADS, attention.heads), EAGLE_HEAD_DIM, EAGLE_HEAD_DIM)
        width = target.dense_width or 4 * target.hidden
        plain = replace(target, experts=None, sparse=None, attention=attention, dense_width=width, vocab=EAGLE_VOCAB)
        return _layers(target, method, 1, 0, plain)
    raise GapscopeError(
        f"Nothing is known of drafts by {method!r}: expected ngram, mtp, eagle3, dspark or draft_model."
    )


def _none_dense(target: ModelShape) -> ModelShape:
    experts: Experts | None = replace(target.experts, dense_layers=0) if target.experts else None
    return replace(target, experts=experts)


def _layers(target: ModelShape, method: str, layers: int, window: int, shape: ModelShape) -> ModelShape:
    return replace(
        shape,
        name=f"{target.name} {method} drafter",
        layers=layers,
        linear=None,
        window_layers=layers if window else 0,
        window=window,
    )
