"""Every metric, population, estimator and rate window, once: what a number means before anyone computes it.

Times are nanoseconds until :meth:`Metric.shown` turns them into the unit of the screen. ``docs/metrics.md`` says
the same in prose; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from engine.errors import GapscopeError

Direction = Literal["lower", "higher", "neither"]
Source = Literal["requests", "itl", "chunk_gap", "chunk_span", "passes"]

MS_PER_NS = 1e-6
"""The one conversion from nanoseconds to what a person reads."""


class Estimator(StrEnum):
    """How a percentile is read off a sorted sample of n values at rank (n-1)p."""

    LINEAR = "linear"
    NEAREST_RANK = "nearest_rank"

    @property
    def words(self) -> str:
        """The rule in words."""
        if self is Estimator.LINEAR:
            return "linear interpolation at rank (n-1)p"
        return "value at rank round((n-1)p), halves away from zero"


class Window(StrEnum):
    """The time over which a rate is taken, and which requests it counts."""

    FIXED = "fixed"
    OBSERVED_SPAN = "observed_span"
    COMPLETIONS = "completions"

    @property
    def words(self) -> str:
        """The rule in words."""
        return {
            Window.FIXED: "successes dispatched in the phase, over phase start to admission deadline",
            Window.OBSERVED_SPAN: "successes of the population, over earliest dispatch to latest visible end",
            Window.COMPLETIONS: "successes of any phase that ended inside the phase, over its length",
        }[self]


PHASES: dict[str, tuple[str, ...]] = {
    "profile": ("profile",),
    "warmup": ("warmup",),
    "all": ("primer", "warmup", "profile"),
    "primer": ("primer",),
    "grace": ("grace",),
    "drain": ("drain",),
    "cooldown": ("cooldown",),
}
"""Phases that numbers can be about, by those of the dispatch of their requests. From grace on none is sent, and numbers
are those of passes."""
SUBSETS: dict[str, str] = {
    "complete": "every request",
    "root": "requests of root conversations",
    "child": "requests of child conversations",
    "matched": "source-turns that succeeded on both sides",
    "matched_near": "source-turns that succeeded on both sides, lengths within the tolerance",
    "matched_exact": "source-turns that succeeded on both sides with equal lengths",
}


@dataclass(frozen=True, slots=True)
class Population:
    """Which requests a number is about: dispatched in a phase, and a subset of those.

    The headline is ``profile`` / ``complete``, requests that finished in grace included. The matched subsets are
    diagnostic and need the other side: :meth:`for_side` names it. ``tolerance_tokens`` is used by ``matched_near``.
    """

    phase: str = "profile"
    subset: str = "complete"
    tolerance_tokens: int = 16
    counterpart: str | None = None

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise GapscopeError(f"Unknown phase {self.phase!r} of a population: expected one of {', '.join(PHASES)}.")
        if self.subset not in SUBSETS:
            raise GapscopeError(
                f"Unknown subset {self.subset!r} of a population: expected one of {', '.join(SUBSETS)}."
            )
        if self.tolerance_tokens < 0:
            raise GapscopeError(f"Tolerance of {self.tolerance_tokens} tokens: expected 0 or more.")

    @classmethod
    def parse(cls, text: str) -> Population:
        """Read ``phase`` or ``phase.subset`` (``headline`` is ``profile.complete``)."""
        if text in ("", "headline"):
            return cls()
        phase, _, subset = text.partition(".")
        return cls(phase, subset or "complete")

    @property
    def matched(self) -> bool:
        """Whether membership depends on the other side."""
        return self.subset.startswith("matched")

    @property
    def phases(self) -> tuple[str, ...]:
        """Phases by dispatch of a request."""
        return PHASES[self.phase]

    @property
    def pass_phases(self) -> tuple[str, ...]:
        """Phases by start of a pass."""
        return (*PHASES["all"], "grace", "drain", "cooldown") if self.phase == "all" else self.phases

    @property
    def role(self) -> str:
        """``root``, ``child`` or ``any``."""
        return self.subset if self.subset in ("root", "child") else "any"

    def for_side(self, counterpart: str | None) -> Population:
        """The population of one side, with the run id of the other where membership depends on it."""
        return replace(self, counterpart=counterpart if self.matched else None)

    def whole(self) -> Population:
        """This population where it does not depend on another run, else all requests of its phase."""
        return replace(self, subset="complete", counterpart=None) if self.matched else self

    def shared_with(self, counterpart: str) -> Population:
        """The source-turns shared with another run: by this population's rule, or by that of all shared keys."""
        return replace(self, subset=self.subset if self.matched else "matched", counterpart=counterpart)

    @property
    def name(self) -> str:
        """Short form that :meth:`parse` reads."""
        return self.phase if self.subset == "complete" else f"{self.phase}.{self.subset}"

    @property
    def words(self) -> str:
        """What stands beside a number."""
        where = "dispatched in any phase" if self.phase == "all" else f"dispatched in {self.phase}"
        words = f"{SUBSETS[self.subset]}, {where}"
        if self.subset == "matched_near":
            words += f" ({self.tolerance_tokens} tokens)"
        return words


