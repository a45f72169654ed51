"""A bounded correction of any source, learned from measured passes that are named, and recorded with all its factors.

Passes of a kind are dealt into a grid of 16 buckets. What a source says of a pass is multiplied with the median of
what was measured over what it said, of the passes of that bucket; where there are none, it stands.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import GapscopeError
from engine.timing.contract import PassQueries, PassTimes, PassTimeSource
from engine.timing.model_file import CORRECTION_KIND, VERSIONS, check_model, load_model, save_model, with_digest
from engine.timing.rows import CLASSES, DECODE_ONLY, PREFILL_ONLY, FitSource, check_same_regime, read_rows

FOLDER = "corrections"
STEPS = 4
"""Buckets of each of the two axes of a kind."""
NEWEST, READY = 64, 5
"""Samples of a kind that count, and how many it needs before any of them does."""
BOUNDS = (0.5, 2.0)
TOKENS, REQUESTS, KV = ("new_tokens", 8192), ("decode_requests", 512), ("decode_kv_tokens", 2_000_000)
AXES = {
    "prefill_only": (TOKENS, ("prefill_kv_tokens", 2_000_000)),
    "decode_only": (REQUESTS, KV),
    "mixed": (TOKENS, KV),
}
"""Of each kind, two axes of a pass and up to where their buckets of equal width go."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_APART = ("between_ns", "on_refused", "model", "fallback")
"""What a source may be asked otherwise and still be the one that was corrected."""


def learn(source: PassTimeSource, passes: Sequence[FitSource]) -> dict[str, Any]:
    """The correction of ``source`` by measured passes, the newest of each kind (JSON-ready).

    Raises:
        GapscopeError: see :func:`read_rows` and :func:`check_same_regime`.
    """
    rows, lineage = read_rows(passes)
    check_same_regime(passes, force=False)
    queries = PassQueries(*rows.geometry().T)
    observed = np.clip(rows.duration_ns / source.explain(queries).total_ns, *BOUNDS)
    kind, bucket = rows.kind, buckets(queries)
    factors: dict[str, list[float | None]] = {}
    samples: dict[str, list[int]] = {}
    for c, name in enumerate(CLASSES):
        newest = np.flatnonzero(kind == c)[-NEWEST:]
        within = [newest[bucket[newest] == b] for b in range(STEPS * STEPS)]
        samples[name] = [len(rows_) for rows_ in within]
        ready = len(newest) >= READY
        factors[name] = [
            float(f"{np.median(observed[rows_]):.9g}") if ready and len(rows_) else None for rows_ in within
        ]
    return with_digest(
        {
            "kind": CORRECTION_KIND,
            "version": VERSIONS[CORRECTION_KIND],
            "of": fingerprint(source),
            "of_kind": source.describe()["kind"],
            "learned_on": [{"run_id": s["run_id"], "phases": s["phases"], "tables": s["tables"]} for s in lineage],
            "bounds": list(BOUNDS),
            "factors": factors,
            "samples": samples,
        }
    )


