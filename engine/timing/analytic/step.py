"""A whole pass of a deployment, from what it is made of.

One pass computes the tokens of its prompts and of its decodes together: weights are read once, products see all tokens,
each kind of attention is its own. So a mixed pass takes less than a prefill and a decode one after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from engine.deployment import Deployment
from engine.deployment.layout import check_layout
from engine.timing.analytic.amounts import Amount, larger
from engine.timing.analytic.attention import AttentionTime
from engine.timing.analytic.collectives import CollectivesTime
from engine.timing.analytic.experts import ExpertsTime, MlpTime
from engine.timing.analytic.fixed_costs import FixedCosts
from engine.timing.analytic.linear import LinearTime
from engine.timing.analytic.projections import projections
from engine.timing.analytic.roofline import VALUE_BYTES, Gemm, Rates, total
from engine.timing.analytic.sparse import Scale
from engine.timing.analytic.work import AskedOf, Work, work_of
from engine.timing.contract import PassQueries

NORM_MOVES = 8.0
"""Vectors read and written per token and layer: two norms, each reads and writes the residual and what is added."""
SAMPLING_MOVES = 2.0
"""Times that a row of logits is gone over."""
MOST_KEPT = 100_000
"""Counts of tokens whose price an instance keeps."""
PARTS = (
    "projections",
    "linear",
    "mlp",
    "experts",
    "norms",
    "collectives",
    "prefill_attention",
    "decode_attention",
    "head",
    "sampling",
    "kernels",
    "host",
    "mixed_penalty",
    "launch",
)
"""What a pass is made of, in the order of :meth:`StepModel.parts`."""


class StepModel:
    """Nanoseconds of passes of one deployment.

    Amounts are per GPU of a stage, summed over stages: a pass goes through all of them. ``asked_of`` says whose batch a
    query is, where attention is data parallel: that of one rank, the others taken to have the like, or of all ranks.
    ``picks`` is that of :class:`AttentionTime`: how a decode grows with sequences and contexts, where what is measured
    gives its level, is what they pick.

    Raises:
        GapscopeError: widths that do not fit each other or the model.
    """

    def __init__(self, deployment: Deployment, asked_of: AskedOf = "rank", picks: bool | None = None) -> None:
        check_layout(deployment)
        self.deployment, self.asked_of = deployment, asked_of
        model, rates = deployment.model, Rates(deployment.part)
        self._projections = projections(deployment, rates)
        self._linear = LinearTime(deployment, rates)
        self._mlp = MlpTime(deployment, rates)
        self._experts = ExpertsTime(deployment, rates)
        self._collectives = CollectivesTime(deployment)
        self._attention = AttentionTime(deployment, rates, picks)
        self._norm = model.layers * NORM_MOVES * model.hidden * VALUE_BYTES / rates.elementwise
        self._head = Gemm(rates, model.hidden, model.vocab / deployment.tp, rates.of("bf16"))
        self._sampling = SAMPLING_MOVES * model.vocab * VALUE_BYTES / rates.elementwise
        self.fixed = FixedCosts(deployment)
        self._kept: dict[tuple[float, float], float] = {}

    # Whole steps.

    def decode_ns(self, batch: float, context: float, width: int = 1) -> float:
        """A step in which ``batch`` requests of the engine, each with ``context`` tokens of KV, verify ``width`` each.

        The whole step: fixed costs included, drafting not.
        """
        return float(self.priced(self._work(0, 0, 0, batch, self._of_largest(batch) * context, width, "engine")))

    def prefill_ns(self, prompts: float, tokens: float, context: float = 0.0) -> float:
        """A step in which ``prompts`` of the engine compute ``tokens`` new tokens together, after ``context`` each."""
        return float(self.priced(self._work(prompts, tokens, self._of_largest(prompts) * context, 0, 0, 1, "engine")))

    def totals(self, queries: PassQueries, width: int | None = None) -> npt.NDArray[np.float64]:
        """Each query's pass, at the deployment's verify width where none is given."""
        work = self.work(*queries.axes, width)
        return np.asarray(self.priced(work), np.float64)

    def parts(self, queries: PassQueries, width: int | None = None) -> dict[str, npt.NDArray[np.float64]]:
        """Nanoseconds of each of :data:`PARTS`, an array per part with an element per query."""
        work = self.work(*queries.axes, width)
        prompt_states, decode_states = self._linear.states(work)
        fixed = self.fixed
        found: dict[str, Any] = {
            "projections": total(self._projections, work.tokens),
            "linear": self._linear.products(work.tokens) + prompt_states + decode_states,
            "mlp": self._mlp(work.all_tokens),
            "experts": self._experts(work.all_tokens),
            "norms": self._norm * work.tokens,
            "collectives": self._collectives.by_tokens(work.tokens, work.all_tokens)
            + self._collectives.of_contexts(work),
            "prefill_attention": self._attention.prefill(work),
            "decode_attention": self._attention.decode(work),
            "head": self._head(work.rows),
            "sampling": self._sampling * work.rows,
            "kernels": fixed.kernels_ns,
        }
        gpu = sum(found.values())
        mixed = (work.prompts > 0) & (work.decodes > 0)
        found["host"] = fixed.host_ns
        found["mixed_penalty"] = gpu * (fixed.mixed_factor - 1.0) * mixed
        found["launch"] = larger(fixed.launch_ns - gpu - found["mixed_penalty"], 0.0)
        n = len(queries)
        return {name: np.broadcast_to(np.asarray(found[name], np.float64), n).copy() for name in PARTS}

    @property
    def scale(self) -> Scale | None:
        """What the model's attention reads of a context; None: all of it."""
        return self._attention.scale

    def plain_decode(self, work: Work) -> Work:
        """The same decoding requests alone, a token each."""
        none, alone = 0.0 * work.decodes, work.decodes * 1.0
        every = alone * float(self.deployment.attention_dp)
        return Work(none, none, none, alone, work.decode_kv, 1.0, alone, every, every)

    # The same in the pieces that a replay keeps: each depends on few of the axes.

    def by_tokens(self, tokens: Amount, all_tokens: Amount) -> Amount:
        """All that depends on how many tokens are computed, by the rank and by the stage; single answers are kept."""
        if isinstance(tokens, np.ndarray):
            return self._computed(tokens, all_tokens)
        key = (tokens, all_tokens)
        known = self._kept.get(key)
        if known is None:
            known = self._computed(tokens, all_tokens)
            if len(self._kept) < MOST_KEPT:
                self._kept[key] = known
        return known

    def _computed(self, tokens: Amount, all_tokens: Amount) -> Amount:
        return (
            total(self._projections, tokens)
            + self._linear.products(tokens)
            + self._mlp(all_tokens)
            + self._experts(all_tokens)
            + self._norm * tokens
            + self._collectives.by_tokens(tokens, all_tokens)
        )

    def by_rows(self, rows: Amount) -> Amount:
        """The head and sampling."""
        return self._head(rows) + self._sampling * rows

    def of_prompts(self, work: Work) -> Amount:
        """What prompts attend to."""
        if not isinstance(work.new_tokens, np.ndarray) and not (work.prompts or work.new_tokens or work.prompt_kv):
            return 0.0
        return self._attention.prefill(work) + self._linear.states(work)[0]

    def of_decodes(self, work: Work) -> Amount:
        """What decoding requests attend to."""
        return self._attention.decode(work) + self._linear.states(work)[1] + self._collectives.of_contexts(work)

    def finished(self, gpu: Amount, mixed: Amount) -> Amount:
        """The pass, from what its GPUs compute and whether it has prompts and decodes."""
        fixed = self.fixed
        gpu = gpu + fixed.kernels_ns
        if fixed.mixed_factor != 1.0:
            gpu = gpu * (1.0 + (fixed.mixed_factor - 1.0) * mixed)
        return (larger(gpu, fixed.launch_ns) if fixed.launch_ns else gpu) + fixed.host_ns

    def _of_largest(self, requests: float) -> float:
        ranks = self.deployment.attention_dp
        return requests if ranks == 1 else -(-requests // ranks)

    def priced(self, work: Work) -> Amount:
        """The whole pass that does ``work``."""
        gpu = self.by_tokens(work.tokens, work.all_tokens)
        gpu = gpu + self.by_rows(work.rows) + self.of_prompts(work) + self.of_decodes(work)
        return self.finished(gpu, (work.prompts > 0) & (work.decodes > 0))

    def work(
        self, prompts: Any, new: Any, prompt_kv: Any, decodes: Any, decode_kv: Any, width: float | None = None
    ) -> Work:
        """The work of queries (whole numbers), at the deployment's verify width where none is given."""
        return self._work(
            prompts, new, prompt_kv, decodes, decode_kv, width or self.deployment.verify_width, self.asked_of
        )

    def _work(
        self, prompts: Any, new: Any, prompt_kv: Any, decodes: Any, decode_kv: Any, width: float, asked_of: AskedOf
    ) -> Work:
        ranks = self.deployment.attention_dp
        return work_of(prompts, new, prompt_kv, decodes, decode_kv, width=float(width), ranks=ranks, asked_of=asked_of)
