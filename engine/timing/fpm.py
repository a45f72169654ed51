"""The ``fpm`` source: passes priced from a model that was fitted on measured passes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from engine.bundle.schema import RESOLUTIONS
from engine.errors import GapscopeError
from engine.timing.contract import Ints, PassQueries, PassTimes, Refused
from engine.timing.model_file import KIND, check_model
from engine.timing.rows import CLASSES
from engine.timing.sites import Place, Site, Sites, decode_line, decode_starts
from engine.timing.surface import Surface

REFUSED, EXTRAPOLATED, CLAMPED, INTERPOLATED, EXACT = (
    RESOLUTIONS.index(name) for name in ("refused", "extrapolated", "clamped", "interpolated", "exact")
)

_NO_EDGE = 1 << 62
Priced = tuple[float, float, float, float, int, Place | None]
"""(a + c KV) (r0 + r1 KV) nanoseconds, resolution, where it was read (None: at this very geometry)."""


def build(knobs: Mapping[str, Any], model: Mapping[str, Any] | None) -> FpmTiming:
    """The source from a fitted model under the timing knobs.

    Raises:
        GapscopeError: no model, or one of another kind or version, or altered.
    """
    if model is None:
        raise GapscopeError(
            "Knob timing='fpm' needs a timing model: name passes to fit on (`--fit RUN:warmup`) or a model file, "
            "or set timing=fixed."
        )
    check_model(model, kind=KIND)
    composition = knobs["mixed_composition"]
    if composition == "auto":
        composition = model["composition"]
    asked = float(knobs["between_passes_ms"])
    between = model["between"]["value_ns"] if asked < 0 else round(asked * 1e6)
    variant = model["variants"][composition]
    description = {
        "kind": "fpm",
        "model_digest": model["digest"],
        "model": dict(model),  # small: with it a replay's bundle can show its own curves and domain
        "sources": model["lineage"]["sources"],
        "forced_differences": model["lineage"]["forced_differences"],
        "composition": composition,
        "composition_asked": knobs["mixed_composition"],
        "levels": variant["levels"],
        "holdout": {name: model["holdout"][composition]["by_class"][name] for name in CLASSES},
        "on_refused": knobs["on_refused"],
        "pass_scale": knobs["pass_scale"],
        "between_ns": between,
    }
    return FpmTiming(
        variant,
        between_ns=between,
        on_refused=knobs["on_refused"],
        scale=float(knobs["pass_scale"]),
        description=description,
    )


class FpmTiming:
    """Prices passes from one variant (one mixed composition) of a fitted model.

    ``on_refused`` says what becomes of a query outside the measured domain: ``clamp`` prices the nearest measured
    point, ``extrapolate`` the smooth base at the query with the nearest ratio, ``abort`` raises (and so does
    ``analytic``: another source answers then). Answers are memoised
    per geometry, so an instance belongs to one replay.
    """

    def __init__(
        self,
        variant: Mapping[str, Any],
        *,
        between_ns: int = 0,
        on_refused: str = "clamp",
        scale: float = 1.0,
        description: Mapping[str, Any] | None = None,
    ) -> None:
        self.between_ns = between_ns
        self._description = dict(description or {})
        self._surface = Surface(**variant["base_ns"])
        self._marginal = variant["composition"] == "marginal"
        self._floor = float(variant["decode_floor_kv_per_request"])
        self._level = tuple(variant["levels"][name]["factor"] * scale for name in CLASSES)
        self._prefill = Sites(_site(s) for s in variant["prefill_sites"])
        self._decode = Sites(_site(s) for s in variant["decode_sites"])
        self._exact_prefill = {(p, t, k): ns for p, t, k, ns, _ in variant["exact_prefill"]}
        self._exact_decode: dict[int, dict[int, float]] = {}
        for batch, kv, ns, _ in variant["exact_decode"]:
            self._exact_decode.setdefault(batch, {})[kv] = ns
        self._own_geometry = on_refused == "extrapolate"
        self._outside = {"clamp": CLAMPED, "extrapolate": EXTRAPOLATED, "abort": REFUSED, "analytic": REFUSED}[
            on_refused
        ]
        self._prefill_memo: dict[tuple[int, int, int], tuple[float, int, Place | None]] = {}
        self._rows: dict[int, tuple[list[int], list[Priced | None]]] = {}
        self._outside_memo: dict[tuple[int, int], Priced] = {}

    def pass_ns(
        self,
        prefill_requests: int,
        new_tokens: int,
        prefill_kv_tokens: int,
        decode_requests: int,
        decode_kv_tokens: int,
    ) -> int:
        """Duration of one pass in nanoseconds, at least 1; see :class:`engine.timing.contract.PassTimeSource`."""
        if not prefill_requests:
            starts, pieces = self._rows.get(decode_requests) or self._row(decode_requests)
            i = bisect_right(starts, decode_kv_tokens) - 1
            a, c, r0, r1, resolution, _ = pieces[i] or self._piece(decode_requests, decode_kv_tokens, i)
            if not resolution:
                self._refuse(0, 0, 0, decode_requests, decode_kv_tokens)
            return int((a + c * decode_kv_tokens) * (r0 + r1 * decode_kv_tokens) * self._level[1] + 0.5) or 1
        key = (prefill_requests, new_tokens, prefill_kv_tokens)
        prefill, resolution, _ = self._prefill_memo.get(key) or self._prefill_price(key)
        if not decode_requests:
            if not resolution:
                self._refuse(*key, 0, 0)
            return int(prefill * self._level[0] + 0.5) or 1
        decode, decode_resolution = self._decode_price(decode_requests, decode_kv_tokens)
        if self._marginal:
            decode -= self._decode_price(decode_requests, self._floor_kv(decode_requests))[0]
            decode = decode if decode > 0.0 else 0.0
        if not (resolution and decode_resolution):
            self._refuse(*key, decode_requests, decode_kv_tokens)
        level = self._level[2]
        return int(prefill * level + 0.5) + int(decode * level + 0.5) or 1

    def decode_run(
        self, decode_requests: int, contexts: Iterable[int], now_ns: int, until_ns: int
    ) -> tuple[list[int], list[int], int]:
        """See :class:`DecodeRuns`."""
        starts: list[int] = []
        durations: list[int] = []
        edges, pieces = self._rows.get(decode_requests) or self._row(decode_requests)
        level, between = self._level[1], self.between_ns
        low, high = 0, -1  # the KV sums that the piece at hand is for
        a = c = r0 = r1 = 0.0
        for context in contexts:
            if not low <= context < high:
                i = bisect_right(edges, context) - 1
                a, c, r0, r1, resolution, _ = pieces[i] or self._piece(decode_requests, context, i)
                if not resolution:
                    self._refuse(0, 0, 0, decode_requests, context)
                # A piece that is not kept is for this sum alone.
                low = context
                high = context + 1 if pieces[i] is None else edges[i + 1] if i + 1 < len(edges) else _NO_EDGE
            duration = int((a + c * context) * (r0 + r1 * context) * level + 0.5) or 1
            starts.append(now_ns)
            durations.append(duration)
            now_ns += duration + between
            if now_ns >= until_ns:
                break
        return starts, durations, now_ns

    def explain(self, queries: PassQueries) -> PassTimes:
        """The same answers for whole arrays, with parts, resolution and the sites they were read from."""
        times = self.marked(queries)
        refused = np.flatnonzero(times.resolution == REFUSED)
        if len(refused):
            i = int(refused[0])
            self._refuse(*(int(getattr(queries, axis)[i]) for axis in PassQueries.__slots__))
        return times

    def marked(self, queries: PassQueries) -> PassTimes:
        """See :class:`engine.timing.contract.Covering`."""
        n = len(queries)
        has_prefill, has_decode = queries.prefill_requests > 0, queries.decode_requests > 0
        level = np.where(has_prefill, np.where(has_decode, self._level[2], self._level[0]), self._level[1])
        decode, decode_resolution, decode_where = self._decode_prices(
            queries.decode_requests, queries.decode_kv_tokens, has_decode
        )
        if self._marginal:
            mixed = has_prefill & has_decode
            floor = np.array([self._floor_kv(int(d)) for d in queries.decode_requests], dtype=np.int64)
            below, _, _ = self._decode_prices(queries.decode_requests, floor, mixed)
            decode = np.where(mixed, np.maximum(0.0, decode - below), decode)
        prefill, resolution = np.zeros(n), np.full(n, EXACT, dtype=np.int8)
        names: dict[str, int] = {}
        prefill_where = np.full(n, -1, dtype=np.int64)
        keys = np.stack([queries.prefill_requests, queries.new_tokens, queries.prefill_kv_tokens], axis=1)
        unique, inverse = np.unique(keys[has_prefill], axis=0, return_inverse=True)
        if len(unique):
            answers = [self._price_of(int(p), int(t), int(k)) for p, t, k in unique]
            inverse = inverse.reshape(-1)
            prefill[has_prefill] = np.array([a[0] for a in answers])[inverse]
            resolution[has_prefill] = np.array([a[1] for a in answers], dtype=np.int8)[inverse]
            named = [names.setdefault(_told("prefill", a[2]), len(names)) for a in answers]
            prefill_where[has_prefill] = np.array(named)[inverse]
        resolution = np.minimum(resolution, decode_resolution)
        prefill_ns = np.floor(prefill * level + 0.5).astype(np.int64)
        decode_ns = np.floor(decode * level + 0.5).astype(np.int64)
        sites, site_names = _pair_names(prefill_where, list(names), *decode_where)
        return PassTimes(
            prefill_ns=prefill_ns,
            decode_ns=decode_ns,
            overhead_ns=(prefill_ns + decode_ns == 0).astype(np.int64),
            resolution=resolution.astype(np.int8),
            source=np.zeros(n, dtype=np.int8),
            sources=("fpm",),
            sites=sites,
            site_names=site_names,
        )

    def describe(self) -> dict[str, Any]:
        """What this source is and what it was fitted on (JSON-ready)."""
        return dict(self._description)

    # One price, before the level of its class.

    def _price_of(self, prompts: int, tokens: int, kv: int) -> tuple[float, int, Place | None]:
        key = (prompts, tokens, kv)
        return self._prefill_memo.get(key) or self._prefill_price(key)

    def _prefill_price(self, key: tuple[int, int, int]) -> tuple[float, int, Place | None]:
        prompts, tokens, kv = key
        if key in self._exact_prefill:
            answer: tuple[float, int, Place | None] = self._exact_prefill[key], EXACT, None
        else:
            place = self._prefill.place(prompts, tokens, kv / prompts)
            if place.inside or self._own_geometry:
                price = self._surface.prefill(prompts, tokens, kv)
            else:
                price = self._surface.prefill(place.batch, place.x, place.context * place.batch)
            answer = price * place.ratio, INTERPOLATED if place.inside else self._outside, place
        self._prefill_memo[key] = answer
        return answer

    def _row(self, batch: int) -> tuple[list[int], list[Priced | None]]:
        starts = decode_starts(self._decode, batch, self._exact_decode.get(batch, ()))
        row: tuple[list[int], list[Priced | None]] = (starts, [None] * len(starts))
        self._rows[batch] = row
        return row

    def _piece(self, batch: int, kv: int, i: int) -> Priced:
        """The price on stretch ``i``, which holds ``kv``; outside the domain, the price at ``kv`` alone."""
        if (batch, kv) in self._outside_memo:
            return self._outside_memo[batch, kv]
        starts, pieces = self._rows[batch]
        exact = self._exact_decode.get(batch, {})
        piece: Priced
        if starts[i] in exact:  # a stretch of one KV sum
            pieces[i] = piece = (exact[starts[i]], 0.0, 1.0, 0.0, EXACT, None)
            return piece
        place = self._decode.place(batch, starts[i] / batch)
        if place.inside:
            line = decode_line(place, self._surface.decode(batch, 0.0), self._surface.decode_kv_token)
            pieces[i] = piece = (*line, INTERPOLATED, place)
            return piece
        place = self._decode.place(batch, kv / batch)
        at = (batch, float(kv)) if self._own_geometry else (place.batch, place.x * place.batch)
        piece = (self._surface.decode(*at) * place.ratio, 0.0, 1.0, 0.0, self._outside, place)
        self._outside_memo[batch, kv] = piece
        return piece

    def _piece_at(self, batch: int, kv: int) -> Priced:
        starts, pieces = self._rows.get(batch) or self._row(batch)
        i = bisect_right(starts, kv) - 1
        return pieces[i] or self._piece(batch, kv, i)

    def _decode_price(self, batch: int, kv: int) -> tuple[float, int]:
        a, c, r0, r1, resolution, _ = self._piece_at(batch, kv)
        return (a + c * kv) * (r0 + r1 * kv), resolution

    def _floor_kv(self, batch: int) -> int:
        return max(batch, int(self._floor * batch + 0.5))

    def _decode_prices(self, batch: Ints, kv: Ints, where: Any) -> tuple[Any, Any, tuple[Ints, list[str]]]:
        price = np.zeros(len(batch))
        resolution = np.full(len(batch), EXACT, dtype=np.int8)
        told = np.full(len(batch), -1, dtype=np.int64)
        names: dict[str, int] = {}
        for b in np.unique(batch[where]).tolist():
            mine = where & (batch == b)
            starts, pieces = self._rows.get(b) or self._row(b)
            sums = kv[mine]
            stretch = np.searchsorted(starts, sums, side="right") - 1
            for j, k in zip(*np.unique(stretch, return_index=True), strict=True):
                if pieces[j] is None:
                    self._piece(b, int(sums[k]), int(j))
            # Inside the domain a piece holds for its whole stretch; outside, each KV sum has a price of its own.
            alone = np.array([p is None for p in pieces])[stretch]
            which, i = np.unique(np.where(alone, -1 - sums, stretch), return_inverse=True)
            found = [(pieces[w] if w >= 0 else None) or self._piece_at(b, -1 - w) for w in which.tolist()]
            a, c, r0, r1, worst = np.array([p[:5] for p in found]).T
            price[mine] = (a[i] + c[i] * sums) * (r0[i] + r1[i] * sums)
            resolution[mine] = worst[i].astype(np.int8)
            told[mine] = np.array([names.setdefault(_told("decode", p[5], b), len(names)) for p in found])[i]
        return price, resolution, (told, list(names))

    def _refuse(self, prompts: int, tokens: int, kv: int, decodes: int, decode_kv: int) -> None:
        batches = self._decode.batches
        raise Refused(
            f"Pass of {prompts} prefill requests ({tokens} new tokens, {kv} KV) and {decodes} decode requests "
            f"({decode_kv} KV) lies outside the measured domain (prefill batches {self._prefill.batches[0]} to "
            f"{self._prefill.batches[-1]}, decode batches {batches[0]} to {batches[-1]}): fit on passes that cover "
            "it, or set on_refused to clamp or extrapolate."
        )


def _site(entry: Mapping[str, Any]) -> Site:
    x, ratio, _ = zip(*entry["knots"], strict=True)
    context = entry.get("context", 0.0)
    spread = entry.get("context_range", (context, context))
    return Site(entry["batch"], context, x, ratio, tuple(entry["range"]), tuple(spread))


def _told(part: str, place: Place | None, batch: int | None = None) -> str:
    """Name of what a price was read from: ``decode b4|b8`` reads *between the sites of batch 4 and batch 8*."""
    if place is None:
        return f"{part} measured here" if batch is None else f"{part} b{batch} measured here"
    one = [f"b{s.batch}" + (f" kv{s.context:.0f}" if part == "prefill" else "") for s, _ in place.sites]
    return f"{part} " + "|".join(one)


def _pair_names(left: Ints, left_names: list[str], right: Ints, right_names: list[str]) -> tuple[Any, tuple[str, ...]]:
    """One index per pass into the names of the pairs that occur."""
    width = len(right_names) + 1
    unique, inverse = np.unique((left + 1) * width + right + 1, return_inverse=True)
    told = []
    for code in unique:
        a, b = divmod(int(code), width)
        told.append(" + ".join(([left_names[a - 1]] if a else []) + ([right_names[b - 1]] if b else [])))
    return inverse.reshape(-1).astype(np.int32), tuple(told)
