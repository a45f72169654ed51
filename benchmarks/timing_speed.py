"""How many queries a second each pass-time source answers: in batches, and one by one.

Two sets of queries: those that a replay makes (the passes of a sample run, repeated), and wholly random ones within the
domain. Figures are the best of several repeats, in CPU seconds of one warm process; what a source keeps of earlier
answers is kept, as in a replay, except that each repeat of the random set asks other queries.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from engine import knobs as knob_table
from engine.bundle import find_bundle
from engine.timing import FitSource, PassQueries, PassTimeSource, build_timing, fit, measured_model
from engine.timing.anchors.artefact import read_anchor
from engine.timing.anchors.build import document_of
from engine.timing.anchors.model import model_of as anchor_model
from engine.timing.correction import learn, save_correction
from engine.timing.rows import PassRows, read_rows
from engine.timing.tables import model_of as table_model
from engine.timing.tables import read_cells, write_measured

SAMPLES = Path(__file__).resolve().parent.parent / "sample_runs"
AIM = 1_000_000
DEPLOYMENT = {"part": "h100-sxm", "model_preset": "qwen3-8b"}


def sources(folder: Path) -> dict[str, Callable[[], PassTimeSource]]:
    """A maker of each source, fitted on the sweep and the warm-up of ample8 where it is fitted at all."""
    run, sweep = find_bundle([SAMPLES], "ample8"), find_bundle([SAMPLES], "fpm_sweep")
    passes = [FitSource(sweep), FitSource(run, ("warmup",))]
    model, recorded = fit(passes), measured_model(run)
    write_measured(folder / "own.parquet", [FitSource(sweep)], {"model_path": "local/toyllama"})
    table = table_model(read_cells(folder / "own.parquet")[0], "own")
    anchor = anchor_model(read_anchor(document_of(passes), "own"))

    def made(timing: str, given: Any = None, **changes: Any) -> Callable[[], PassTimeSource]:
        values = knob_table.resolve({"timing": timing, **changes})
        return lambda: build_timing(values, given, [folder])

    found = {
        "fixed": made("fixed"),
        "fpm": made("fpm", model),
        "table": made("table", table),
        "anchor": made("anchor", anchor),
        "analytic": made("analytic", **DEPLOYMENT),
        "fpm then analytic": made("fpm", model, on_refused="analytic", **DEPLOYMENT),
        "measured, by geometry": made("measured", recorded),
        "measured, in order": made("measured", recorded, measured_match="order"),
    }
    save_correction(learn(found["fpm"](), [passes[1]]), "warm", folder)
    return found | {"fpm, corrected": made("fpm", model, correction="warm")}


def replayed(rows: PassRows, n: int) -> PassQueries:
    """The passes of a run over and over, as a replay would ask for them."""
    geometry = np.resize(rows.geometry(), (n, 5))
    return PassQueries(*np.ascontiguousarray(geometry.T))


def random(rows: PassRows, n: int, seed: int) -> PassQueries:
    """Batches and tokens anywhere within what was measured, no two alike."""
    rng = np.random.default_rng(seed)
    most = rows.geometry().max(axis=0)
    prompts, decodes = rng.integers(0, most[0] + 1, n), rng.integers(0, most[3] + 1, n)
    decodes[(prompts == 0) & (decodes == 0)] = 1
    context = max(1, int(most[4] // max(1, most[3])))
    return PassQueries(
        prompts,
        np.where(prompts > 0, rng.integers(1, most[1] + 1, n), 0),
        np.where(prompts > 0, rng.integers(0, most[2] + 1, n), 0),
        decodes,
        rng.integers(1, context + 1, n) * decodes + rng.integers(0, 7, n) * (decodes > 0),
    )


def seconds(work: Callable[[], Any]) -> float:
    """CPU seconds that it takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def rates(timing: PassTimeSource, rows: PassRows, n: int, repeats: int) -> tuple[float, float, float]:
    """Queries a second: as a replay asks in batches, anywhere in the domain in batches, and one by one."""
    like, single = replayed(rows, n), replayed(rows, min(n, 20_000))
    asked = [random(rows, n, seed) for seed in range(repeats)]
    queries = list(zip(*(getattr(single, axis).tolist() for axis in PassQueries.__slots__), strict=True))
    timing.explain(random(rows, 1000, 99))
    return (
        n / min(seconds(lambda: timing.explain(like)) for _ in asked),
        n / min(seconds(partial(timing.explain, some)) for some in asked),
        len(queries) / min(seconds(lambda: [timing.pass_ns(*query) for query in queries]) for _ in asked),
    )


def report(n: int, repeats: int, names: list[str]) -> bool:
    """Print queries per second of every source; whether all but the sequential one reach the aim."""
    rows, _ = read_rows([FitSource(find_bundle([SAMPLES], "ample8"))])
    reached = True
    print("| source | as replayed, million/s | random, million/s | one by one, million/s |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, make in sources(Path(folder)).items():
            if names and name not in names:
                continue
            few = name.endswith("in order")
            found = rates(make(), rows, n // 20 if few else n, repeats)
            print(f"| {name} | " + " | ".join(f"{rate / 1e6:.2f}" for rate in found) + " |", flush=True)
            reached &= "order" in name or min(found[:2]) >= AIM
    return reached


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", help="which sources (default: all)")
    parser.add_argument("--queries", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 where one answers fewer than a million a second"
    )
    arguments = parser.parse_args()
    held = report(arguments.queries, arguments.repeat, arguments.sources)
    raise SystemExit(1 if arguments.check and not held else 0)


if __name__ == "__main__":
    main()
