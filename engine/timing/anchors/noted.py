"""What is said of an anchor that is used: how it was measured, and how far what is asked lies from it."""

from __future__ import annotations

from collections.abc import Iterator

from engine.timing.anchors.artefact import BUILT_DIGEST, Anchor, PrefillProbe
from engine.timing.anchors.finding import Finding
from engine.timing.anchors.keys import slips
from engine.timing.anchors.prefill import FITTED_POINTS, curve_of, line_of
from engine.timing.anchors.target import Target

DECODE_NOISE = 0.2
"""Share by which a larger batch may take less than a smaller one before it is said."""
OFF_BY_LENGTH = 2.0


def of_decodes(anchor: Anchor, target: Target) -> Iterator[Finding]:
    """Of the file, its sweep, and the decodes that are asked for."""
    if anchor.observable == "mean_tpot":
        yield Finding(
            "observable_tpot",
            "Decodes are mean times per output token, which hold waits for other requests' prompts: they read high.",
        )
    if anchor.observable == "median_itl" and (anchor.backend or "").lower() == "vllm":
        yield Finding("observable_refilling", "Decodes were measured in a refilling loop, whose steps hold prompts.")
    top = anchor.sweep[-1].batch
    if len(anchor.sweep) == 1:
        what = (
            "cost the same, as no part and model are named" if target.deployment is None else "have the formula's shape"
        )
        yield Finding("single_batch", f"Only batch {top} was measured: other batches {what}.")
    for where, key, meant in slips(anchor.document):
        yield Finding(
            "key_not_read",
            f"Key {key} of {where} is not read: is {meant} meant?",
            {"key": key, "meant": meant},
        )
    if anchor.meta.get("sources") and not anchor.is_built:
        yield Finding(
            "no_lineage",
            f"The anchor names recordings and has no {BUILT_DIGEST}: whether it was made of them is not known, and it "
            "is used as written by hand.",
        )
    yield from _falling(anchor)
    if any(point.context is None for point in anchor.sweep):
        yield Finding(
            "context_unknown",
            "The anchor does not say at which context its decodes were measured (input_len and output_len, or context "
            "in a row): they are read alike at any, and no context counts as measured.",
        )
    if target.requests is not None and target.requests > top:
        yield Finding(
            "sweep_narrow",
            f"Decodes of up to {top} requests were measured, {target.requests} are asked for: "
            f"{target.requests / top:.3g} x past the widest is modelled, not measured.",
            {"widest": top, "asked": target.requests},
        )
    if anchor.attention_dp is None and (target.attention_dp or 1) > 1:
        yield Finding("layout_unknown", "The anchor does not say its attention-DP layout: used as it is.")
    if anchor.tp is None and (target.tp or 1) > 1:
        yield Finding("width_unknown", "The anchor does not say on how many GPUs it ran: used as it is.")
    if target.tp is not None and anchor.tp is not None and target.tp != anchor.tp:
        yield Finding(
            "width_restored",
            f"Decodes were measured on tp={anchor.tp} and are carried over to tp={target.tp}, not measured there.",
            {"anchor": anchor.tp, "target": target.tp},
        )
    asked, own = target.prompt_tokens, anchor.input_len
    if asked and own and not 1 / OFF_BY_LENGTH < asked / own < OFF_BY_LENGTH:
        yield Finding(
            "other_length",
            f"Decodes were measured after prompts of {own:,.0f} tokens, and prompts of {asked:,.0f} are asked for.",
            {"anchor": own, "asked": asked},
        )


def _falling(anchor: Anchor) -> Iterator[Finding]:
    """The largest fall of the sweep: a step with more requests computes and reads more, and takes no less."""
    slowest, found = anchor.sweep[0], None
    for point in anchor.sweep[1:]:
        share = point.ms / slowest.ms
        if share < 1.0 - DECODE_NOISE and (found is None or share < found[0]):
            found = share, slowest, point
        slowest = max(slowest, point, key=lambda one: one.ms)
    if found is not None:
        _, before, after = found
        yield Finding(
            "sweep_falls",
            f"Batch {after.batch} took {after.ms:,.4g} ms, and the smaller batch {before.batch} {before.ms:,.4g} ms: "
            "more than noise, so look at how the sweep was measured.",
            {"batch": after.batch, "ms": after.ms, "smaller": before.batch, "smaller_ms": before.ms},
        )


def of_prefill(anchor: Anchor, probe: PrefillProbe, target: Target, straight: bool) -> Iterator[Finding]:
    """Of prompts that were accepted; ``straight``: as one rate for all lengths."""
    asked = target.prompt_tokens
    if asked is None:
        yield Finding("prompts_unknown", "How long the target's prompts are is not known.")
    elif asked > probe.longest:
        yield Finding(
            "beyond_probe",
            f"Prompts of up to {probe.longest:,.0f} tokens were measured, {asked:,.0f} are asked for: the rate of the "
            "longest is held.",
            {"longest": probe.longest, "asked": asked},
        )
    shortest = min(point.tokens + point.context for point in probe.points)
    if asked is not None and asked < shortest:
        yield Finding(
            "below_probe",
            f"Prompts of {shortest:,.0f} tokens and more were measured, {asked:,.0f} are asked for.",
            {"shortest": shortest, "asked": asked},
        )
    if straight:
        yield Finding(
            "straight_line",
            f"Fewer than {FITTED_POINTS} lengths were measured: one rate for all, and a fixed part held at any width.",
        )
    line = curve_of(probe) or line_of(probe)
    if line is not None and min(line.raw_rate(0.0), line.raw_rate(probe.longest)) <= 0:
        yield Finding("negative_rate", "A token's rate gets negative: the slowest measured one is taken there.")
    if target.tp is not None and anchor.tp not in (None, target.tp) and target.deployment is None:
        yield Finding(
            "ideal_sharding",
            "No part and model are named, so that tokens of prompts are taken to be shared evenly by the GPUs.",
        )