HEADLINE = Population()


@dataclass(frozen=True, slots=True)
class Metric:
    """One number per request, gap or pass.

    ``column`` is where SQL finds it, in the raw unit; ``scale`` turns that into ``unit``. ``direction`` says which
    side of a gap is better. ``source`` names the rows: requests, pooled token gaps, chunk gaps or passes;
    ``pass_class`` restricts the latter.
    """

    name: str
    label: str
    unit: str
    scale: float
    direction: Direction
    definition: str
    column: str
    source: Source = "requests"
    pass_class: str | None = None

    def shown(self, raw: float | None) -> float | None:
        """A raw value in the unit of the screen."""
        return None if raw is None else raw * self.scale


def _time(name: str, label: str, definition: str, column: str, source: Source = "requests") -> Metric:
    return Metric(name, label, "ms", MS_PER_NS, "lower", definition, column, source)


def _tokens(name: str, label: str, definition: str, direction: Direction = "neither") -> Metric:
    return Metric(name, label, "tokens", 1.0, direction, definition, name)


def _pass(name: str, label: str, pass_class: str | None) -> Metric:
    what = "any work" if pass_class is None else pass_class.replace("_", " ")
    definition = f"scheduler call to output update of passes with {what}; idle calls do not count"
    return Metric(name, label, "ms", MS_PER_NS, "lower", definition, "duration_ns", "passes", pass_class)


METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        _time("ttft", "TTFT", "first visible - dispatched; undefined without visible output", "ttft_ns"),
        _time(
            "ttfo",
            "TTFO",
            "first content that is no reasoning - dispatched; undefined where the tool does not tell reasoning apart",
            "ttfo_ns",
        ),
        _time(
            "ttft_admit",
            "TTFT from admission",
            "first visible - first admission (engine clock start); undefined without visible output",
            "ttft_admit_ns",
        ),
        _time(
            "tpot",
            "TPOT",
            "(last visible - first visible) / (output tokens - 1), unweighted over requests; undefined below 2 tokens",
            "tpot_ns",
        ),
        _time("e2e", "E2E", "last visible - dispatched; undefined without visible output", "e2e_ns"),
        _time(
            "itl",
            "ITL",
            "gaps between consecutive visible tokens, pooled over requests; a burst of k tokens adds k-1 zero gaps",
            "gap_ns",
            "itl",
        ),
        _time(
            "chunk_gap",
            "Chunk gap",
            "gaps between consecutive chunks of a request, pooled: transport, not tokens",
            "gap_ns",
            "chunk_gap",
        ),
        _time(
            "tpot_chunk",
            "TPOT between chunks",
            "(last chunk - first chunk) / (output tokens - 1), visible or not; undefined below 2 tokens",
            "tpot_chunk_ns",
            "chunk_span",
        ),
        _time("latency_end", "Latency to close", "response closed - dispatched", "latency_end_ns"),
        _time(
            "queue_time",
            "Queue time",
            "first admission - received; the wait for the running pass lies before received",
            "queue_time_ns",
        ),
        _time(
            "request_path",
            "Client to engine",
            "received - dispatched, the wait for the running pass included",
            "request_path_ns",
        ),
        _time("dispatch_lag", "Dispatch lag", "dispatched - scheduled (client)", "dispatch_lag_ns"),
        _tokens("input_tokens", "Input tokens", "tokens of the prompt"),
        _tokens("output_tokens", "Output tokens", "tokens of the response"),
        _tokens("cached_tokens", "Cached tokens", "prompt tokens reused at the first admission", "higher"),
        _tokens("recomputed_tokens", "Recomputed tokens", "tokens computed again after a preemption", "lower"),
        _pass("pass_duration", "Pass duration", None),
        _pass("pass_prefill_only", "Prefill-only pass", "prefill_only"),
        _pass("pass_decode_only", "Decode-only pass", "decode_only"),
        _pass("pass_mixed", "Mixed pass", "mixed"),
    )
}

HEADLINE_METRICS = ("ttft", "tpot", "e2e", "itl")

