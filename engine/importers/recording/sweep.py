"""A recorded sweep of pass shapes becomes a run of kind sweep: passes only."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine import jsonl
from engine.bundle import BundleWriter, Check, Phase, slugify
from engine.importers.recording.files import PASS, SWEEP_SCHEMA, Recording, read_passes
from engine.importers.recording.history import histories
from engine.importers.recording.identity import sweep_identity
from engine.importers.recording.qualify import files_intact, rows_used
from engine.importers.recording.recorder import set_recorder_cost
from engine.importers.recording.tables import pass_rows, table_of
from engine.importers.recording.verdict import verdict
from engine.intake.rows import number
from engine.jsonl import COUNT, OBJECT, TEXT, SkippedRow, Spec

_SHAPE: Spec = {"shape_id": COUNT, "shape": TEXT, "step_ms": OBJECT}


def import_sweep(
    path: Path, store: Path, trace: Path | None = None, title: str | None = None, skip_bad_rows: bool = False
) -> str:
    """Turn the sweep in the folder ``path`` into a run in ``store``; returns its id. A sweep plays no trace.

    Raises:
        GapscopeError: a file is missing or malformed, or the store cannot be written.
    """
    identity = jsonl.read_object(path / "identity.json")
    skipped: list[SkippedRow] | None = [] if skip_bad_rows else None
    passes, fpm_schema = read_passes(path, {**PASS, "shape_id": COUNT}, skipped)
    shapes = jsonl.read_rows(path / "shapes.jsonl", lambda row: _SHAPE, skipped)
    names = ("identity.json", "fpm.jsonl.gz", "shapes.jsonl")
    digests = {name: hashlib.sha256(jsonl.read_bytes(path / name)).hexdigest() for name in names}
    identity.setdefault("phases", {"warmup_s": 0})
    sweep = Recording(path, identity, [], passes, fpm_schema, None, None, digests, skipped or [])
    _, sampled = histories(sweep)
    checks = [
        rows_used(sweep.skipped, len(passes) + len(shapes)),
        files_intact(identity, digests),
        _shapes_reproduced(passes, shapes),
    ]
    name = slugify(path.name)
    end = max((sweep.ns(r["t_end_s"]) for r in passes), default=0)
    text = title or f"{name}: {len(shapes):,} pass shapes, {len(passes):,} passes"
    told = sweep_identity(identity, fpm_schema)
    set_recorder_cost(told, passes, "fpm.jsonl.gz")
    with BundleWriter(store, "sweep", name, text, told) as writer:
        writer.write_table("passes", table_of("passes", pass_rows(sweep, sampled, lambda start: "profile")))
        return writer.seal(
            phases=[Phase("profile", 0, end)],
            lineage={"format": SWEEP_SCHEMA, "source_files": digests},
            qualification=checks,
        )


def _shapes_reproduced(passes: Sequence[Mapping[str, Any]], shapes: Sequence[Mapping[str, Any]]) -> Check:
    """Whether the passes of each shape have the count and the mean time that ``shapes.jsonl`` gives."""
    bad = []
    for shape in shapes:
        times = [1e3 * p["wall_time_s"] for p in passes if p["shape_id"] == shape["shape_id"] and _counts(p, shape)]
        said, mean = shape["step_ms"], number(shape["step_ms"].get("mean"))
        if len(times) != said.get("n") or (times and abs(float(np.mean(times)) - (mean or 0.0)) > 6e-4):
            bad.append(f"shape {shape['shape_id']}")
    return verdict(
        "shapes_reproduced",
        bad,
        len(shapes),
        "shapes have the passes and the mean time that the sweep names",
        "shapes have other passes or another mean time",
    )


def _counts(p: Mapping[str, Any], shape: Mapping[str, Any]) -> bool:
    """Whether a pass of the shape's requests is one of those that the shape is about."""
    if shape["shape"] == "prefill":
        return bool(p["prefill_tokens"])
    if shape["shape"] == "decode":
        return p["num_prefill"] == 0 and p["num_decode"] == shape.get("batch")
    return bool(p["num_prefill"] and p["num_decode"])
