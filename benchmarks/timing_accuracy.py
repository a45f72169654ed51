"""How well passes of one recording are predicted from another, beside a plain linear fit on the same passes.

*Recordings*: every sample run is predicted from another one and the sweep. Nothing of the predicted run is seen, except
where a line says so: with a correction learned on its warm-up, or with its level taken out. *Captures*: passes of vLLM
on GPUs, from a public repository, fitted on what is called the sweep segment and scored on the real one; beside it the
roofline of named parts on the same passes, with nothing measured and with one level. They are skipped where they are
absent (GAPSCOPE_PUBLIC says where they lie).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine import knobs as knob_table
from engine.bundle import Bundle, find_bundle
from engine.bundle.schema import RESOLUTIONS
from engine.errors import GapscopeError
from engine.importers import import_any
from engine.timing import FitSource, PassTimes, build_timing, fit
from engine.timing.anchors.artefact import read_anchor
from engine.timing.anchors.build import document_of
from engine.timing.anchors.model import model_of as anchor_model
from engine.timing.correction import CorrectedTiming, learn
from engine.timing.fitting import fit_rows
from engine.timing.rows import CLASSES, Floats, PassRows, read_rows
from engine.timing.skew import skew_test
from engine.timing.tables import Cell
from engine.timing.tables import model_of as table_model
from engine.timing.tables.measured import points_of
from engine.timing.variant import queries

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "sample_runs"
PUBLIC = Path(os.environ.get("GAPSCOPE_PUBLIC", ROOT.parent / "shared" / "public")) / "fpm"
PAIRS = (
    ("ample8", "ample8_repeat"),
    ("ample8_repeat", "ample8"),
    ("tight8", "tight8_repeat"),
    ("tight8_repeat", "tight8"),
    ("ample8", "tight8"),
    ("tight8", "ample8"),
)
PARTS = ("h100-sxm", "h200-sxm", "b200-sxm")
CAPTURES: dict[str, dict[str, Any]] = {
    "qwen3-32b_vllm0.20.1_tp1": {"model_preset": "qwen3-32b"},
    "dsv4-flash_tp1_ep4_dp4_recipe": {
        "model_preset": "deepseek-v4-flash",
        "tp": 4,
        "attention_dp": 4,
        "ep": 4,
        "kv_dtype": "fp8",
    },
}
HEAD = "| predicted | by | class | passes | MAPE | median | WAPE | total |\n|---|---|---|---|---|---|---|---|"


def linear(fitted: PassRows, asked: PassRows) -> Floats:
    """Least squares on the counts of a pass, on nanoseconds: what is plain."""

    def features(rows: PassRows) -> Floats:
        prompts = rows.prefill_requests > 0
        return np.column_stack([np.ones(len(rows)), prompts, *rows.geometry().T]).astype(float)

    x = features(fitted)
    size = np.maximum(np.abs(x).max(axis=0), 1.0)
    solved = np.linalg.lstsq(x / size, fitted.duration_ns, rcond=None)[0] / size
    return np.asarray(np.maximum(features(asked) @ solved, 1.0))


def errors(measured: Floats, told: Floats) -> tuple[float, float, float, float]:
    """MAPE, median and weighted absolute error, and that of the total."""
    relative = np.abs(told - measured) / measured
    wape = np.abs(told - measured).sum() / measured.sum()
    return float(relative.mean()), float(np.median(relative)), float(wape), float(told.sum() / measured.sum() - 1.0)


def lines(name: str, by: str, rows: PassRows, told: Floats, where: Any = None) -> None:
    """Print a line per class; ``where`` restricts it to passes that were covered."""
    kind = rows.kind
    for c in (*range(len(CLASSES)), None):
        mine = np.ones(len(rows), bool) if c is None else kind == c
        if where is not None:
            mine &= where
        if mine.any():
            mape, median, wape, total = errors(rows.duration_ns[mine], told[mine])
            title = "all" if c is None else CLASSES[c].replace("_", " ")
            print(
                f"| {name} | {by} | {title} | {mine.sum():,} | {mape:.1%} | {median:.1%} | {wape:.1%} | {total:+.1%} |",
                flush=True,
            )


def drift(rows: PassRows, told: Floats, passes: int = 50) -> Floats:
    """Measured over predicted time of each stretch of passes: how fast the machine was just then."""
    stretch = np.arange(len(rows)) // passes
    return np.asarray((np.bincount(stretch, rows.duration_ns) / np.bincount(stretch, told))[stretch])


def priced(timing: Any, rows: PassRows) -> Floats:
    """Nanoseconds of each row."""
    return np.asarray(timing.explain(queries(rows)).total_ns.astype(np.float64))


def recordings(pairs: Sequence[tuple[str, str]]) -> None:
    """Every run from another one."""
    print(f"\n## Recordings: each run from another\n\n{HEAD}")
    sweep = FitSource(find_bundle([SAMPLES], "fpm_sweep"))
    for seen, unseen in pairs:
        known = FitSource(find_bundle([SAMPLES], seen))
        target = find_bundle([SAMPLES], unseen)
        passes = [sweep, known]
        asked, _ = read_rows([FitSource(target, ("profile",))])
        name = f"{unseen} from {seen}"
        lines(name, "linear", asked, linear(read_rows([known])[0], asked))
        model = fit(passes)
        fitted = build_timing(knob_table.resolve({}), model)
        told = priced(fitted, asked)
        lines(name, "fpm", asked, told)
        lines(name, "fpm, its level taken out", asked, told * asked.duration_ns.sum() / told.sum())
        lines(name, "fpm, level of each 50 passes taken out", asked, told * drift(asked, told))
        warm = FitSource(target, ("warmup",))
        lines(
            name,
            "fpm, corrected on its warm-up",
            asked,
            priced(CorrectedTiming(fitted, learn(fitted, [warm]), ""), asked),
        )
        anchor = build_timing(
            knob_table.resolve({"timing": "anchor"}), anchor_model(read_anchor(document_of(passes), "own"))
        )
        lines(name, "anchor", asked, priced(anchor, asked))


def skews(named: Sequence[Bundle]) -> None:
    """What the variance of KV lengths explains, of passes that only decode."""
    print(
        "\n## Uneven KV lengths\n\n| run | passes | alpha | 95 % | adds to a pass | explains of the rest |"
        "\n|---|---|---|---|---|---|"
    )
    for bundle in named:
        source = FitSource(bundle)
        try:
            found = skew_test(source, build_timing(knob_table.resolve({}), fit([source])))
        except GapscopeError as error:
            print(f"{error}")
            continue
        interval = f"{found.low:+.2f} .. {found.high:+.2f}"
        print(
            f"| {bundle.run_id} | {found.passes:,} | {found.alpha:+.2f} | {interval} | {found.share:+.1%} | "
            f"{found.explained:.1%} |"
        )


def segments(bundle: Bundle) -> dict[str, PassRows]:
    """The passes of each segment of a capture."""
    rows, _ = read_rows([FitSource(bundle)])
    table = bundle.table("passes", ["phase", "segment", "num_prefill_requests", "num_decode_requests", "duration_ns"])
    assert table is not None
    segment = [
        row["segment"]
        for row in table.to_pylist()
        if row["phase"] != "primer"
        and (row["num_prefill_requests"] or 0) + (row["num_decode_requests"] or 0) > 0
        and (row["duration_ns"] or 0) > 0
    ]
    assert len(segment) == len(rows), "a row per usable pass"
    return {name: rows.take(np.array([s == name for s in segment])) for name in dict.fromkeys(segment)}


def covered(times: PassTimes, least: str) -> Any:
    """Which answers are at least so well founded."""
    return times.resolution >= RESOLUTIONS.index(least)


def capture(name: str, folder: Path, store: Path) -> Bundle:
    """One capture: fitted on its sweep, and priced by rooflines."""
    bundle = find_bundle([store], import_any(folder, store)[0])
    part = bundle.identity.value("hardware", "part")
    print(f"\n## {name}\n\nThe capture names {part or 'no GPU part'}.")
    parts = segments(bundle)
    sweep, real = parts["sweep"], parts.get("real")
    print(", ".join(f"{segment}: {len(rows):,} passes" for segment, rows in parts.items()))
    if real is None:  # every second pass, in order of geometry, is held out
        order = np.lexsort(sweep.geometry().T)
        real, sweep = sweep.take(np.sort(order[1::2])), sweep.take(np.sort(order[::2]))
        print("No real segment: every second geometry of the sweep is held out.")
    print(f"\n{HEAD}")
    lines(name, "linear", real, linear(sweep, real))
    lineage: list[dict[str, Any]] = [{"run_id": bundle.run_id, "kind": "sweep", "phases": None, "tables": {}}]
    model = fit_rows(replace(sweep, source=np.zeros(len(sweep), np.int64)), lineage)
    timing = build_timing(knob_table.resolve({}), model)
    times = timing.explain(queries(real))
    told = times.total_ns.astype(float)
    inside = covered(times, "interpolated")
    lines(name, "fpm", real, told)
    lines(name, "fpm, inside its domain", real, told, inside)
    beyond = build_timing(knob_table.resolve({"on_refused": "extrapolate"}), model)
    lines(name, "fpm, extrapolating", real, priced(beyond, real))
    identity = {"model_path": str(bundle.identity.value("model", "name"))}
    cell = Cell(identity, *points_of(sweep), {"parquet_sha256": ""})
    table = build_timing(knob_table.resolve({"timing": "table", "on_refused": "abort"}), table_model(cell, "sweep"))
    marked = table.marked(queries(real))  # type: ignore[attr-defined]
    lines(name, "table, inside its domain", real, marked.total_ns.astype(float), covered(marked, "interpolated"))
    shares = ", ".join(
        f"{title} {np.average(mask):.0%} of passes and {np.average(mask, weights=real.duration_ns):.0%} of their time"
        for title, mask in (("fpm", inside), ("table", covered(marked, "interpolated")))
    )
    rooflines(name, CAPTURES[name], sweep, real)
    print(f"\ncovered: {shares}")
    return bundle


def rooflines(name: str, deployed: dict[str, Any], sweep: PassRows, real: PassRows) -> None:
    """The analytic source of several parts: as it is, and brought to the level of one pass of the sweep.

    That one is the decode of the median price among the sweep's, so it is neither the smallest nor the largest.
    """
    for part in PARTS:
        timing = build_timing(knob_table.resolve({"timing": "analytic", "part": part, **deployed}))
        told, of_sweep = priced(timing, real), priced(timing, sweep)
        lines(name, f"analytic {part}", real, told)
        decodes = np.flatnonzero(sweep.kind == 1)
        anchor = decodes[np.argsort(sweep.duration_ns[decodes], kind="stable")[len(decodes) // 2]]
        level = sweep.duration_ns[anchor] / of_sweep[anchor]
        lines(name, f"analytic {part} x {level:.2f} (one decode)", real, told * level)


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("recordings", "captures", "skew"))
    only = parser.parse_args().only
    if only in (None, "recordings"):
        recordings(PAIRS)
    found = [find_bundle([SAMPLES], name) for name in dict.fromkeys(seen for seen, _ in PAIRS)]
    with tempfile.TemporaryDirectory() as folder:
        for name in CAPTURES if only != "recordings" else ():
            if not (PUBLIC / name).is_dir():
                print(f"\n{name} is not in {PUBLIC}: skipped")
            else:
                found.append(capture(name, PUBLIC / name, Path(folder)))
        if only in (None, "skew"):
            skews(found)


if __name__ == "__main__":
    main()
