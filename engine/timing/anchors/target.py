"""What an anchor is asked to stand for: a regime, its widths, and what will be asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from engine.deployment import Deployment
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.timing.anchors.artefact import Anchor
from engine.timing.anchors.canonical import dtype_of, family_of, graph_of, method_of, model_key, speculation_of, text_of
from engine.timing.anchors.regime import AXES, of_deployment, of_identity

WIDTHS = ("tp", "pp", "ep", "attention_dp")


@dataclass(frozen=True)
class Target:
    """A deployment as far as it is known; None is unknown.

    ``prompt_tokens`` is the length that 95 % of its prompts do not exceed, ``hit_rate`` the share of prompt tokens that
    are cached, ``requests`` how many decode together at most, ``budget`` the tokens of a pass at most. ``deployment``
    is there when part and model are named by presets, and passes of it can be priced.
    """

    axes: Mapping[str, str | None]
    config_digest: str | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    attention_dp: int | None = None
    prompt_tokens: float | None = None
    hit_rate: float | None = None
    requests: int | None = None
    budget: int | None = None
    deployment: Deployment | None = field(default=None, repr=False)

    @property
    def gpus(self) -> int | None:
        """GPUs of one engine."""
        return None if self.tp is None else self.tp * (self.pp or 1)

    def to_json(self) -> dict[str, Any]:
        """Everything but the deployment, which the knobs of a replay say."""
        record = asdict(replace(self, deployment=None))
        del record["deployment"]
        return record

    @classmethod
    def from_json(cls, record: Any) -> Target:
        """The target in a record.

        Raises:
            GapscopeError: not what :meth:`to_json` writes.
        """
        names = {f.name for f in fields(cls)} - {"deployment"}
        if not isinstance(record, Mapping) or not isinstance(record.get("axes"), Mapping) or set(record) - names:
            raise GapscopeError(f"Target of an anchor is {record!r:.80}: expected its axes and widths.")
        return cls(**record)


UNKNOWN = Target(dict.fromkeys(AXES))
"""A target of which nothing is known."""


def other_widths(anchor: Anchor, target: Target) -> dict[str, tuple[int, int]]:
    """Widths that are known to differ: the anchor's and the target's."""
    both = {width: (getattr(anchor, width), getattr(target, width)) for width in WIDTHS}
    return {
        width: (here, there) for width, (here, there) in both.items() if None not in (here, there) and here != there
    }


def of_run(identity: Identity, *, prompt_tokens: float | None = None, hit_rate: float | None = None) -> Target:
    """The deployment of a run, by its record."""
    tp, pp, ep, ranks = (_count(identity.value("topology", name)) for name in ("tp", "pp", "ep", "attention_dp"))
    requests = [_count(identity.value("scheduler", "max_num_seqs")), _count(identity.value("client", "lanes"))]
    known = [count for count in requests if count is not None]
    digest = identity.value("model", "config_digest")
    return Target(
        of_identity(identity),
        config_digest=None if digest is None else str(digest),
        prompt_tokens=prompt_tokens,
        hit_rate=hit_rate,
        requests=min(known) if known else None,
        budget=_count(identity.value("scheduler", "max_num_batched_tokens")),
        tp=tp,
        pp=pp,
        ep=ep,
        attention_dp=ranks,
    )


def with_knobs(target: Target, knobs: Mapping[str, Any], deployment: Deployment | None) -> Target:
    """The target as a replay's knobs change it.

    A named deployment takes the place of everything that a run's record says of kernels and widths. Without one, only
    deployment knobs that are set (not at their default) change an axis.
    """
    axes = of_deployment(deployment) if deployment is not None else {**target.axes, **_set_axes(knobs)}
    if deployment is not None:
        axes["engine_version"] = None
    axes["engine"] = knobs["engine"]
    drafts = knobs["spec_tokens"]
    method = knobs["spec_method"] if drafts else None
    axes["speculation"], axes["speculation_method"] = speculation_of(method, drafts), method_of(method)
    if drafts and method == "none":  # drafts without a method still widen a pass
        axes["speculation"] = f"spec:{drafts}"
    requests = knobs["max_num_seqs"]
    if knobs["arrivals"] in ("lanes", "concurrency"):
        requests = min(requests, knobs["lanes"])
    return replace(
        target,
        axes=axes,
        config_digest=None if deployment is not None or knobs["model_preset"] else target.config_digest,
        **{name: _width(knobs[name], getattr(target, name), deployment) for name in ("tp", "pp", "ep")},
        attention_dp=knobs["attention_dp"],
        requests=requests,
        budget=knobs["chunked_prefill_size"] if knobs["engine"] == "sglang" else knobs["max_num_batched_tokens"],
        deployment=deployment,
    )


def _set_axes(knobs: Mapping[str, Any]) -> dict[str, str | None]:
    """Axes that deployment knobs change without naming a whole deployment."""
    said: dict[str, str | None] = {
        "part": text_of(knobs["part"]),
        "model": model_key(knobs["model_preset"]),
        "weight_dtype": None if knobs["weight_dtype"] == "own" else dtype_of(knobs["weight_dtype"]),
        "expert_dtype": None if knobs["expert_dtype"] == "own" else dtype_of(knobs["expert_dtype"]),
        "kv_dtype": None if knobs["kv_dtype"] == "bf16" else dtype_of(knobs["kv_dtype"]),
        "graph_mode": None if knobs["graph_mode"] == "full" else graph_of(knobs["graph_mode"]),
        "attention_family": family_of(knobs["attention_family"]),
    }
    return {axis: value for axis, value in said.items() if value is not None}


def _width(asked: int, recorded: int | None, deployment: Deployment | None) -> int | None:
    """A width that was named with a deployment or set, else that of the run's record."""
    return asked if deployment is not None or asked != 1 else recorded


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
