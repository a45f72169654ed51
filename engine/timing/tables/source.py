"""The ``table`` source: passes priced from a published table of whole forward passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.bundle.schema import RESOLUTIONS
from engine.deployment import deployment_of
from engine.errors import GapscopeError
from engine.timing.anchors.target import UNKNOWN, Target, with_knobs
from engine.timing.compact import pair_names
from engine.timing.contract import PassQueries, PassTimes, Refused
from engine.timing.model_file import TABLE_KIND, VERSIONS, check_model, with_digest
from engine.timing.tables.decode import DecodeSites
from engine.timing.tables.identity import differences
from engine.timing.tables.layout import Cell
from engine.timing.tables.prefill import PrefillSites

REFUSED, CLAMPED, EXACT = (RESOLUTIONS.index(name) for name in ("refused", "clamped", "exact"))


def model_of(cell: Cell, name: str, target: Target | None = None, *, force: bool = False) -> dict[str, Any]:
    """One deployment of a table as a timing model, with what is known of the target it shall stand for (JSON-ready).

    ``force`` lets it stand for one that is known to differ; the differences are recorded when it is built.
    """
    return with_digest(
        {
            "kind": TABLE_KIND,
            "version": VERSIONS[TABLE_KIND],
            "name": name,
            "identity": dict(cell.identity),
            "prefill": [list(point) for point in cell.prefill],
            "decode": [list(point) for point in cell.decode],
            "table_sha256": cell.sealed["parquet_sha256"],
            "policy": cell.sealed.get("measurement_policy"),
            "target": (target or UNKNOWN).to_json(),
            "forced": force,
            "lineage": {"sources": []},
        }
    )


def build(knobs: Mapping[str, Any], model: Mapping[str, Any] | None, folders: Sequence[Path] = ()) -> TableTiming:
    """The source from a table (:func:`model_of`) under the knobs; ``folders`` hold a user's presets.

    Raises:
        GapscopeError: no table; one of another regime (the axes are named); one without prefill or decode rows; knobs
            that a table cannot follow.
    """
    if model is None:
        raise GapscopeError("Knob timing='table' needs a table: name one of the store (`gapscope table list`).")
    check_model(model, kind=TABLE_KIND)
    for kind in ("prefill", "decode"):
        if not model[kind]:
            raise GapscopeError(f"Table {model['name']} has no {kind} rows: take one with both.")
    if knobs["on_refused"] == "extrapolate":
        raise GapscopeError(
            "Knob on_refused=extrapolate: timing=table knows nothing beyond what was measured; expected clamp, "
            "analytic or abort."
        )
    if knobs["attention_dp"] > 1 and knobs["dp_price"] == "combined":
        raise GapscopeError("Knob dp_price=combined: rows of a table are passes of a rank; expected dp_price=slowest.")
    target = Target.from_json(model["target"])
    if knobs["part"] and knobs["model_preset"]:
        target = with_knobs(target, knobs, deployment_of(knobs, folders))
    found = differences(model["identity"], target)
    if found and not model["forced"]:
        raise GapscopeError(
            f"Table {model['name']} was measured on another deployment: {'; '.join(found)}. Take one of the same, or "
            "force it knowingly."
        )
    return TableTiming(model, knobs, found)


class TableTiming:
    """Prices passes from the rows of one deployment.

    A mixed pass is its prefill and what its decode costs above the decode of the same batch at the lowest KV of the
    table (``mixed_composition`` sum: in full). Answers are the same at any time; what is kept of them only makes the
    next ones faster.
    """

    def __init__(self, model: Mapping[str, Any], knobs: Mapping[str, Any], forced: Sequence[str] = ()) -> None:
        self.between_ns = max(0, round(float(knobs["between_passes_ms"]) * 1e6))
        self._model, self._knobs, self._forced = model, knobs, list(forced)
        self._outside = CLAMPED if knobs["on_refused"] == "clamp" else REFUSED
        self._prefill = PrefillSites(model["prefill"], self._outside)
        self._decode = DecodeSites(model["decode"], self._outside)
        self.composition = "sum" if knobs["mixed_composition"] == "sum" else "marginal"
        self._scale = float(knobs["pass_scale"]) * 1e6  # from milliseconds
        self._by_prompts: dict[tuple[int, int, int], tuple[float, int]] = {}

    def pass_ns(
        self,
        prefill_requests: int,
        new_tokens: int,
        prefill_kv_tokens: int,
        decode_requests: int,
        decode_kv_tokens: int,
    ) -> int:
        """Duration of one pass in nanoseconds, at least 1.

        Raises:
            Refused: the table does not cover it, and the knobs ask for it to be refused.
        """
        prompts = decodes = 0.0
        worst = EXACT
        if decode_requests:
            decodes, worst = self._decode.price(decode_requests, decode_kv_tokens)
        if prefill_requests:
            key = (prefill_requests, new_tokens, prefill_kv_tokens)
            answer = self._by_prompts.get(key)
            if answer is None:
                ms, found, _ = self._prefill.prices(*(np.array([axis], np.int64) for axis in key))
                answer = self._by_prompts[key] = (float(ms[0]), int(found[0]))
            prompts, resolution = answer
            worst = min(worst, resolution)
            if decode_requests and self.composition == "marginal":
                decodes = max(0.0, decodes - self._decode.floor(decode_requests))
        if worst == REFUSED:
            self._refuse(prefill_requests, new_tokens, prefill_kv_tokens, decode_requests, decode_kv_tokens)
        return int(prompts * self._scale + 0.5) + int(decodes * self._scale + 0.5) or 1

    def explain(self, queries: PassQueries) -> PassTimes:
        """The same answers for whole arrays, with parts, resolution and the sites they were read from."""
        times = self.marked(queries)
        if refused := queries.first(times.resolution == REFUSED):
            self._refuse(*refused)
        return times

    def marked(self, queries: PassQueries) -> PassTimes:
        """See :class:`engine.timing.contract.Covering`."""
        n = len(queries)
        prefill, decode = np.zeros(n), np.zeros(n)
        resolution = np.full(n, EXACT, np.int8)
        prefill_site, decode_site = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
        decode_names: list[str] = []
        prompts = queries.prefill_requests > 0
        at = np.flatnonzero(queries.decode_requests > 0)
        if len(at):
            batch = queries.decode_requests[at]
            ms, found, decode_site[at], decode_names = self._decode.prices(batch, queries.decode_kv_tokens[at])
            if self.composition == "marginal" and prompts[at].any():
                mixed = np.flatnonzero(prompts[at])
                ms[mixed] = np.maximum(0.0, ms[mixed] - self._decode.floors(batch[mixed]))
            decode[at], resolution[at] = ms, found
        at = np.flatnonzero(prompts)
        if len(at):
            asked = (queries.prefill_requests[at], queries.new_tokens[at], queries.prefill_kv_tokens[at])
            prefill[at], found, prefill_site[at] = self._prefill.prices(*asked)
            resolution[at] = np.minimum(resolution[at], found)
        prefill_ns = np.floor(prefill * self._scale + 0.5).astype(np.int64)
        decode_ns = np.floor(decode * self._scale + 0.5).astype(np.int64)
        sites, site_names = pair_names(prefill_site, self._prefill.names, decode_site, decode_names)
        return PassTimes(
            prefill_ns=prefill_ns,
            decode_ns=decode_ns,
            overhead_ns=(prefill_ns + decode_ns == 0).astype(np.int64),
            resolution=resolution,
            source=np.zeros(n, dtype=np.int8),
            sources=("table",),
            sites=sites,
            site_names=site_names,
        )

    def describe(self) -> dict[str, Any]:
        """Which table, of which deployment, and how it is read (JSON-ready)."""
        model = self._model
        return {
            "kind": "table",
            "model_digest": model["digest"],
            "model": dict(model),  # with it a replay's bundle can be varied from its record alone
            "table": model["name"],
            "table_sha256": model["table_sha256"],
            "table_identity": dict(model["identity"]),
            "policy": model["policy"],
            "rows": {"prefill": len(model["prefill"]), "decode": len(model["decode"])},
            "forced_differences": self._forced,
            "composition": self.composition,
            "flat_above_largest_batch": self._prefill.flat,
            "on_refused": self._knobs["on_refused"],
            "pass_scale": self._knobs["pass_scale"],
            "between_ns": self.between_ns,
        }

    def _refuse(self, prompts: int, tokens: int, kv: int, decodes: int, decode_kv: int) -> None:
        said = ", ".join(
            f"{name} {low} to {high}"
            for name, (low, high) in zip(("batches", "new tokens", "KV"), self._prefill.domain, strict=True)
        )
        batches = self._decode.batches
        raise Refused(
            f"Pass of {prompts} prefill requests ({tokens} new tokens, {kv} KV) and {decodes} decode requests "
            f"({decode_kv} KV) lies outside what table {self._model['name']} measured (prefill {said}; decode batches "
            f"{batches[0]} to {batches[-1]}, KV {self._decode.lowest} to {self._decode.highest}), or no curve near it "
            "covers it: take another table, or set on_refused to clamp or analytic."
        )
