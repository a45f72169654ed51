"""Knobs of the deployment that have no effect, or that no deployment can have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import GapscopeError
from engine.knobs.settle import drop
from engine.knobs.table import BY_NAME, DEPLOYMENT

DEPLOYMENT_TIMINGS = ("analytic",)
"""Values of ``timing`` that price passes from what is deployed."""
COVERING_TIMINGS = ("fpm", "anchor", "table")
"""Those that refuse what they do not cover, so that another source may answer it."""


def prices_deployment(values: Mapping[str, Any]) -> bool:
    """Whether the deployment knobs have any effect with these."""
    return values["timing"] in DEPLOYMENT_TIMINGS or values["on_refused"] == "analytic"


def settle_deployment(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Refuse deployments that cannot be; where nothing is priced from one, the knobs become their defaults."""
    timing = values["timing"]
    if values["on_refused"] == "analytic" and timing not in COVERING_TIMINGS:
        if timing in DEPLOYMENT_TIMINGS or "on_refused" not in changes:
            values["on_refused"] = BY_NAME["on_refused"].default
        else:
            raise GapscopeError(
                f"Knob on_refused=analytic has no effect with timing={timing}, which refuses nothing that another "
                "source could answer: expected clamp."
            )
    if timing != "anchor":
        for name in ("anchor", "anchor_allow"):
            drop(values, changes, name, f"timing={timing}")
    if timing != "table":
        drop(values, changes, "table", f"timing={timing}")
    # An anchor stands for the deployment of a run's record too: knobs that name no whole deployment change that.
    if not prices_deployment(values) and timing != "anchor":
        for name in DEPLOYMENT:
            drop(values, changes, name, f"timing={timing} and on_refused={values['on_refused']}")
        return
    for name, what in (("part", "part"), ("model_preset", "model")):
        if not values[name] and prices_deployment(values):
            raise GapscopeError(
                f"Knob {name} is not set, and passes are to be priced from what is deployed: name a preset "
                f"(`gapscope {what} list`)."
            )
    tp, ranks = values["tp"], values["attention_dp"]
    if tp % ranks:
        raise GapscopeError(
            f"Knobs tp={tp} and attention_dp={ranks}: the ranks share the GPUs of a stage; expected a tp that "
            f"attention_dp={ranks} divides."
        )
    if tp % values["ep"]:
        raise GapscopeError(f"Knobs tp={tp} and ep={values['ep']}: expected an ep that divides tp.")
    if (tp // ranks) % values["dcp"]:
        raise GapscopeError(
            f"Knob dcp={values['dcp']}: expected a divisor of tp / attention_dp, which is {tp // ranks}."
        )
    if values["ep"] == 1:
        drop(values, changes, "ep_imbalance", "ep=1")
    if values["graph_mode"] != "none":
        drop(values, changes, "launch_us", f"graph_mode={values['graph_mode']}")
    drafting = values["spec_method"] == "draft_model" and not values["spec_draft_cost"]
    if not drafting:
        drop(values, changes, "draft_preset", "spec_method other than draft_model, or spec_draft_cost given")
    elif not values["draft_preset"] and prices_deployment(values):
        raise GapscopeError(
            "Knob spec_method=draft_model: expected the draft model by its preset (draft_preset), or what a draft "
            "costs (spec_draft_cost)."
        )
    if timing in ("analytic", "anchor"):
        drop(values, changes, "spec_pricing", f"timing={timing}, which prices the width of a verification")
