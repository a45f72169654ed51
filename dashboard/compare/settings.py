"""Settings that a prediction has otherwise than the recording, with the rung that takes what follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dashboard.compare.climb import Setting
from dashboard.queries.identity import identity
from dashboard.store import Store
from engine.errors import GapscopeError
from engine.knobs import BY_NAME, KNOBS, OTHERS_ONLY, SGLANG_ONLY, resolve
from engine.replay.identity import FREE_KNOBS, knobs_from_run

MEMORY, CLIENT, CACHE, TIMING, SCHEDULER = 1, 2, 3, 4, 5
_GROUPS = {
    "capacity": MEMORY,
    "client": CLIENT,
    "scheduler": SCHEDULER,
    "topology": SCHEDULER,
    "disaggregation": SCHEDULER,
    "speculation": SCHEDULER,
}
"""Groups of the identity and of knobs that hold settings, and the rung that takes what they make of a replay."""
_APART = {
    **dict.fromkeys(("prefix_caching", "eviction", "cache_blocks", "host_kv_blocks", "host_link_gb_s"), CACHE),
    **dict.fromkeys(("tp", "pp", "ep", "dp_price", "spec_pricing", "spec_draft_cost"), TIMING),
}
"""Settings that another rung takes than the others of their group."""
_FIELDS = {
    "engine": ("source", "engine"),
    "spec_method": ("speculation", "method"),
    "spec_tokens": ("speculation", "draft_tokens"),
    "prefill_schedule_interval": ("scheduler", "prefill_interval"),
}
"""Knobs that the identity has under another name."""
_KNOB_OF = {field: name for name, field in _FIELDS.items()}


def settings(store: Store, measured: str, base: str) -> tuple[Setting, ...]:
    """Settings of the server and the client in which the two are known to differ, and those of the server that the
    prediction sets while the recording names none. The pool is told in usable blocks.
    """
    return tuple(
        sorted((*_recorded(store, measured, base), *_set(store, measured, base)), key=lambda found: found.rung)
    )


def _recorded(store: Store, measured: str, base: str) -> Iterator[Setting]:
    """Those that both identities hold."""
    for row in identity(store, measured, base).rows:
        name = _name(row.group, row.field)
        if row.state == "differs" and name:
            yield Setting(_rung(name, row.group), row.label, row.right and row.right.value, row.left and row.left.value)


def _set(store: Store, measured: str, base: str) -> Iterator[Setting]:
    """Those that only the prediction has; the recording of one pool has no prefill engines."""
    known = {
        _name(row.group, row.field) for row in identity(store, measured, base).rows if row.state in ("same", "differs")
    }
    known |= {"kv_blocks", *FREE_KNOBS}
    one_pool = store.bundle(measured).identity.value("topology", "serving") == "aggregated"
    values = _knobs(store, base)
    without = SGLANG_ONLY if values.get("engine") != "sglang" else OTHERS_ONLY
    for knob in KNOBS:
        if knob.group not in _GROUPS or knob.group == "client" or knob.name in known or knob.name in without:
            continue
        if values.get(knob.name, knob.default) != knob.default:
            recorded = 0 if knob.name == "prefill_replicas" and one_pool else None
            yield Setting(_rung(knob.name, knob.group), knob.name, values[knob.name], recorded)


def _knobs(store: Store, base: str) -> Mapping[str, Any]:
    """The knobs of the prediction; none where its record is no replay's of this program."""
    try:
        return resolve({}, knobs_from_run(store.bundle(base)))
    except GapscopeError:
        return {}


def _name(group: str, field: str) -> str | None:
    """The knob that a field of the identity is; None for what is no setting."""
    if (group, field) in _KNOB_OF:
        return _KNOB_OF[group, field]
    told = field == "usable_kv_blocks" or (field in BY_NAME and field != "kv_blocks")
    return field if group in _GROUPS and told else None


def _rung(name: str, group: str) -> int:
    return _APART.get(name, _GROUPS[BY_NAME[name].group if name in _FIELDS else group])
