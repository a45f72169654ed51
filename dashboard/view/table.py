"""The table of view parameters: widgets read name, default and choices from it, links use the same names."""

from __future__ import annotations

import re

from dashboard import metrics
from dashboard.sweeps.plan import SWEPT
from dashboard.view.pages import REPLAYING
from dashboard.view.params import SHARED, Param
from engine import knobs
from engine.bundle.manifest import RUN_ID

MAX_REPLAYS = 4
KNOB_PREFIX = "k_"

PRESET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*){0,2}")
"""A preset, or an anchor of a store: a name, never a path out of it."""
SOURCE_NAME = re.compile(rf"(analytic|anchor|table):{PRESET_NAME.pattern}(#[0-9]+)?")

SPACED = "A list such as 4,8,16, or from:to:steps such as 1024:8192:4; with :log at its end by equal factors"
_RUNG_WORDS = {
    "1": "1 Reproduce",
    "2": "2 Arithmetic",
    "3": "3 Memory",
    "4": "4 Per-role benches",
    "5": "5 End to end",
}
RUN_STATES = ("qualified", "failed", "unknown", "altered", "malformed")
"""What the qualification of a sound run says, else what is wrong with its files."""
CANDIDATES = ("replay", *(f"candidate {place}" for place in range(2, MAX_REPLAYS + 1)))
"""The replays by their places in the pair bar."""
_CLASS_WORDS = {"prefill_only": "prefill only", "mixed": "mixed", "decode_only": "decode only"}
_METRIC_WORDS = {name: metric.label for name, metric in metrics.METRICS.items()}
REQUEST_METRICS = tuple(name for name, metric in metrics.METRICS.items() if metric.source == "requests")
SCALES = {"log": "log", "linear": "linear"}


def _scale(name: str, owner: str, default: str = "log") -> Param:
    return Param(name, str, default, owner, "Latency axis", tuple(SCALES), words=SCALES)


