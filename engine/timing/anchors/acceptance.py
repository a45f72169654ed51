"""Whether an anchor may stand for a target: as a whole, and prefill and packed prefill each for themselves.

Every refusal and warning is a value, so that a page can show all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from engine.timing.anchors import noted, regime
from engine.timing.anchors.artefact import Anchor, Packed, PrefillProbe
from engine.timing.anchors.finding import Finding
from engine.timing.anchors.prefill import curve_of, falls, line_of, packed_line
from engine.timing.anchors.regime import AxisRow
from engine.timing.anchors.target import Target, other_widths

LAYOUT = "layout"
"""What ``allow`` says for an attention-DP layout that differs and cannot be carried over."""
LAYERS = "layers"
"""What ``allow`` says for a depth that differs."""
BEYOND_PROBE = 1.5
"""Longest prompt, in lengths of the longest probe, that a curve without a fit may be read for."""
BEYOND_CURVE = 4.0
"""The same of a fitted curve: further on nothing measured says that its bend goes on."""
CACHE_HIT_RATE = 0.999
FAR_GPUS = 2.0

PrefillUse = Literal["curve", "line", "cache_hits", "refused", "none"]
Carried = Literal["measured", "formula", "no formula"]


@dataclass(frozen=True)
class Acceptance:
    """What of an anchor applies to a target.

    ``refusals`` are of the whole anchor; ``prefill_refusals`` leave its decode calibrated, ``packed_refusals`` its
    prefill of one prompt at a time. ``forced`` names what differs and was allowed by name; ``carried``: whether the
    curves are those of its own widths, come from others by the formula, or without one. ``confidence``: *escalate* (the
    regime differs, allowed or not, or nothing tells how widths change the times), *interp* (asked beyond the measured
    batches or on other widths), *high*; ``reach``: whether the target has more than twice the GPUs that were measured.
    """

    rows: tuple[AxisRow, ...]
    refusals: tuple[Finding, ...]
    prefill: PrefillUse
    prefill_refusals: tuple[Finding, ...]
    packed: bool
    packed_refusals: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    confidence: Literal["escalate", "interp", "high"]
    reach: Literal["high", "low", "unknown"]
    forced: tuple[str, ...]
    carried: Carried

    @property
    def distance(self) -> int:
        """Axes of the regime that differ."""
        return regime.distance(self.rows)

    @property
    def accepted(self) -> bool:
        """Whether its decode may be used: the regime is the same and nothing else forbids it."""
        return not self.refusals

    def to_json(self) -> dict[str, Any]:
        """Everything that it says, with the distance and whether each part is accepted."""
        told = asdict(self)
        parts = {"decode": self.accepted, "prefill": self.prefill_accepted, "packed": self.packed}
        return {"accepted": parts, "distance": self.distance, **told}

    @property
    def prefill_accepted(self) -> bool:
        """Whether its prefill may be used as well."""
        return self.accepted and self.prefill in ("curve", "line", "cache_hits")

    @property
    def calibrated(self) -> dict[str, bool | str]:
        """Of decode and prefill, whether they rest on a measurement of this regime.

        ``True``: measured on these widths; ``"transported"``: on others, and the formula's whole steps tell the
        difference; ``False``: refused, forced by a name in ``allow``, or carried over without a formula.
        """
        by: dict[Carried, bool | str] = {"measured": True, "formula": "transported", "no formula": False}
        level = False if self.forced else by[self.carried]
        prompts = self.carried == "measured" or self.prefill != "cache_hits"  # hits are not carried over
        return {"decode": self.accepted and level, "prefill": self.prefill_accepted and prompts and level}


def judge(anchor: Anchor, target: Target, allow: Collection[str] = ()) -> Acceptance:
    """Whether ``anchor`` applies to ``target``; ``allow`` names axes that may differ, or :data:`LAYOUT`."""
    digest = anchor.meta.get("config_digest")
    configs = (None if digest is None else str(digest), target.config_digest)
    rows = tuple(regime.compare(regime.of_anchor(anchor), target.axes, allow, configs))
    layout = list(_layout_refusals(anchor, target))
    refusals = [*_regime_refusals(rows), *(finding for word, finding in layout if word not in allow)]
    forced = [*(row.axis for row in rows if row.allowed), *(word for word, _ in layout if word in allow)]
    carried: Carried = "measured"
    if other_widths(anchor, target):
        carried = "no formula" if target.deployment is None else "formula"
    use, prefill_refusals = _prefill(anchor, target)
    probe = anchor.prefill
    packed_refusals: list[Finding] = []
    if probe is not None and probe.packed is not None:
        if use in ("curve", "line"):
            packed_refusals = list(_packed_refusals(probe, probe.packed, target))
        else:
            packed_refusals = [Finding("packed_without_curve", "Packed prompts need the curve of single ones.")]
    warnings = [*_allowed(rows), *(_said_allowed(finding) for word, finding in layout if word in allow)]
    warnings += noted.of_decodes(anchor, target)
    if probe is not None and use in ("curve", "line"):
        warnings += noted.of_prefill(anchor, probe, target, straight=use == "line")
    warnings += [
        Finding(f.code, f.sentence + " Single prompts are priced one after the other.") for f in packed_refusals
    ]
    top = anchor.sweep[-1].batch
    distance = regime.distance(rows)
    asked_beyond = target.requests is not None and target.requests > top
    gpus = target.gpus
    return Acceptance(
        rows=rows,
        refusals=tuple(refusals),
        prefill=use,
        prefill_refusals=tuple(prefill_refusals),
        packed=probe is not None and probe.packed is not None and not packed_refusals,
        packed_refusals=tuple(packed_refusals),
        warnings=tuple(warnings),
        confidence="escalate"
        if distance or forced or carried == "no formula"
        else "interp"
        if asked_beyond or carried == "formula"
        else "high",
        reach="unknown" if gpus is None else "high" if gpus <= FAR_GPUS * anchor.gpus else "low",
        forced=tuple(forced),
        carried=carried,
    )


def _regime_refusals(rows: tuple[AxisRow, ...]) -> Iterator[Finding]:
    for row in rows:
        if row.counts:
            yield Finding(
                f"axis_{row.axis}",
                f"Another {row.label}: {row.anchor or 'unknown'} in the anchor, {row.target or 'unknown'} in the "
                f"target ({row.rule}).",
                {"axis": row.axis, "anchor": row.anchor, "target": row.target},
            )


def _allowed(rows: tuple[AxisRow, ...]) -> Iterator[Finding]:
    for row in rows:
        if row.allowed:
            yield Finding(
                f"allowed_{row.axis}",
                f"Another {row.label} ({row.anchor or 'unknown'}, not {row.target or 'unknown'}) was allowed by name.",
                {"axis": row.axis, "anchor": row.anchor, "target": row.target},
            )


def _said_allowed(finding: Finding) -> Finding:
    return Finding(f"allowed_{finding.code}", f"{finding.sentence} It was allowed by name.", finding.figures)


def _layout_refusals(anchor: Anchor, target: Target) -> Iterator[tuple[str, Finding]]:
    """What forbids to carry the anchor over, each with the word that allows it."""
    here, there = anchor.attention_dp, target.attention_dp
    if here is not None and there is not None and here != there and target.deployment is None:
        yield (
            LAYOUT,
            Finding(
                "attention_dp_layout",
                f"Measured with {here} attention-DP ranks, asked for {there}, and no part and model are named from "
                "which the difference could be computed.",
                {"anchor": here, "target": there},
            ),
        )
    layers = None if target.deployment is None else target.deployment.model.layers
    if anchor.layers is not None and layers is not None and anchor.layers != layers:
        yield (
            LAYERS,
            Finding(
                "depth",
                f"Measured with {anchor.layers} of {layers} layers: what a layer costs was not measured apart.",
                {"anchor": anchor.layers, "target": layers},
            ),
        )


# -- prefill ---------------------------------------------------------------------------------------------------


def _prefill(anchor: Anchor, target: Target) -> tuple[PrefillUse, list[Finding]]:
    probe = anchor.prefill
    if probe is None:
        return "none", [Finding("no_probe", "No prompt was measured.")]
    use: PrefillUse = "curve" if curve_of(probe) is not None else "line"
    refusals = []
    caching = anchor.prefix_caching
    if anchor.meta.get("prefill_observable") != "pass" and caching is not False:
        rate = target.hit_rate
        if caching and rate is not None and rate >= CACHE_HIT_RATE:
            use = "cache_hits"
        else:
            what = "on" if caching else "in an unknown state"
            refusals.append(
                Finding(
                    "cache_state",
                    f"Prompts were measured with the prefix cache {what}: their time may be that of a cache hit.",
                    {"prefix_caching": caching, "hit_rate": rate},
                )
            )
    if (use == "line" and line_of(probe) is None) or falls(probe):
        refusals.append(
            Finding(
                "no_rate",
                "Prompts of one length, or of no positive rate (longer ones took no longer), were measured: what a "
                "token costs is not known.",
                {"lengths": sorted({point.tokens for point in probe.points})},
            )
        )
    asked = target.prompt_tokens
    limit = BEYOND_CURVE if use == "curve" else BEYOND_PROBE
    if use in ("curve", "line") and asked is not None and asked > limit * probe.longest:
        what = "even a fitted curve is read no further than that" if use == "curve" else "there is no fitted curve"
        refusals.append(
            Finding(
                "probe_too_short",
                f"Prompts of up to {probe.longest:,.0f} tokens were measured, and {asked:,.0f} are asked for, more "
                f"than {limit:g} times as long: {what}.",
                {"longest": probe.longest, "asked": asked, "limit": limit},
            )
        )
    return ("refused", refusals) if refusals else (use, [])


def _packed_refusals(probe: PrefillProbe, packed: Packed, target: Target) -> Iterator[Finding]:
    points = packed.points
    if packed.repeats < 2:
        yield Finding("packed_repeats", f"Packed prompts were measured {packed.repeats} times, not twice or more.")
    if len(points) < 2:
        yield Finding("packed_points", "Packed prompts were measured at fewer than two widths.")
        return
    if any(after[2] <= before[2] for before, after in itertools.pairwise(points)):
        yield Finding("packed_order", "A wider pack of prompts took no longer than a narrower one.")
    line = packed_line(probe, packed)
    tokens, _, measured = points[-1]
    alone = line.ms(tokens, 1)
    if alone > 0 and not 0.5 <= measured / alone <= 1.5:
        yield Finding(
            "packed_level",
            f"The widest pack took {measured:,.1f} ms, and one prompt of as many tokens {alone:,.1f} ms.",
            {"measured_ms": measured, "single_ms": alone},
        )
    told = (line.fixed + packed.rate * tokens) / measured
    if not 0.6 <= told <= 1.4:
        yield Finding(
            "packed_rate",
            f"Its rate gives {told:.2f} of what the widest pack took: expected 0.6 to 1.4.",
            {"share": told},
        )
    slopes = [(b[2] - a[2]) / (b[0] - a[0]) for a, b in itertools.pairwise(points) if b[0] > a[0]]
    later = sorted(slopes[1:])
    if later and packed.rate > 2 * line.rate(packed.seq_len) and slopes[0] > 5 * _median(later):
        yield Finding(
            "packed_first_rung",
            "Its rate is over twice that of single prompts, and rests on the step from the first width to the second.",
            {"rate": packed.rate, "first": slopes[0], "later": _median(later)},
        )
    budget = target.budget or packed.budget
    if budget is not None and budget < 1.5 * packed.seq_len:
        yield Finding(
            "packed_budget_small",
            f"A pass of {budget:,.0f} tokens admits less than 1.5 prompts of {packed.seq_len:,.0f}.",
            {"budget": budget, "seq_len": packed.seq_len},
        )
    if budget is not None and budget > 1.5 * tokens:
        yield Finding(
            "packed_budget_wide",
            f"A pass may compute {budget:,.0f} tokens, over 1.5 times the widest pack ({tokens:,.0f}).",
            {"budget": budget, "widest": tokens},
        )
    asked = target.prompt_tokens
    if asked is not None and not 0.5 <= asked / packed.seq_len <= 2.0:
        yield Finding(
            "packed_length",
            f"Prompts of {packed.seq_len:,.0f} tokens were packed, {asked:,.0f} are asked for: expected half to twice.",
            {"seq_len": packed.seq_len, "asked": asked},
        )


def _median(ordered: list[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
