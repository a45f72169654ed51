"""What GPUs say to each other in a pass: all-reduces, expert all-to-all, stages handing over, shared contexts.

A rate that was measured is taken for messages up to its size; beyond, a ring (or direct exchange) at the link's rate,
but no sooner than the largest measured message. Only what depends on the message counts here: the fixed time of a
collective is that of its kernel. Across domains the part that leaves one goes over every GPU's NIC, derated by
``1 / (1 + 0.04 (domains - 1))``, and no collective takes less than a floor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.deployment import Deployment, Part
from engine.timing.analytic.amounts import Amount, larger
from engine.timing.analytic.roofline import VALUE_BYTES
from engine.timing.analytic.work import Work

DOMAIN_DERATE = 0.04
ALLREDUCE_FLOOR_NS = 10_000.0
ALLTOALL_FLOOR_NS = 30_000.0
HANDOVER_NS = 10_000.0 + 2_800.0
"""Latency of a send between stages, and its launch."""


@dataclass(frozen=True, slots=True)
class Collective:
    """Nanoseconds by bytes: at a measured rate up to a size, then by the formula; ``floor_ns`` across domains."""

    measured: float
    limit: float
    formula: float
    floor_ns: float

    def __call__(self, message: Amount) -> Amount:
        """Nanoseconds for a message of so many bytes on each GPU."""
        slow = self.formula * message
        if self.measured:
            slow = larger(slow, self.measured * message * (message <= self.limit))
            slow = larger(slow, self.measured * self.limit * (message > self.limit))
        return larger(slow, self.floor_ns * (message > 0)) if self.floor_ns else slow


def allreduce(part: Part, gpus: int) -> Collective:
    """Sum over ``gpus``: a ring moves ``2 (n - 1) / n`` of the message in a domain, then across domains."""
    inside, domains = min(gpus, part.domain_gpus), -(-gpus // part.domain_gpus)
    formula = 2.0 * (inside - 1) / inside / part.link_gb_s
    formula += 2.0 * (domains - 1) / domains / inside / _across(part, domains)
    return _collective(part.allreduce_gb_s, part.allreduce_up_to_mb, gpus, domains, formula, ALLREDUCE_FLOOR_NS)


def alltoall(part: Part, gpus: int) -> Collective:
    """Each GPU sends ``(n - 1) / n`` of its message away, of which the share for other domains over its NIC."""
    domains = -(-gpus // part.domain_gpus)
    away = (gpus - 1) / gpus
    if domains == 1:
        formula = away / part.link_gb_s
    else:
        formula = max(away / part.link_gb_s, (gpus - part.domain_gpus) / gpus / _across(part, domains))
    measured = {n: rate / away for n, rate in part.alltoall_gb_s.items() if n == gpus}
    return _collective(measured, part.alltoall_up_to_mb, gpus, domains, formula, ALLTOALL_FLOOR_NS)


def _across(part: Part, domains: int) -> float:
    return part.nic_gb_s / (1.0 + DOMAIN_DERATE * (domains - 1))


def _collective(
    measured: Mapping[int, float], up_to_mb: float | None, gpus: int, domains: int, formula: float, floor_ns: float
) -> Collective:
    known = measured.get(gpus, 0.0) if domains == 1 else 0.0
    limit = (up_to_mb or 0.0) * 1e6
    return Collective(1.0 / known if known and limit else 0.0, limit, formula, floor_ns if domains > 1 else 0.0)


class CollectivesTime:
    """All collectives of a pass, in nanoseconds.

    Two all-reduces per layer: after attention among the GPUs of a sequence, after the MLP among those of a stage. On
    layers with experts the second is an all-to-all to the experts and back where they are spread, and an all-reduce
    besides where one expert is divided. The GPUs that share a context gather queries and reduce outputs.
    """

    def __init__(self, deployment: Deployment) -> None:
        model, part, tp, ep = deployment.model, deployment.part, deployment.tp, deployment.ep
        self._attention = (allreduce(part, deployment.attention_tp), float(model.layers))
        self._value_bytes = model.hidden * VALUE_BYTES
        divided = model.layers - (model.expert_layers if tp == ep else 0)
        self._mlp = (allreduce(part, tp), float(divided))
        self._ep = (alltoall(part, ep), 2.0 * model.expert_layers if ep > 1 else 0.0)
        self._sent = self._value_bytes * (model.experts.topk if model.experts else 0)
        attention, dcp = model.attention, deployment.dcp
        wide = (2 * attention.kv_lora + attention.rope_dim) or (attention.head_dim + attention.v_head_dim)
        self._context_bytes = attention.heads / deployment.attention_tp * dcp * wide * VALUE_BYTES / 2.0
        self._context = (allreduce(part, dcp), float(model.full_layers) if dcp > 1 else 0.0)
        crosses = tp * deployment.pp > part.domain_gpus
        self._handovers = float(deployment.pp - 1)
        self._handed = self._value_bytes / (part.nic_gb_s if crosses else part.link_gb_s)
        self._attention_gpus, self._tp = deployment.attention_tp, tp

    def by_tokens(self, tokens: Amount, all_tokens: Amount) -> Amount:
        """Those that move each new token, of the rank and of the stage."""
        time = self._handovers * (self._handed * tokens + HANDOVER_NS)
        if self._attention_gpus > 1:
            time = time + _times(self._attention, self._value_bytes * tokens)
        if self._tp > 1:
            time = time + _times(self._mlp, self._value_bytes * all_tokens)
        return time + _times(self._ep, self._sent * tokens)

    def of_contexts(self, work: Work) -> Amount:
        """Those between GPUs that share the contexts of decoding requests."""
        return _times(self._context, self._context_bytes * (work.decodes * work.width))


def _times(counted: tuple[Collective, float], message: Amount) -> Amount:
    collective, count = counted
    return count * collective(message) if count else 0.0 * message
