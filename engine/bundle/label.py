"""What a pair may claim, from the replay's lineage alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from engine.bundle.reader import Bundle

LABELS = ("blind_prediction", "diagnostic", "post_result_exploratory")


def replay_lineage(
    fitted_on: Iterable[Mapping[str, Any]],
    config: Mapping[str, Any],
    knobs_changed: Mapping[str, Any],
    store_held_at_seal: Iterable[str],
    parent_run: str | None = None,
    rung: int | None = None,
    subset: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The lineage of a replay in the form that :func:`make_label` reads.

    ``fitted_on`` has one entry per run that the timing model rests on: ``{run_id, phases, tables: {name: content
    digest}}``. ``store_held_at_seal`` holds the ids of all measured runs that the stores held. ``rung`` is the
    ladder's (0: nothing taken from a measurement), ``subset`` says in words which part of a trace was replayed.
    """
    return {
        "parent_run": parent_run,
        "fitted_on": [dict(entry) for entry in fitted_on],
        "config": dict(config),
        "knobs_changed": dict(knobs_changed),
        "store_held_at_seal": sorted(set(store_held_at_seal)),
        "rung": rung,
        "subset": subset,
        **more,
    }


def make_label(replay: Bundle, measured: Bundle) -> str:
    """One of LABELS for the pair.

    ``blind_prediction``: the measured run was neither in the store nor fitted on when the replay was sealed.
    ``diagnostic``: a ladder rung that takes something from a measurement, or a subset. ``post_result_exploratory``:
    everything else, a lineage that does not say included: blindness has to be shown.
    """
    lineage = replay.lineage
    if lineage.get("rung") or lineage.get("subset"):
        return "diagnostic"
    held, fitted = lineage.get("store_held_at_seal"), lineage.get("fitted_on")
    if not isinstance(held, list) or not isinstance(fitted, list):
        return "post_result_exploratory"
    known = {_content(run_id) for run_id in held} | {_content(entry.get("run_id")) for entry in fitted}
    digests = {digest for entry in fitted for digest in (entry.get("tables") or {}).values()}
    measured_digests = {entry["content"] for entry in measured.manifest["files"].values()}
    if _content(measured.run_id) in known or digests & measured_digests:
        return "post_result_exploratory"
    return "blind_prediction"


def _content(run_id: Any) -> str:
    """The part of an id that names content: the same recording under another name is the same recording."""
    return str(run_id).rpartition("-")[2]
