"""The ``measured`` source: a pass lasts as long as it was recorded to last.

Two ways of finding the recorded pass. *order* follows the recording pass by pass for as long as the geometries agree
and finds its place again where they do not; *geometry* asks for nothing but the shape of the batch. For replays that
take the pass durations from a measurement, to see what is wrong besides them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.bundle.reader import find_bundle
from engine.bundle.schema import RESOLUTIONS
from engine.errors import GapscopeError
from engine.timing.compact import distinct
from engine.timing.contract import Ints, PassQueries, PassTimes
from engine.timing.host import host_terms
from engine.timing.nearest import Search
from engine.timing.neighbours import EXACT_PASSES, FEW, Geometry, Neighbours
from engine.timing.rows import FitSource, PassRows, read_rows

if TYPE_CHECKING:
    from engine.bundle import Bundle

CLAMPED, INTERPOLATED, EXACT = (RESOLUTIONS.index(name) for name in ("clamped", "interpolated", "exact"))
SOURCES = (
    "measured in order",
    "measured nearby in order",
    "measured nearby, of nearly this geometry",
    "measured at this geometry",
    "measured near this geometry",
)
"""What answered: the next recorded pass; one of equal geometry close to it; one of nearly equal geometry close to it;
passes of equal geometry anywhere; the nearest in geometry."""
NEXT, NEARBY, NEARLY, EQUAL, NEAREST = range(5)
WINDOW_PASSES = 1000
"""How far from its place in the recorded order a pass of equal geometry may be."""
NEARLY_WINDOW_PASSES = 200
NEARLY_SHARE = 0.05
"""How far a pass of nearly equal geometry may be, and by how much each count of its tokens may differ."""
BLOCK = 1 << 15
"""Queries that are searched for at a time."""
Answer = tuple[int, int, int, int, int]
"""Duration and time after it in nanoseconds, resolution, link of the chain, bucket."""


def measured_model(bundle: Bundle, phases: Sequence[str] | None = None) -> dict[str, Any]:
    """The recorded passes of a run as a timing model, in the order in which they ran.

    Not JSON: a replay's record names the run instead. ``passes`` are rows, ``after_ns`` the host time after each (NaN
    where the engine idled or nobody recorded it), ``host`` the latencies of the client as that run recorded them.

    Args:
        bundle: a measured run, or a sweep.
        phases: take the passes of these phases only; None takes all.

    Raises:
        GapscopeError: a replay, or a run or phase without measured passes.
    """
    source = FitSource(bundle, tuple(phases) if phases is not None else None)
    rows, lineage = read_rows([source])
    after = np.append(rows.between_ns[1:], np.nan)
    after[~(after >= 0)] = np.nan
    return {
        "kind": "measured",
        "run_id": bundle.run_id,
        "phases": lineage[0]["phases"],
        "passes": rows,
        "after_ns": after,
        "host": host_terms([source]),
        "lineage": {"sources": lineage},
    }


def model_for(like: Bundle, stores: Sequence[Path]) -> dict[str, Any]:
    """The model of the measured run that ``like`` is or stands for.

    A replay that was timed by a measured run keeps that run, another takes the run whose deployment it replays.

    Raises:
        GapscopeError: there is no such run, or it lies in none of the stores.
    """
    if like.kind != "replay":
        return measured_model(like)
    timing = like.lineage.get("timing") or {}
    named = timing.get("kind") == "measured"
    run_id = timing.get("run_id") if named else like.lineage.get("like")
    if not run_id:
        raise GapscopeError(
            f"Knob timing=measured: {like.run_id} is a replay of no measured run, so there are no recorded passes to "
            "take durations from; name a measured run."
        )
    return measured_model(find_bundle(stores, run_id), timing.get("phases") if named else None)


def build(knobs: Mapping[str, Any], model: Mapping[str, Any] | None) -> MeasuredTiming:
    """The source from recorded passes under the timing knobs.

    Raises:
        GapscopeError: no recorded passes, or ``on_refused=extrapolate``, which nothing measured can do.
    """
    if model is None or model.get("kind") != "measured":
        raise GapscopeError(
            "Knob timing='measured' needs the recorded passes of a run: name a measured run to replay (`--like RUN`), "
            "or take another timing."
        )
    if knobs["on_refused"] == "extrapolate":
        raise GapscopeError(
            "Knob on_refused=extrapolate: timing=measured knows nothing beyond what was measured; expected clamp or "
            "abort."
        )
    return MeasuredTiming(
        model,
        match=knobs["measured_match"],
        scale=float(knobs["pass_scale"]),
        between_ms=float(knobs["between_passes_ms"]),
        refuse=knobs["on_refused"] == "abort",
    )


class MeasuredTiming:
    """Durations of recorded passes, found by their order or by their geometry.

    ``between_ns`` is the host time after the pass that was asked for last. With ``match="order"`` answers depend on the
    order of the queries, so an instance belongs to one replay.
    """

    def __init__(
        self,
        model: Mapping[str, Any],
        *,
        match: str = "order",
        scale: float = 1.0,
        between_ms: float = -1.0,
        refuse: bool = False,
    ) -> None:
        rows: PassRows = model["passes"]
        geometry = rows.geometry()
        after = np.array(model["after_ns"], np.float64)
        if between_ms >= 0:
            after[:] = between_ms * 1e6
        known = after[~np.isnan(after)]
        self.typical_between_ns = round(float(np.median(known))) if len(known) else 0
        after = np.where(np.isnan(after), self.typical_between_ns, after)
        self.between_ns = self.typical_between_ns
        self._durations = np.maximum(1, np.rint(rows.duration_ns * scale)).astype(np.int64)
        self._duration = self._durations.tolist()
        self._after = np.rint(after).astype(np.int64).tolist()
        self._geometry: list[Geometry] = list(map(tuple, geometry.tolist()))
        self._places: dict[Geometry, list[int]] = {}
        self._batches: dict[tuple[int, int], list[int]] = {}  # by prefill and decode requests
        for place, shape in enumerate(self._geometry):
            self._places.setdefault(shape, []).append(place)
            self._batches.setdefault((shape[0], shape[3]), []).append(place)
        self._near = Neighbours(geometry)
        self._search: Search | None = None
        self._refuse = refuse
        self._match = match
        self._memo: dict[Geometry, Answer] = {}
        self._walk = _Walk(len(rows))
        self._described = {
            "kind": "measured",
            "run_id": model["run_id"],
            "phases": model["phases"],
            "match": match,
            "constants": {"match": match},
            "passes": len(rows),
            "between_ns": self.typical_between_ns,
            "pass_scale": scale,
        }

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
            GapscopeError: nothing like it was measured, and ``on_refused=abort``.
        """
        shape = (prefill_requests, new_tokens, prefill_kv_tokens, decode_requests, decode_kv_tokens)
        answer = self._answer(shape, self._walk)
        self.between_ns = answer[1]
        return answer[0]

    def explain(self, queries: PassQueries) -> PassTimes:
        """The same answers for whole arrays, asked in this order from the beginning; durations are not split."""
        asked = np.stack(queries.axes, axis=1)
        if self._match == "order":
            walk = _Walk(len(self._geometry))
            answers = np.array([self._answer(tuple(shape), walk) for shape in asked.tolist()], np.int64).reshape(-1, 5)
            duration, _, resolution, link, bucket = answers.T
        else:
            blocks = [self._all_by_geometry(asked[at : at + BLOCK]) for at in range(0, len(asked), BLOCK)]
            duration, resolution, link, bucket = np.concatenate([np.zeros((4, 0), np.int64), *blocks], axis=1)
        nothing = np.zeros(len(queries), np.int64)
        return PassTimes(
            prefill_ns=nothing,
            decode_ns=nothing,
            overhead_ns=duration,
            resolution=resolution.astype(np.int8),
            source=link.astype(np.int8),
            sources=SOURCES,
            sites=bucket.astype(np.int32),
            site_names=self._near.names,
        )

    def describe(self) -> dict[str, Any]:
        """Which run was asked, and how (JSON-ready); the passes themselves stay in that run."""
        return dict(self._described)

    def _answer(self, shape: Geometry, walk: _Walk) -> Answer:
        if self._match == "order":
            at = walk.next
            if at < len(self._geometry) and self._geometry[at] == shape and not walk.used[at]:
                walk.use(at)
                return self._recorded(at, NEXT)
            place = _nearest(self._places.get(shape, ()), at)
            if place is not None and not walk.used[place]:
                walk.use(place)
                return self._recorded(place, NEARBY)
            place = self._nearly(shape, walk)
            if place is not None:
                walk.use(place)
                return self._recorded(place, NEARLY, INTERPOLATED)
            walk.next = at + 1  # this pass stands in the place of a recorded one
        answer = self._memo.get(shape)
        if answer is None:
            answer = self._memo[shape] = self._by_geometry(shape)
        return answer

    def _nearly(self, shape: Geometry, walk: _Walk) -> int | None:
        """The pass nearest in order that has as many requests, about as many tokens, and was not lent yet.

        Where two runs part by a token, it keeps to the recording: its drift and its odd passes stay where they were.
        """
        places, at = self._batches.get((shape[0], shape[3]), ()), walk.next
        above = bisect_left(places, at)
        below = above - 1
        while True:
            up = places[above] - at if above < len(places) else NEARLY_WINDOW_PASSES
            down = at - places[below] if below >= 0 else NEARLY_WINDOW_PASSES
            if min(up, down) >= NEARLY_WINDOW_PASSES:
                return None
            place = places[above] if up <= down else places[below]
            if not walk.used[place] and _alike(self._geometry[place], shape):
                return place
            above, below = (above + 1, below) if up <= down else (above, below - 1)

    def _recorded(self, place: int, link: int, resolution: int = EXACT) -> Answer:
        return self._duration[place], self._after[place], resolution, link, self._near.bucket_of[place]

    def _by_geometry(self, shape: Geometry) -> Answer:
        equal = self._places.get(shape, [])
        if len(equal) >= EXACT_PASSES:
            found, resolution, link = equal, EXACT, EQUAL
        else:
            found, inside = self._near.few(shape)
            resolution, link = INTERPOLATED if inside else CLAMPED, NEAREST
        if resolution == CLAMPED and self._refuse:
            names = ("prefill requests", "new tokens", "prefill KV tokens", "decode requests", "decode KV tokens")
            asked = ", ".join(f"{value} {name}" for value, name in zip(shape, names, strict=True))
            raise GapscopeError(
                f"A pass of {asked} lies outside what {self._described['run_id']} measured, and on_refused=abort: take "
                "clamp, or a run that has such passes."
            )
        duration, after = (_median([values[n] for n in found]) for values in (self._duration, self._after))
        return duration, after, resolution, link, self._near.bucket_of[found[0]]

    def _all_by_geometry(self, asked: Ints) -> Ints:
        """Durations, resolutions, links and buckets: what ``_by_geometry`` says of each."""
        if self._search is None:
            self._search = Search(self._near)
        found = self._search.nearest(asked)
        exact = found.equal >= EXACT_PASSES
        resolution = np.where(exact, EXACT, np.where(found.inside, INTERPOLATED, CLAMPED))
        if self._refuse and len(refused := np.flatnonzero(resolution == CLAMPED)):
            self._by_geometry(tuple(asked[refused[0]].tolist()))
        in_order = self._durations[self._near.order]
        near = np.where(np.arange(FEW) < found.count[:, None], in_order[found.rows], np.iinfo(np.int64).max)
        near.sort(axis=1)
        every = np.arange(len(asked))
        duration = (near[every, (found.count - 1) // 2] + near[every, found.count // 2] + 1) // 2
        starts, number = distinct(found.first_equal[exact])
        equal = [self._places[self._geometry[place]] for place in self._near.order[starts].tolist()]
        duration[exact] = np.array([_median([self._duration[n] for n in places]) for places in equal], np.int64)[number]
        nearest = np.where(exact, found.first_equal, found.rows[:, 0])
        bucket = np.searchsorted(self._near.bounds, nearest, side="right") - 1
        return np.stack([duration, resolution, np.where(exact, EQUAL, NEAREST), bucket])


class _Walk:
    """A place in the recorded order, and which passes it has been to: none is the duration of two others."""

    def __init__(self, passes: int) -> None:
        self.next = 0
        self.used = bytearray(passes)

    def use(self, place: int) -> None:
        self.used[place] = True
        self.next = place + 1


def _nearest(places: Sequence[int], at: int) -> int | None:
    """The place nearest to ``at`` (of two, the later one), None where none lies within the window."""
    above = bisect_left(places, at)
    near = sorted(places[max(0, above - 1) : above + 1], key=lambda place: (abs(place - at), -place))
    return near[0] if near and abs(near[0] - at) <= WINDOW_PASSES else None


def _alike(one: Geometry, other: Geometry) -> bool:
    """Whether each count of tokens differs by no more than NEARLY_SHARE of the larger."""
    return all(abs(one[n] - other[n]) <= NEARLY_SHARE * max(one[n], other[n]) for n in (1, 2, 4))


def _median(values: list[int]) -> int:
    """The middle value; of two the mean, rounded."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half] + 1) // 2
