"""A sweep or a sensitivity as one job: its points one after the other, each an ordinary run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dashboard import jobs
from dashboard.jobs.playing import Player
from dashboard.jobs.standing import Standing, in_folders
from dashboard.sweeps.plan import Point, key_of, record_of, said
from engine.bundle import Bundle
from engine.errors import GapscopeError, UnwritableStore

DOES = "sweep"
SLUG = "point"
Told = Callable[[int, str, float], None]
"""Called with the number of points that are done, what is being done, and the share of the whole."""
Made = Callable[[Sequence[str]], None]
"""Called with the ids of the points that are complete."""


def spec(base: str, points: Sequence[Point], fit: Sequence[str], stores: Sequence[Path], title: str) -> dict[str, Any]:
    """The job that plays these points; those that contradict themselves are left out, and equal ones played once."""
    playable = {key_of(dict(point.changes)): dict(point.changes) for point in points if not point.why}
    return {
        "do": DOES,
        "base": base,
        "points": list(playable.values()),
        "fit": list(fit),
        "title": title,
        "stores": [str(store.resolve()) for store in stores],
    }


def run(folder: Path, spec: Mapping[str, Any], store: Path) -> dict[str, Any]:
    """Do it; complete points stay whatever becomes of the others."""

    def told(done: int, words: str, share: float) -> None:
        of = len(spec["points"])
        jobs.write_json(folder / "progress.json", {"words": words, "share": share, "done": done, "of": of})

    def made(run_ids: Sequence[str]) -> None:
        jobs.write_json(folder / "made.json", {"run_ids": list(run_ids)})

    stores = [Path(text) for text in spec["stores"]]
    found = play(spec["base"], spec["points"], spec.get("fit") or (), stores, store, told, made)
    return jobs.several("points", found, [said(one["changes"]) for one in found], points=found)


def play(
    base: str,
    points: Sequence[Mapping[str, Any]],
    fit: Sequence[str],
    stores: Sequence[Path],
    store: Path,
    told: Told,
    made: Made | None = None,
) -> list[dict[str, Any]]:
    """Every point with its run, or with the sentence why there is none.

    One that is in the stores is not played again, be it as a point or as another replay that it would only repeat;
    ``found`` says of each whether it was.

    Args:
        base: the run that is played with other knobs.
        points: what each of them changes.
        fit: passes to fit the timing on, where the base brings none.
        stores: where the runs lie.
        store: the folder that gets the points.
        told: see :data:`Told`.
        made: see :data:`Made`.

    Raises:
        GapscopeError: the base cannot be played at all, or the store cannot be written.
    """
    player, replays = Player(base, fit, stores, store), in_folders(stores)
    known = _points(replays)
    standing = Standing(player.base, stores, replays, player.model, _sound, fit)
    name = player.base.run_id.rpartition("-")[0]
    found: list[dict[str, Any]] = []
    for number, changes in enumerate(points):
        record = record_of(player.base.run_id, changes, fit)
        where = f"point {number + 1} of {len(points)}, {said(changes)}"
        told(number, where, number / len(points))

        def progress(words: str, share: float | None, number: int = number, where: str = where) -> None:
            told(number, f"{where}: {words}", (number + (share or 0.0)) / len(points))

        run_id, why = known.get(key_of(record)) or standing.find(changes), ""
        stood = run_id is not None
        if run_id is None:
            try:
                title = f"{name}: {said(changes)}"
                run_id = player.play(changes, title, progress, slug=SLUG, point=record)
            except UnwritableStore:
                raise
            except GapscopeError as error:
                why = str(error)
        found.append({"changes": dict(changes), "run_id": run_id, "why": why, "found": stood})
        if made:
            made([one["run_id"] for one in found if one["run_id"]])
    return found


def in_stores(stores: Sequence[Path]) -> dict[str, str]:
    """The sound points of the stores: run ids by what their lineage says."""
    return _points(in_folders(stores))


def _points(runs: Sequence[Bundle]) -> dict[str, str]:
    told = ((run.lineage.get("point"), run) for run in runs)
    return {key_of(point): run.run_id for point, run in told if isinstance(point, Mapping) and _sound(run)}


def _sound(run: Bundle) -> bool:
    return not run.verify()


def latest(store: Path, points: Mapping[str, Any]) -> jobs.Job | None:
    """The newest job that was asked for with this spec."""
    return next((job for job in jobs.jobs_about(store, do=DOES) if job.spec == points), None)
