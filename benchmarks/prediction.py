"""How well the sample runs are predicted in closed loop, beside the noise of their repeats.

Each replay gets its timing from the sweep and from the warm-up of the run that it predicts, never from its profile. A
closed loop with preemption is chaotic: the same replay with all pass times changed by a few tenths of a percent ends
elsewhere, so the spread over such changes stands beside the one replay that is the prediction. The level table shows
what the warm-up could not know: how fast passes of the same price were in the profile, relative to the warm-up.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np

from dashboard.compare import Comparison, compare
from dashboard.compare.rows import Row
from dashboard.store import Store
from engine import knobs as knob_table
from engine.bundle import Bundle, find_bundle
from engine.replay import knobs_from_run, replay
from engine.timing import FitSource, PassQueries, build_timing, fit
from engine.traces import stored_trace

SAMPLES = Path(__file__).resolve().parent.parent / "sample_runs"
RUNS = ("ample8", "tight8")
ROWS = ("ttft.mean", "ttft.p90", "tpot.mean", "tpot.p90", "e2e.mean", "e2e.p90", "request_rate.fixed")
LIMITS = {"mean": 0.10, "fixed": 0.10, "p90": 0.15}
HIT_LIMIT_POINTS = {"ample8": 1.0, "tight8": 2.0}
PREEMPTION_LIMITS = {"ample8": (0, 0), "tight8": (2, 8)}
SHAKES = (-0.004, -0.003, -0.002, -0.001, 0.0, 0.001, 0.002, 0.003, 0.004)


def predict(measured: Bundle, sweep: Bundle, store: Path, pass_scale: float = 1.0) -> str:
    """Replay a run's workload on a model of the sweep and the run's warm-up; returns the replay's id."""
    model = fit([FitSource(sweep, None), FitSource(measured, ("warmup",))])
    values = knobs_from_run(measured) | {"pass_scale": pass_scale}
    trace = stored_trace([SAMPLES], measured.identity.value("trace", "digest"))
    return replay(trace, values, model, store=store, like=measured)


def comparison(measured: str, other: str, store: Path) -> Comparison:
    """The comparison that `gapscope compare` prints."""
    return compare(Store([SAMPLES, store]), measured, other)


def line(row: Row, spread: list[float], verdict: str) -> str:
    """One number: both sides, gap, noise of the repeat, spread over shaken pass times."""
    within = row.noise.relative(row.measured.value or 0.0) if row.noise else None
    noise = f"{within[0]:+.1%}..{within[1]:+.1%}" if within else "-"
    shaken = f"{mean(spread):+.1%} ± {stdev(spread):.1%}"
    gap = f"{row.gap:+.1%}" if row.gap is not None else "-"
    return f"| {row.key} | {row.measured.value:.4g} | {row.replay.value:.4g} | {gap} | {noise} | {shaken} | {verdict} |"


def levels(measured: Bundle, sweep: Bundle) -> list[str]:
    """Measured over predicted time of the passes of each phase and class, the warm-up's own level taken out."""
    model = fit([FitSource(sweep, None), FitSource(measured, ("warmup",))])
    timing = build_timing(knob_table.resolve(knobs_from_run(measured)), model)
    names = ("num_prefill_requests", "sum_prefill_tokens", "sum_prefill_kv_tokens", "num_decode_requests")
    table = measured.table("passes", [*names, "sum_decode_kv_tokens", "duration_ns", "phase"])
    assert table is not None
    columns = {name: np.array(table[name].to_pylist(), dtype=object) for name in table.column_names}
    busy = np.array([value is not None for value in columns["duration_ns"]]) & (
        columns["num_prefill_requests"] + columns["num_decode_requests"] > 0
    )
    axes = [columns[name][busy].astype(np.int64) for name in (*names, "sum_decode_kv_tokens")]
    priced = timing.explain(PassQueries(*axes)).total_ns
    took = columns["duration_ns"][busy].astype(np.int64)
    phase = columns["phase"][busy]
    lines = []
    for title, chosen in (("decode only", axes[0] == 0), ("mixed", (axes[0] > 0) & (axes[3] > 0))):
        ratio = {
            name: took[chosen & (phase == name)].sum() / priced[chosen & (phase == name)].sum()
            for name in ("warmup", "profile")
        }
        lines.append(f"| {title} | {ratio['profile'] / ratio['warmup'] - 1:+.1%} |")
    return lines


def report(name: str, store: Path) -> bool:
    """Print the prediction of one sample run; whether every limit held."""
    measured, sweep = find_bundle([SAMPLES], name), find_bundle([SAMPLES], "fpm_sweep")
    shaken = [comparison(measured.run_id, predict(measured, sweep, store, 1.0 + shake), store) for shake in SHAKES]
    blind = shaken[SHAKES.index(0.0)]
    print(f"\n## {name}\n\n| number | measured | replay | gap | repeat | shaken by 0.4 % | limit |")
    print("|---|---|---|---|---|---|---|")
    held = []
    for text in ROWS:
        row, limit = blind.row(text), LIMITS[text.split(".")[1]]
        spread = [gap for run in shaken if (gap := run.row(text).gap) is not None]
        held.append(row.gap is not None and abs(row.gap) <= limit)
        print(line(row, spread, f"{'holds' if held[-1] else 'MISSED'} (±{limit:.0%})"))
    ratios = [run.row("hit_ratio.tokens") for run in shaken]
    hits = [100 * ((ratio.replay.value or 0.0) - (ratio.measured.value or 0.0)) for ratio in ratios]
    points, limit = hits[SHAKES.index(0.0)], HIT_LIMIT_POINTS[name]
    held.append(abs(points) <= limit)
    print(f"\nhit ratio {points:+.2f} points (limit ±{limit:g}), shaken {mean(hits):+.2f} ± {stdev(hits):.2f}")
    row = blind.row("preemptions.capture")
    counts = [int(run.row("preemptions.capture").replay.value or 0) for run in shaken]
    low, high = PREEMPTION_LIMITS[name]
    held.append(low <= (row.replay.value or 0) <= high)
    verdict = "holds" if held[-1] else "MISSED"
    print(
        f"preemptions: measured {row.measured.value:g}, replay {row.replay.value:g} ({verdict}: {low} to {high}), ",
        end="",
    )
    print(f"shaken {sorted(counts)}, median {median(counts):g}")
    print("\n| class | profile against warm-up, at equal price |\n|---|---|")
    print("\n".join(levels(measured, sweep)))
    return all(held)


def main() -> None:
    """Predict the sample runs and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=list(RUNS), help="which sample runs")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a limit is missed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = [report(name, Path(folder) / name) for name in arguments.runs]
    raise SystemExit(1 if arguments.check and not all(results) else 0)


if __name__ == "__main__":
    main()
