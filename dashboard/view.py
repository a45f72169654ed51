"""What is looked at: one table of view parameters, and the link that restores a view.

Widgets read name, default and choices from :data:`PARAMS`; the address bar and the permalink use the same names. The
permalink says its version and what differs from the defaults of that version, which are frozen in
:mod:`dashboard.link_versions`, so that a changed default cannot change what an old link shows. A link names runs by
their content id and never by a path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from dashboard import metrics
from dashboard.link_versions import DEFAULTS, UPGRADERS, VERSION
from dashboard.sweeps.plan import SWEPT
from engine import knobs
from engine.bundle.manifest import RUN_ID
from engine.errors import GapscopeError

MAX_REPLAYS = 4
KNOB_PREFIX = "k_"
SHARED = "shared"


@dataclass(frozen=True)
class Param:
    """One parameter of a view. ``owner`` is :data:`SHARED` or the page that alone uses it."""

    name: str
    type: type
    default: Any
    owner: str
    label: str
    choices: tuple[str, ...] = ()
    help: str = ""
    words: Mapping[str, str] = field(default_factory=dict)  # how a choice reads on screen
    low: float | None = None
    high: float | None = None  # of a list: how many it may hold
    pattern: re.Pattern[str] | None = None
    also: tuple[str, ...] = ()  # further pages that use it
    by_data: bool = False  # its default depends on the runs, so a link says it wherever it is on screen

    def say(self, choice: str) -> str:
        """The words of a choice."""
        return self.words.get(choice, choice)

    def parse(self, texts: Sequence[str]) -> Any:
        """The value of the texts of a link.

        Raises:
            ValueError: not of the type, outside the range, or not one of the choices.
        """
        if self.type is list:
            found = [self._one(text) for text in texts if text]
            return found[: int(self.high)] if self.high else found
        return self._one(texts[-1])

    def _one(self, text: str) -> Any:
        value: Any = text
        if self.type is bool:
            if text.lower() not in ("true", "false"):
                raise ValueError(text)
            return text.lower() == "true"
        if self.type in (int, float):
            value = _whole(text) if self.type is int else float(text)
            if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
                raise ValueError(text)
            return value
        if self.choices:
            text = value = next((choice for choice in self.choices if text in (choice, self.say(choice))), "")
            if not text:
                raise ValueError(text)
        if self.pattern and text and not self.pattern.fullmatch(text):
            raise ValueError(text)
        return value

    def texts(self, value: Any) -> list[str]:
        """How a value stands in a link: a choice by its words, which is what the address bar shows as well."""
        if self.type is list:
            return [self.say(str(one)) for one in value] or [""]  # empty on purpose, not absent
        if self.type is bool:
            return ["true" if value else "false"]
        if self.type is float:
            return [f"{value:g}" if float(f"{value:g}") == value else repr(float(value))]
        return [self.say(str(value))]


def _whole(text: str) -> int:
    """A whole number, also in the spellings that a control takes, as ``1e3`` or ``8.0``."""
    if text.strip().lstrip("+-").isdecimal():
        return int(text)
    if not float(text).is_integer():
        raise ValueError(text)
    return int(float(text))


PRESET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*){0,2}")
"""A preset, or an anchor of a store: a name, never a path out of it."""
SOURCE_NAME = re.compile(rf"(analytic|anchor|table):{PRESET_NAME.pattern}(#[0-9]+)?")

DEFAULT_PAGE = "verdict"
REPLAYING = ("what_if", "sweep", "sensitivity")
"""Pages that replay a run with other knobs."""
SPACED = "A list such as 4,8,16, or from:to:steps such as 1024:8192:4; with :log at its end by equal factors"
PAGES: dict[str, str] = {
    "runs": "Runs",
    "verdict": "Verdict",
    "identity": "Identity",
    "source": "Source",
    "cohort": "Cohort",
    "percentiles": "Percentiles",
    "repeats": "Repeats",
    "tools": "Cross-tool",
    "passes": "Passes",
    "timing": "Timing",
    "coverage": "Coverage",
    "cache_events": "Cache events",
    "ladder": "Ladder",
    "alignment": "Alignment",
    "boundaries": "Boundaries",
    "request": "Request",
    "what_if": "What-if",
    "sweep": "Sweep",
    "sensitivity": "Sensitivity",
    "ledger": "Ledger",
    "report": "Report",
}
"""Pages by their name in the address bar."""

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


@dataclass(frozen=True)
class View:
    """A page and the values of its parameters; a parameter that is absent has its default."""

    page: str
    values: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()  # values of the link that could not be used, in words

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name, PARAMS[name].default)

    def query(self) -> list[tuple[str, str]]:
        """The version, and every value of the page that differs from the frozen defaults of that version."""
        pairs = [("v", str(VERSION))]
        frozen = DEFAULTS[VERSION]
        for param in params_of(self.page):
            if param.name not in self.values:
                continue
            texts = param.texts(self.values[param.name])
            if param.name not in frozen or texts != param.texts(frozen[param.name]):
                pairs += [(param.name, text) for text in texts]
        return pairs

    @property
    def runs(self) -> dict[str, list[str]]:
        """The runs that the view names, by the label of the parameter that does."""
        found: dict[str, list[str]] = {}
        for param in params_of(self.page):
            value = self[param.name]
            if param.pattern is RUN_ID or param.name == "fit":
                named = [text.partition(":")[0] for text in (value if param.type is list else [value]) if text]
                found |= {param.label: named} if named else {}
        return found

    def link(self, base: str = "") -> str:
        """The permalink: ``base`` is scheme, host and port."""
        page = "" if self.page == DEFAULT_PAGE else self.page  # the default page lives at the root
        return f"{base.rstrip('/')}/{page}?{urlencode(self.query())}"


def params_of(page: str) -> list[Param]:
    """The parameters that a page shows: the shared ones first."""
    return [param for param in PARAMS.values() if param.owner in (SHARED, page) or page in param.also]


def turn_key(conversation: str, turn: int, again: int = 0) -> str:
    """The name of a source-turn in a link: ``s0003/2``; ``s0003#1/2`` when the same one is sent for the second time.

    ``again`` counts how often the run sent it before. A request without conversation or turn is ``=`` and its id;
    the column ``turn`` of requests (``queries/_turn.sql``) holds the same names.
    """
    return f"{conversation}{f'#{again}' if again else ''}/{turn}"


def upgrade(query: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The query of a link, brought to the present version.

    Raises:
        GapscopeError: the version is no number, or newer than this program knows.
    """
    found = {name: list(texts) for name, texts in query.items()}
    text = (found.pop("v", None) or [str(VERSION)])[-1]
    if not text.isdecimal() or int(text) < 1:
        raise GapscopeError(f"This link says version {text[:20]!r}: expected a whole number from 1 to {VERSION}.")
    version = int(text)
    if version > VERSION:
        raise GapscopeError(
            f"This link has version {version}, and this gapscope knows links up to version {VERSION}. "
            "Update gapscope to open it."
        )
    for step in range(version, VERSION):
        found = UPGRADERS[step](found)
    return found


