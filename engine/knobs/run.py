"""Knobs of how passes are priced, and of what is written."""

from __future__ import annotations

from engine.knobs.knob import Knob

KNOBS: tuple[Knob, ...] = (
    Knob(
        "timing",
        str,
        "fpm",
        "timing",
        "fpm: fitted on measured passes; anchor: measured curves, inside the regime they were measured in; table: a "
        "published table of whole passes; measured: the recorded passes of the run itself; analytic: from what the "
        "deployment below can compute and move; fixed: the constants below",
        choices=("fpm", "anchor", "table", "measured", "analytic", "fixed"),
    ),
    Knob("anchor", str, "", "timing", "anchor timing: the anchor, by its name in the store"),
    Knob(
        "anchor_allow",
        str,
        "",
        "timing",
        "anchor timing: axes of the regime that may differ all the same, separated by commas; layout: another "
        "attention-DP layout; layers: another depth",
    ),
    Knob("table", str, "", "timing", "table timing: the table, by its name in the store"),
    Knob(
        "measured_match",
        str,
        "geometry",
        "timing",
        "measured timing; order: one recorded pass after the other while the batches agree in shape; geometry: those "
        "nearest in shape",
        choices=("order", "geometry"),
    ),
    Knob(
        "on_refused",
        str,
        "clamp",
        "timing",
        "what to do with a query outside the measured domain; analytic: price it as timing=analytic would",
        choices=("clamp", "extrapolate", "abort", "analytic"),
    ),
    Knob(
        "mixed_composition",
        str,
        "auto",
        "timing",
        "how a mixed pass is composed; auto: the one that fits the fit data better",
        choices=("auto", "sum", "marginal"),
    ),
    Knob(
        "pass_scale",
        float,
        1.0,
        "timing",
        "factor on every pass duration (what if the part were faster)",
        "",
        0.001,
        1000,
    ),
    Knob(
        "between_passes_ms",
        float,
        -1.0,
        "timing",
        "host time between passes; negative: as fitted (0 where nothing was)",
        "ms",
        -1,
        60_000,
    ),
    Knob(
        "correction",
        str,
        "",
        "timing",
        "bounded factors on pass durations, learned on measured passes, by their name in the store; empty: none",
    ),
    Knob("fixed_pass_us", float, 5000.0, "timing", "fixed timing: per pass", "us", 0, 1e9),
    Knob(
        "fixed_prefill_token_us",
        float,
        20.0,
        "timing",
        "fixed timing: per freshly computed prompt token",
        "us",
        0,
        1e9,
    ),
    Knob("fixed_decode_request_us", float, 20.0, "timing", "fixed timing: per decoding request", "us", 0, 1e9),
    Knob("fixed_kv_token_ns", float, 40.0, "timing", "fixed timing: per KV token read", "ns", 0, 1e9),
    Knob("record_events", bool, True, "output", "write cache events"),
    Knob("record_chunks", bool, True, "output", "write one row per token received"),
    Knob("record_members", bool, True, "output", "write the exact composition of each batch"),
)