def fingerprint(source: PassTimeSource) -> str:
    """A short name of what a source would say, whatever it is asked to do beyond its domain."""
    said = {name: value for name, value in source.describe().items() if name not in _APART}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def buckets(queries: PassQueries) -> Any:
    """The bucket of each query in the grid of its kind; -1 beyond the grid."""
    prompts, decodes = queries.prefill_requests > 0, queries.decode_requests > 0
    kind = np.where(prompts, np.where(decodes, 2, PREFILL_ONLY), DECODE_ONLY)
    found = np.full(len(queries), -1, dtype=np.int64)
    for c, name in enumerate(CLASSES):
        mine = np.flatnonzero(kind == c)
        (first, most), (second, most_2) = AXES[name]
        x, y = getattr(queries, first)[mine], getattr(queries, second)[mine]
        at = np.minimum(x * STEPS // most, STEPS - 1) * STEPS + np.minimum(y * STEPS // most_2, STEPS - 1)
        found[mine] = np.where((x <= most) & (y <= most_2), at, -1)
    return found


def correction_names(folders: Sequence[Path]) -> list[str]:
    """Names of all corrections, sorted; ``folders`` are those of a user's presets."""
    return sorted({path.stem for folder in folders for path in (folder / FOLDER).glob("*.json")})


def save_correction(correction: Mapping[str, Any], name: str, folder: Path, replace: bool = False) -> Path:
    """Keep a correction by name in a folder of presets.

    Raises:
        GapscopeError: not a name; there is another correction of that name, and it is not to be replaced; the place
            cannot be written to.
    """
    if not _NAME.fullmatch(name):
        raise GapscopeError(f"{name!r} is no name of a correction: expected letters, digits and . _ + -.")
    path = folder / FOLDER / f"{name}.json"
    if path.is_file() and not replace and load_model(path).get("digest") != correction["digest"]:
        raise GapscopeError(
            f"There is another correction {name!r} already, and replays name it: take another name, or give --force to "
            "replace it."
        )
    return save_model(correction, path)


def corrected(source: PassTimeSource, name: str, folders: Sequence[Path]) -> CorrectedTiming:
    """The source with the correction of that name.

    Raises:
        GapscopeError: there is none; it was altered; it was learned on another source.
    """
    found = [folder / FOLDER / f"{name}.json" for folder in folders]
    path = next((path for path in found if _NAME.fullmatch(name) and path.is_file()), None)
    if path is None:
        there = ", ".join(correction_names(folders)) or "none"
        raise GapscopeError(
            f"There is no correction {name!r} in the stores (there: {there}): make one (`gapscope correct`)."
        )
    correction = load_model(path)
    check_model(correction, str(path), CORRECTION_KIND)
    if correction["of"] != fingerprint(source):
        raise GapscopeError(
            f"Correction {name} was learned on another source ({correction['of_kind']}, {correction['of']}) than this "
            f"({source.describe()['kind']}, {fingerprint(source)}): learn it on this one (`gapscope correct`)."
        )
    return CorrectedTiming(source, correction, name)


class CorrectedTiming:
    """A source whose answers are multiplied, bucket by bucket; nothing of them is learned while it answers."""

    def __init__(self, source: PassTimeSource, correction: Mapping[str, Any], name: str) -> None:
        self._source, self._correction, self._name = source, correction, name
        self._factors = [[1.0 if f is None else f for f in correction["factors"][kind]] for kind in CLASSES]
        self._table = np.array([[*factors, 1.0] for factors in self._factors])  # the last for beyond the grid

    @property
    def between_ns(self) -> int:
        """See :class:`PassTimeSource`."""
        return self._source.between_ns

    @property
    def knows_width(self) -> bool:
        """See :func:`engine.timing.verify.priced`."""
        return bool(getattr(self._source, "knows_width", False))

    def pass_ns(
        self,
        prefill_requests: int,
        new_tokens: int,
        prefill_kv_tokens: int,
        decode_requests: int,
        decode_kv_tokens: int,
    ) -> int:
        """See :class:`PassTimeSource`."""
        query = (prefill_requests, new_tokens, prefill_kv_tokens, decode_requests, decode_kv_tokens)
        duration = self._source.pass_ns(*query)
        if not prefill_requests:
            kind, x, most, y, most_2 = 1, decode_requests, REQUESTS[1], decode_kv_tokens, KV[1]
        elif decode_requests:
            kind, x, most, y, most_2 = 2, new_tokens, TOKENS[1], decode_kv_tokens, KV[1]
        else:
            kind, x, most, y, most_2 = 0, new_tokens, TOKENS[1], prefill_kv_tokens, AXES["prefill_only"][1][1]
        if x > most or y > most_2:
            return duration
        at = min(x * STEPS // most, STEPS - 1) * STEPS + min(y * STEPS // most_2, STEPS - 1)
        return int(duration * self._factors[kind][at] + 0.5) or 1

    def explain(self, queries: PassQueries) -> PassTimes:
        """See :class:`PassTimeSource`; what rounding leaves over counts as overhead."""
        times = self._source.explain(queries)
        prompts, decodes = queries.prefill_requests > 0, queries.decode_requests > 0
        kind = np.where(prompts, np.where(decodes, 2, 0), 1)
        factor = self._table[kind, buckets(queries)]
        whole = np.maximum(np.floor(times.total_ns * factor + 0.5).astype(np.int64), 1)
        prefill = np.minimum(np.floor(times.prefill_ns * factor + 0.5).astype(np.int64), whole)
        decode = np.minimum(np.floor(times.decode_ns * factor + 0.5).astype(np.int64), whole - prefill)
        return replace(times, prefill_ns=prefill, decode_ns=decode, overhead_ns=whole - prefill - decode)

    def describe(self) -> dict[str, Any]:
        """The source's own description, with the whole correction."""
        return {**self._source.describe(), "correction": {"name": self._name, **self._correction}}
