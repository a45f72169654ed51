"""A complete, checked set of knobs from what a user gives."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from engine.errors import GapscopeError
from engine.knobs.knob import Knob
from engine.knobs.settle import (
    settle_client,
    settle_disaggregation,
    settle_engine,
    settle_host,
    settle_lookahead,
    settle_speculation,
    settle_topology,
)
from engine.knobs.settle_deployment import settle_deployment
from engine.knobs.table import BY_NAME, FIXED, HOST_TERMS, KNOBS

SHORTEST_S = 1e-6


def defaults() -> dict[str, Any]:
    """Every knob at its default."""
    return {k.name: k.default for k in KNOBS}


def resolve(changes: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A complete, checked set of knobs: ``base`` (or the defaults) with ``changes`` applied.

    Raises:
        GapscopeError: an unknown knob (the nearest known one is named), a value of the wrong type or out of range,
            or values that contradict each other.
    """
    values = defaults()
    for given in (base or {}, changes):
        for name, value in given.items():
            values[name] = _known(name).parse(value)
    if 0 < values["duration_s"] < SHORTEST_S:
        raise GapscopeError(
            f"Knob duration_s={values['duration_s']:g} is no time at all: expected 0 (until the trace is exhausted) "
            f"or at least {SHORTEST_S:g} s."
        )
    if values["timing"] == "fixed" and not any(values[name] for name in FIXED):
        raise GapscopeError(
            f"Knobs {', '.join(FIXED)} are all 0, so no pass would take any time: expected one of them above 0."
        )
    if values["host_model"] != "given":
        for name in HOST_TERMS:
            if name in changes and values[name]:
                raise GapscopeError(
                    f"Knob {name}={values[name]:g} has no effect with host_model={values['host_model']}: expected "
                    "host_model=given."
                )
            values[name] = BY_NAME[name].default
    settle_client(values, changes)
    settle_engine(values, changes)
    settle_host(values, changes)
    if values["engine"] != "sglang" and values["max_num_batched_tokens"] < values["max_num_seqs"]:
        raise GapscopeError(
            f"Knob max_num_batched_tokens={values['max_num_batched_tokens']} is smaller than "
            f"max_num_seqs={values['max_num_seqs']}: expected a budget that holds one token of each running request."
        )
    settle_disaggregation(values, changes)
    settle_topology(values, changes)
    settle_speculation(values, changes)
    settle_lookahead(values, changes)
    settle_deployment(values, changes)
    return values


def _known(name: str) -> Knob:
    if name in BY_NAME:
        return BY_NAME[name]

    near = get_close_matches(name, BY_NAME, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise GapscopeError(f"Unknown knob {name!r}.{hint} `gapscope replay --help` lists all {len(KNOBS)} of them.")