PERCENTILES = (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
STATISTICS = ("mean", *(f"p{p:g}" for p in PERCENTILES), "std", "min", "max")
"""Statistics of a sample, by name; ``std`` is that of the population."""

HEADLINE_STATISTICS = ("mean", "p50", "p90", "p95", "p99")

LADDER_NUMBERS: dict[str, str] = {
    f"{name}.{statistic}": f"{METRICS[name].label} {statistic}"
    for name in HEADLINE_METRICS
    for statistic in ("mean", "p50", "p90", "p99")
} | {
    f"request_rate.{Window.FIXED}": "request rate",
    "hit_ratio.tokens": "token hit ratio",
    "preemptions.requests": "preemptions",
}
"""The numbers whose gaps a ladder splits, mean and tail, with their names in a sentence."""

SWEEP_TAILS: dict[str, str] = {
    f"{name}.{statistic}": f"{METRICS[name].label} {statistic}"
    for name in HEADLINE_METRICS
    for statistic in ("mean", "p50", "p90", "p95", "p99")
}
"""Latencies that are followed along a knob, with their names."""
SWEEP_RATES: dict[str, str] = {
    "request_rate": "requests/s",
    "output_rate": "output tokens/s",
    "total_rate": "input and output tokens/s",
    "output_rate_per_gpu": "output tokens/s per GPU",
}
"""Throughputs that are, each over the window of rates."""
SWEEP_NUMBERS: dict[str, str] = {
    **SWEEP_TAILS,
    **SWEEP_RATES,
    "hit_ratio.tokens": "token hit ratio",
    "preemptions.requests": "preemptions",
    "in_flight.little": "requests in flight",
    "coverage.time": "modelled time inside the domain",
}
"""All numbers that are."""

TOOL_METRICS = ("ttft", "ttfo", "tpot", "itl", "chunk_gap", "e2e", "input_tokens", "output_tokens")
"""What several load generators can measure at one server."""
MAX_TOOLS = 8
"""Runs of one server side by side."""

PASS_CLASSES = ("prefill_only", "decode_only", "mixed", "idle")


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a whole run rather than the statistic of a sample; its statistics are named variants of it."""

    name: str
    label: str
    unit: str
    direction: Direction
    definition: str
    statistics: tuple[str, ...]


MEASURES: dict[str, Measure] = {
    m.name: m
    for m in (
        Measure("request_rate", "Requests", "1/s", "higher", "successful requests per second", tuple(Window)),
        Measure("output_rate", "Output tokens", "tok/s", "higher", "output tokens per second", tuple(Window)),
        Measure("total_rate", "Total tokens", "tok/s", "higher", "input and output tokens per second", tuple(Window)),
        Measure(
            "output_rate_per_gpu",
            "Output tokens per GPU",
            "tok/s",
            "higher",
            "output tokens per second over the GPUs that the identity counts; NULL without such a count",
            tuple(Window),
        ),
        Measure(
            "hit_ratio",
            "Token hit ratio",
            "share",
            "higher",
            "reused prompt tokens / prompt tokens over successful requests, first admissions only; `reusable` divides "
            "by the tokens that whole blocks can serve, floor((input - 1) / block) * block, which takes out the "
            "effect of the last block",
            ("tokens", "reusable"),
        ),
        Measure("preemptions", "Preemptions", "count", "lower", "preemptions suffered", ("requests", "capture")),
        Measure("pass_count", "Passes", "count", "neither", "passes by class", PASS_CLASSES[:3]),
        Measure("pass_time", "Time in passes", "share", "neither", "share of pass time by class", PASS_CLASSES[:3]),
        Measure(
            "coverage",
            "Covered",
            "share",
            "higher",
            "share of the replay's timing queries, passes and modelled time answered exactly or by interpolation",
            ("queries", "passes", "time"),
        ),
        Measure(
            "in_flight",
            "Requests in flight",
            "requests",
            "neither",
            "`little`: fixed-window rate times mean E2E; `observed`: time average of requests between dispatch and end",
            ("little", "observed"),
        ),
    )
}


def headline_numbers(window: Window) -> list[str]:
    """The numbers, by their text forms, that a verdict is told by."""
    samples = [f"{name}.{statistic}" for name in HEADLINE_METRICS for statistic in ("mean", "p50", "p90", "p99")]
    return [*samples, f"request_rate.{window.value}"]


def metric(name: str) -> Metric:
    """The metric called ``name``.

    Raises:
        GapscopeError: there is none; all are listed.
    """
    if name not in METRICS:
        raise GapscopeError(f"Unknown metric {name!r}: expected one of {', '.join(METRICS)}.")
    return METRICS[name]