_TABLE: tuple[Param, ...] = (
    Param("m", str, "", SHARED, "Measured run", pattern=RUN_ID, by_data=True),
    Param("r", list, (), SHARED, "Replay, or up to four candidates", high=MAX_REPLAYS, pattern=RUN_ID, by_data=True),
    Param(
        "pop",
        str,
        "complete",
        SHARED,
        "Population",
        tuple(metrics.SUBSETS),
        "Both complete cohorts are the headline; matched source-turns are a diagnostic subset.",
        {
            "complete": "all requests",
            "root": "root conversations",
            "child": "child conversations",
            "matched": "matched source-turns",
            "matched_near": "matched, near-equal lengths",
            "matched_exact": "matched, equal lengths",
        },
    ),
    Param("tol", int, 16, SHARED, "Tolerance, tokens", low=0, high=100_000),
    Param(
        "phase",
        str,
        "profile",
        SHARED,
        "Phase",
        tuple(metrics.PHASES),
        "A request's phase is that of its dispatch; a pass's is that of its start. From grace on none is sent.",
        {"warmup": "warm-up", "all": "all phases", "cooldown": "cool-down"},
    ),
    Param(
        "est",
        str,
        "linear",
        SHARED,
        "Estimator",
        tuple(metrics.Estimator),
        "How a percentile is read off a sorted sample; the same on both sides.",
        {"nearest_rank": "nearest rank"},
    ),
    Param(
        "win",
        str,
        "fixed",
        SHARED,
        "Rate window",
        tuple(metrics.Window),
        "The time over which rates are taken, and which requests count.",
        {"fixed": "fixed window", "observed_span": "observed span", "completions": "completions in window"},
    ),
    Param(
        "pin",
        bool,
        False,
        SHARED,
        "Pin",
        help="Pin the baseline: the measured run stays what all is held against, and what is chosen elsewhere joins as "
        "a candidate",
    ),
    Param(
        "hide",
        list,
        (),
        SHARED,
        "Not drawn",
        ("measured", *CANDIDATES),
        "Charts leave out the lines, points and bars of these runs; tables and numbers keep them.",
    ),
    Param("ack", bool, False, SHARED, "Compare anyway: I know that these runs are not like for like"),
    Param("find", str, "", "runs", "Search"),
    Param("kind", list, (), "runs", "Kind", ("measured", "replay", "sweep", "imported_summary")),
    Param("run_state", list, (), "runs", "State", RUN_STATES),
    Param("run_model", list, (), "runs", "Model"),
    Param("run_hw", list, (), "runs", "Hardware"),
    Param("run_engine", list, (), "runs", "Engine"),
    Param("rungs", bool, False, "runs", "Rungs of ladders", help="List the replays between a prediction and a run"),
    Param("points", bool, False, "runs", "Points of sweeps", help="List the replays of sweeps and sensitivities"),
    Param(
        "gates",
        str,
        "",
        "verdict",
        "Acceptance contract",
        help="Gates, separated by spaces: ttft.mean<=10% ttft.p90<=15% hit_ratio.tokens<=2pp preemptions.capture=2..8. "
        "There is no built-in threshold.",
        also=(*REPLAYING, "report"),
    ),
    Param("split", str, "ttft", "verdict", "Gap of the mean", metrics.HEADLINE_METRICS, words=_METRIC_WORDS),
    Param("split_of", str, "replay", "verdict", "Of", CANDIDATES, by_data=True),
    Param(
        "only",
        str,
        "open",
        "identity",
        "Fields",
        ("open", "all"),
        words={"open": "differing and unknown", "all": "all"},
    ),
    Param("id_find", str, "", "identity", "Search"),
    Param("lanes_from", float, 0.0, "cohort", "From, s", low=-1e6, high=1e7),
    Param("lanes_span", float, 30.0, "cohort", "Length, s", low=1, high=1e6),
    Param("metric", str, "ttft", "percentiles", "Metric", tuple(_METRIC_WORDS), words=_METRIC_WORDS),
    Param(
        "curve",
        str,
        "ecdf",
        "percentiles",
        "Curve",
        ("ecdf", "tail", "percentile", "qq"),
        words={"ecdf": "ECDF", "tail": "tail", "percentile": "percentiles", "qq": "quantile-quantile"},
    ),
    _scale("pct_x", "percentiles"),
    Param(
        "by",
        str,
        "input_tokens",
        "percentiles",
        "Split by",
        ("input_tokens", "cached_share", "output_tokens", "turn_index"),
        words={
            "input_tokens": "input length",
            "cached_share": "cached share",
            "output_tokens": "output length",
            "turn_index": "turn depth",
        },
    ),
    Param("slo", str, "", "percentiles", "Limits", help="Of latency metrics, as ttft<=500ms e2e<=2s: the share within"),
    Param(
        "err",
        str,
        "median",
        "percentiles",
        "Gap of a cell",
        ("median", "means"),
        "Of the source-turns that both sides share: the median of their gaps, or the gap of their means",
        {"median": "median", "means": "of the means"},
    ),
    Param("err_of", str, "replay", "percentiles", "Of", CANDIDATES, by_data=True),
    Param("err_cell", str, "", "percentiles", "Cell (click one below)", pattern=re.compile(r"\d{1,2}[.]\d{1,2}")),
    Param("top", int, 10, "percentiles", "Largest requests", low=1, high=500),
    Param("hist", str, "ttft.mean", "repeats", "Number", tuple(metrics.LADDER_NUMBERS), words=metrics.LADDER_NUMBERS),
    Param(
        "tools",
        list,
        (),
        "tools",
        "Runs of one server, up to eight",
        help="The others are held against the first: its definitions decide what can stand beside it",
        high=metrics.MAX_TOOLS,
        pattern=RUN_ID,
        by_data=True,
    ),
    Param(
        "src",
        str,
        "",
        "source",
        "Run",
        pattern=RUN_ID,
        help="A run of any kind, summaries without rows included",
        by_data=True,
    ),
    Param("src_series", str, "", "source", "Over time", by_data=True),
    Param("src_find", str, "", "source", "Search the figures"),
    Param("tools_metric", str, "ttft", "tools", "Distribution of", metrics.TOOL_METRICS, words=_METRIC_WORDS),
    Param(
        "tools_fields",
        str,
        "open",
        "tools",
        "Definitions",
        ("open", "all"),
        words={"open": "differing and unknown", "all": "all"},
    ),
    Param("cls", str, "mixed", "passes", "Class", metrics.PASS_CLASSES[:3], words=_CLASS_WORDS),
    Param("pass_of", str, "replay", "passes", "Of", CANDIDATES, by_data=True),
    Param("cell", str, "", "passes", "Cell", pattern=re.compile(r"-?\d{1,4}[.]-?\d{1,4}")),
    Param(
        "along",
        str,
        "decode_kv_tokens",
        "passes",
        "Duration along",
        ("decode_kv_tokens", "new_tokens", "prefill_kv_tokens", "decode_requests"),
        words={
            "decode_kv_tokens": "decode KV",
            "new_tokens": "new tokens",
            "prefill_kv_tokens": "prefill KV",
            "decode_requests": "decode requests",
        },
    ),
    Param("pass_from", float, 0.0, "passes", "From, s", low=-1e6, high=1e7),
    Param("pass_span", float, 20.0, "passes", "Length, s", low=1, high=1e6),
    Param(
        "pass_rank",
        str,
        "",
        "passes",
        "Worker and rank",
        help="Of runs with several; others show what they have",
        by_data=True,
    ),
    _scale("pass_y", "passes"),
    Param(
        "tim_run",
        str,
        "",
        "timing",
        "Measured passes of",
        pattern=RUN_ID,
        help="The run whose passes the sources are held against; a sweep covers more than a run does",
        by_data=True,
    ),
    Param(
        "tim_with",
        list,
        (),
        "timing",
        "Sources besides the replays' own, up to three",
        high=3,
        pattern=SOURCE_NAME,
        help="Analytic for a part of the presets, and anchors and tables of the store",
    ),
    Param("tim_model", str, "", "timing", "Model of the analytic sources", pattern=PRESET_NAME, by_data=True),
    Param("tim_tp", int, 1, "timing", "Their GPUs (tp)", low=1, high=1024),
    Param("tim_anchor", str, "", "timing", "Axes of", pattern=PRESET_NAME, help="An anchor of the store", by_data=True),
    _scale("tim_y", "timing", "linear"),
    Param("cov", str, "decode_only", "coverage", "Class", metrics.PASS_CLASSES[:3], words=_CLASS_WORDS),
    Param("reuse_of", str, "replay", "cache_events", "Reasons of", CANDIDATES, by_data=True),
    Param("conv", str, "", "cache_events", "Conversation", by_data=True),
    Param(
        "ladder_number",
        str,
        "ttft.mean",
        "ladder",
        "Number",
        tuple(metrics.LADDER_NUMBERS),
        words=metrics.LADDER_NUMBERS,
    ),
    Param("ladder_check", str, "", "ladder", "Check", by_data=True),
    Param("ladder_pass", int, -1, "ladder", "Pass (choose one above)", low=-1, high=1e9),
    Param(
        "align_tol",
        float,
        5.0,
        "alignment",
        "Tolerance, %",
        help="How far a figure may be off, unless the noise of the measured side is more. There is no universal one.",
        low=0,
        high=100,
    ),
    Param("align_rung", str, "1", "alignment", "Rung", tuple(_RUNG_WORDS), words=_RUNG_WORDS, by_data=True),
    Param("align_ahead", bool, False, "alignment", "Show figures that are not to be read yet"),
    Param("align_part", str, "", "alignment", "Part", help="Of the measured run, by preset", pattern=PRESET_NAME),
    Param("align_model", str, "", "alignment", "Model", help="Of the measured run, by preset", pattern=PRESET_NAME),
    Param("bnd_until", str, "e2e", "boundaries", "Up to the end of", ("e2e", "ttft"), words=_METRIC_WORDS),
    Param("bnd_tail", float, 90.0, "boundaries", "Tail from percentile", low=50, high=99.9),
    Param(
        "bnd_by",
        str,
        "input_tokens",
        "boundaries",
        "Split by",
        ("input_tokens", "turn_index", "role"),
        words={"input_tokens": "input length", "turn_index": "turn depth"},
    ),
    Param(
        "turn",
        str,
        "",
        "request",
        "Source-turn",
        help="Conversation and turn, as in s0003/2; type or choose",
        by_data=True,
    ),
    Param("turn_of", str, "replay", "request", "Compared with", CANDIDATES, by_data=True),
    Param("turn_by", str, "e2e", "request", "Largest difference in", REQUEST_METRICS, words=_METRIC_WORDS),
    Param(
        "base",
        str,
        "",
        "what_if",
        "Start from",
        pattern=RUN_ID,
        help="The run whose knobs are changed: a replay brings its timing model along",
        also=REPLAYING[1:],
        by_data=True,
    ),
    Param(
        "fit",
        list,
        (),
        "what_if",
        "Fit the timing on",
        help="Measured passes for a new timing model; without any, the model of the replay to start from is used",
        by_data=True,
        also=REPLAYING[1:],
    ),
    Param("knob_find", str, "", "what_if", "Find a knob", help="Knobs whose name or text holds every word"),
    Param(
        "swp_with",
        str,
        "",
        "sweep",
        "With knobs",
        help="What every point changes besides, as lanes=6 think_scale=0.5",
        also=("sensitivity",),
    ),
    Param("swp_x", str, "lanes", "sweep", "Knob", SWEPT),
    Param("swp_x_at", str, "", "sweep", "Its values", help=SPACED),
    Param("swp_y", str, "", "sweep", "Second knob", ("", *SWEPT), words={"": "none"}),
    Param("swp_y_at", str, "", "sweep", "Its values", help=SPACED),
    Param("swp_number", str, "ttft.p90", "sweep", "Number", tuple(metrics.SWEEP_NUMBERS), words=metrics.SWEEP_NUMBERS),
    Param("swp_rate", str, "output_rate", "sweep", "Throughput", tuple(metrics.SWEEP_RATES), words=metrics.SWEEP_RATES),
    Param("swp_tail", str, "ttft.p90", "sweep", "Latency", tuple(metrics.SWEEP_TAILS), words=metrics.SWEEP_TAILS),
    Param(
        "sens_number",
        str,
        "ttft.p90",
        "sensitivity",
        "Gap of",
        tuple(metrics.SWEEP_NUMBERS),
        words=metrics.SWEEP_NUMBERS,
    ),
    Param("sens_knobs", list, (), "sensitivity", "Knobs", SWEPT, help="Those that are varied; the usual ones without"),
    Param("status", str, "all", "ledger", "Status", ("all", "open", "supported", "retracted")),
)


def _knob_params() -> tuple[Param, ...]:
    return tuple(
        Param(
            KNOB_PREFIX + knob.name,
            knob.type,
            knob.default,
            "what_if",
            knob.name,
            knob.choices,
            knob.help,
            low=knob.low,
            high=knob.high,
            by_data=True,
        )
        for knob in knobs.KNOBS
    )


PARAMS: dict[str, Param] = {param.name: param for param in (*_TABLE, *_knob_params())}


def params_of(page: str) -> list[Param]:
    """The parameters that a page shows: the shared ones first."""
    return [param for param in PARAMS.values() if param.owner in (SHARED, page) or page in param.also]