def from_query(page: str, query: Mapping[str, Sequence[str]]) -> View:
    """The view of a link. Unknown parameters and unusable values are left out and named in ``ignored``.

    Raises:
        GapscopeError: no such page, or a version that cannot be read.
    """
    page = page.strip("/") or DEFAULT_PAGE
    if page not in PAGES:
        raise GapscopeError(f"There is no page {page!r}: expected one of {', '.join(PAGES)}.")
    values: dict[str, Any] = {}
    ignored: list[str] = []
    owned = {param.name for param in params_of(page)}
    for name, texts in upgrade(query).items():
        if name not in owned:
            if name not in PARAMS:
                ignored.append(f"{name}: not a parameter")
            continue
        try:
            values[name] = PARAMS[name].parse(texts)
        except ValueError:
            ignored.append(f"{name}={texts[-1]}: not a value of {PARAMS[name].label!r}")
    return View(page, values, tuple(ignored))


def from_link(link: str) -> View:
    """The view of a whole link."""
    parts = urlsplit(link)
    query: dict[str, list[str]] = {}
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        query.setdefault(name, []).append(text)
    return from_query(parts.path, query)


def saved_view(link: str) -> str:
    """What is kept of the permalink of a view: ``page?query``, as a permalink has them, without host and port.

    Raises:
        GapscopeError: no such page, a version that is not known, values that cannot be used, or no run named.
    """
    shown = from_link(link.strip())
    if shown.ignored:
        raise GapscopeError(f"Parts of this link cannot be used: {'; '.join(shown.ignored)}. Copy it from Link.")
    if not shown["m"]:
        raise GapscopeError("This link names no measured run, so it would not show the same again: copy it from Link.")
    return f"{shown.page}?{urlencode(shown.query())}"
