"""The ``fpm`` source: passes priced from a model that was fitted on measured passes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from engine.bundle.schema import RESOLUTIONS
from engine.errors import GapscopeError
from engine.timing.compact import distinct, pair_names
from engine.timing.contract import Ints, PassQueries, PassTimes, Refused
from engine.timing.model_file import KIND, check_model
from engine.timing.placing import Placing
from engine.timing.rows import CLASSES
from engine.timing.sites import Place, Site, Sites, decode_line, decode_starts
from engine.timing.surface import Surface

REFUSED, EXTRAPOLATED, CLAMPED, INTERPOLATED, EXACT = (
    RESOLUTIONS.index(name) for name in ("refused", "extrapolated", "clamped", "interpolated", "exact")
)

_NO_EDGE = 1 << 62
_BITS = 40
"""KV sums are below 2 ** 40."""
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
        self._placing: dict[str, Placing] = {}

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
        if refused := queries.first(times.resolution == REFUSED):
            self._refuse(*refused)
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
            batches, number = distinct(queries.decode_requests)
            floors = [self._decode_price(b, self._floor_kv(b))[0] if b else 0.0 for b in batches.tolist()]
            decode = np.where(mixed, np.maximum(0.0, decode - np.array(floors)[number]), decode)
        prefill, resolution = np.zeros(n), np.full(n, EXACT, dtype=np.int8)
        prefill_where, names = np.full(n, -1, dtype=np.int64), list[str]()
        at = np.flatnonzero(has_prefill)
        if len(at):
            asked = (queries.prefill_requests[at], queries.new_tokens[at], queries.prefill_kv_tokens[at])
            prefill[at], resolution[at], prefill_where[at], names = self._prefill_prices(*asked)
        resolution = np.minimum(resolution, decode_resolution)
        prefill_ns = np.floor(prefill * level + 0.5).astype(np.int64)
        decode_ns = np.floor(decode * level + 0.5).astype(np.int64)
        sites, site_names = pair_names(prefill_where, names, *decode_where)
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

    def _prefill_prices(self, prompts: Ints, tokens: Ints, kv: Ints) -> tuple[Any, Any, Ints, list[str]]:
        """Prices, resolutions and where they were read, of arrays of at least one query."""
        place = self._placing_of("prefill").places(prompts, tokens, kv / prompts)
        price = self._surface.prefill(prompts, tokens, kv)
        if not (place.inside.all() or self._own_geometry):
            held = self._surface.prefill(place.batch, place.x, place.context * place.batch)
            price = np.where(place.inside, price, held)
        price = price * place.ratio
        resolution = np.where(place.inside, INTERPOLATED, self._outside).astype(np.int8)
        where = place.which.copy()
        names = ["prefill " + _among("prefill", self._placing["prefill"].sites_of(int(code))) for code in place.codes]
        found, ns = self._measured_prefill(prompts, tokens, kv)
        if len(found):
            price[found], resolution[found], where[found] = ns, EXACT, len(names)
            names.append(_told("prefill", None))
        return price, resolution, where, names

    def _measured_prefill(self, prompts: Ints, tokens: Ints, kv: Ints) -> tuple[Ints, Any]:
        """Which queries were measured at their very geometry, and what they took."""
        if not self._exact_prefill:
            return np.zeros(0, np.int64), np.zeros(0)
        known = np.array(list(self._exact_prefill), dtype=np.int64)
        most = known.max(axis=0) + 1
        keys = (known[:, 0] * most[1] + known[:, 1]) * most[2] + known[:, 2]
        order = np.argsort(keys)
        near = np.flatnonzero((prompts < most[0]) & (tokens < most[1]) & (kv < most[2]))
        asked = (prompts[near] * most[1] + tokens[near]) * most[2] + kv[near]
        at = np.minimum(np.searchsorted(keys[order], asked), len(keys) - 1)
        equal = keys[order][at] == asked
        ns = np.array(list(self._exact_prefill.values()))[order][at[equal]]
        return near[equal], ns

    def _decode_prices(self, batch: Ints, kv: Ints, where: Any) -> tuple[Any, Any, tuple[Ints, list[str]]]:
        n = len(batch)
        price, resolution = np.zeros(n), np.full(n, EXACT, dtype=np.int8)
        told, names = np.full(n, -1, dtype=np.int64), dict[str, int]()
        asked = np.flatnonzero(where)
        if not len(asked):
            return price, resolution, (told, [])
        batches, number = distinct(batch[asked])
        rows = [self._rows.get(b) or self._row(b) for b in batches.tolist()]
        first = np.cumsum([0, *(len(starts) for starts, _ in rows)])
        starts = np.concatenate([np.array(starts, np.int64) + (i << _BITS) for i, (starts, _) in enumerate(rows)])
        sums = kv[asked]
        used, at = distinct(np.searchsorted(starts, (number << _BITS) + sums, side="right") - 1)
        sample = np.empty(len(used), dtype=np.int64)
        sample[at] = np.arange(len(asked))
        pieces: list[Priced | None] = []
        of = np.searchsorted(first, used, side="right") - 1
        for r, stretch, some in zip(of.tolist(), (used - first[of]).tolist(), sums[sample].tolist(), strict=True):
            if rows[r][1][stretch] is None:
                self._piece(int(batches[r]), some, stretch)
            # Inside the domain a piece holds for its whole stretch; outside, each KV sum has a price of its own.
            pieces.append(rows[r][1][stretch])
        a, c, r0, r1, worst = np.array([p[:5] if p else (0.0, 0.0, 0.0, 0.0, 0) for p in pieces]).T
        price[asked] = (a[at] + c[at] * sums) * (r0[at] + r1[at] * sums)
        resolution[asked] = worst[at].astype(np.int8)
        labels = [
            names.setdefault(_told("decode", p[5], int(batches[r])), len(names)) if p else -1
            for p, r in zip(pieces, of.tolist(), strict=True)
        ]
        told[asked] = np.array(labels, np.int64)[at]
        alone = asked[np.array([p is None for p in pieces])[at]]
        if len(alone):
            price[alone], told[alone] = self._decodes_outside(batch[alone], kv[alone], names)
            resolution[alone] = self._outside
        return price, resolution, (told, list(names))

    def _decodes_outside(self, batch: Ints, kv: Ints, names: dict[str, int]) -> tuple[Any, Ints]:
        """Prices of decodes outside the domain, and where they were read."""
        place = self._placing_of("decode").places(batch, kv / batch, np.zeros(len(batch)))
        if self._own_geometry:
            price = self._surface.decode(batch, kv.astype(float))
        else:
            price = self._surface.decode(place.batch, place.x * place.batch)
        among = ["decode " + _among("decode", self._placing["decode"].sites_of(int(code))) for code in place.codes]
        numbers = np.array([names.setdefault(name, len(names)) for name in among], np.int64)
        return price * place.ratio, numbers[place.which]

    def _placing_of(self, part: str) -> Placing:
        if part not in self._placing:
            self._placing[part] = Placing(self._prefill if part == "prefill" else self._decode)
        return self._placing[part]

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
    return f"{part} " + _among(part, [site for site, _ in place.sites])


def _among(part: str, sites: Iterable[Site]) -> str:
    return "|".join(f"b{s.batch}" + (f" kv{s.context:.0f}" if part == "prefill" else "") for s in sites)
