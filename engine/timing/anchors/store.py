"""Anchors of a store: the files in its folder ``anchors``, an index of them, and which is nearest to a target."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from engine.errors import GapscopeError
from engine.timing.anchors import regime
from engine.timing.anchors.acceptance import Acceptance, judge
from engine.timing.anchors.artefact import Anchor, read_anchor, read_file
from engine.timing.anchors.target import Target

FOLDER, INDEX = "anchors", "index.json"
DEEPEST = 3
"""Levels of folders that are looked through."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*){0,2}")
WIDE_TP, WIDE_ANCHOR_TP = 4, 4
"""A target at least as wide takes an anchor of this width for choice; narrower ones their own."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One anchor of an index. ``name`` is its path below the folder, without the ending."""

    name: str
    digest: str
    signature: str
    axes: Mapping[str, str | None]
    tp: int | None
    pp: int | None
    ep: int | None
    attention_dp: int | None
    layers: int | None
    batches: tuple[int, ...]
    input_len: float | None
    size: int
    modified_ns: int


@dataclass(frozen=True)
class Ranked:
    """An anchor of a store and what of it applies to a target, nearest first."""

    anchor: Anchor
    acceptance: Acceptance


def index(store: Path) -> list[Entry]:
    """The anchors of a store by name, after its index was brought up to date.

    What is no anchor is left out. Entries made with other axes, and those of files that changed, are made again.
    """
    folder = store / FOLDER
    known = {(e.name, e.size, e.modified_ns): e for e in _read_index(folder / INDEX)}
    entries = []
    for path in _files(folder):
        name = path.relative_to(folder).with_suffix("").as_posix()
        with suppress(OSError):
            stat = path.stat()
            entry = known.get((name, stat.st_size, stat.st_mtime_ns))
            if entry is None:
                with suppress(GapscopeError):
                    entry = _entry(read_file(path, name), stat)
            if entry is not None and _NAME.fullmatch(name):
                entries.append(entry)
    if entries != list(known.values()):
        _write_index(folder / INDEX, entries)
    return entries


def unsound(store: Path) -> list[str]:
    """Why files of the folder are no anchors or cannot be used, a sentence each."""
    folder, wrong = store / FOLDER, []
    for path in _files(folder):
        name = path.relative_to(folder).with_suffix("").as_posix()
        try:
            read_file(path, name)
        except GapscopeError as error:
            wrong.append(str(error) if str(path) in str(error) else f"{path}: {error}")
            continue
        if not _NAME.fullmatch(name):
            wrong.append(f"{path}: {name!r} is no name of an anchor: expected letters, digits and . _ + -.")
    return wrong


def names(stores: Sequence[Path]) -> list[str]:
    """Names of all anchors of several stores, sorted."""
    return sorted({entry.name for store in stores for entry in index(store)})


def load(name: str, stores: Sequence[Path]) -> Anchor:
    """The anchor of that name.

    Raises:
        GapscopeError: there is none, its file is no anchor (the reason is said), or two stores have different ones.
    """
    if not _NAME.fullmatch(name):
        raise GapscopeError(f"{name!r} is no name of an anchor: expected a name, not a path (`gapscope anchor list`).")
    found: dict[str, Anchor] = {}
    for store in stores:
        path = store / FOLDER / f"{name}.json"
        if path.is_file():
            anchor = read_file(path, name)
            found[anchor.digest] = anchor
    if len(found) > 1:
        raise GapscopeError(f"Two stores have an anchor {name}, and they differ: rename one of them.")
    if not found:
        near = get_close_matches(name, names(stores), n=1, cutoff=0.3)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise GapscopeError(f"There is no anchor {name!r}.{hint} `gapscope anchor list` names all of them.")
    return next(iter(found.values()))


def place(store: Path, name: str) -> Path:
    """Where an anchor of that name goes.

    Raises:
        GapscopeError: it is no name.
    """
    if not _NAME.fullmatch(name) or name == INDEX.removesuffix(".json"):
        raise GapscopeError(
            f"{name!r} is no name of an anchor: expected letters, digits and . _ + -, at most three of them behind /."
        )
    return store / FOLDER / f"{name}.json"


def keep(document: Mapping[str, Any], store: Path, name: str) -> Path:
    """Write an artefact into a store; its name must be free, or taken by an equal one.

    Raises:
        GapscopeError: another anchor has the name, or it cannot be written.
    """
    path = place(store, name)
    anchor = read_anchor(document, name)
    if path.exists() and read_file(path, name).digest != anchor.digest:
        raise GapscopeError(f"{path} holds another anchor: choose another name.")
    write(document, path)
    return path


def write(document: Mapping[str, Any], path: Path) -> None:
    """Write JSON beside its place and move it there, so that no half file is ever seen."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        hidden.replace(path)
    except OSError as error:
        with suppress(OSError):
            hidden.unlink(missing_ok=True)
        raise GapscopeError(f"Cannot write {path}: {error.strerror or error}; choose another place.") from None


def ranked(
    stores: Sequence[Path], target: Target, allow: Collection[str] = (), only: Anchor | None = None
) -> list[Ranked]:
    """Every anchor of the stores (or one of them) with what of it applies to the target, nearest first."""
    if only is not None:
        return [Ranked(only, judge(only, target, allow))]
    found = []
    for name in names(stores):
        try:
            anchor = load(name, stores)
        except GapscopeError:
            continue
        found.append(Ranked(anchor, judge(anchor, target, allow)))

    def order(one: Ranked) -> tuple[Any, ...]:
        unknown = sum(row.state == "unknown" for row in one.acceptance.rows)
        return *gaps(one.anchor, one.acceptance.distance, target), unknown, one.anchor.name

    return sorted(found, key=order)


def nearest(stores: Sequence[Path], target: Target, allow: Collection[str] = ()) -> Ranked | None:
    """The nearest anchor, whether it applies or not; None where there is none.

    Raises:
        GapscopeError: the stores hold anchors of several models, and which is the target's cannot be told.
    """
    found = ranked(stores, target, allow)
    models = {regime.of_anchor(one.anchor)["model"] for one in found}
    if len(models) > 1:
        own = target.axes.get("model")
        tied = {model for model in models if regime.same_model(model, own)}
        if own in tied:  # containment may tie more than the one of that very name
            tied = {own}
        if len(tied) != 1 and "model" not in allow:
            told = ", ".join(sorted(model or "unknown" for model in models))
            raise GapscopeError(
                f"There are anchors of several models ({told}), and the target is {own or 'of an unknown one'}: name "
                "the anchor."
            )
    return found[0] if found else None


def gaps(anchor: Anchor, distance: int, target: Target) -> tuple[float, float, int, float]:
    """What anchors are sorted by: axes that differ, fit of the width, disagreement on experts, the rest of the way.

    Spreading experts or not is another set of kernels, which no closeness of widths outweighs.
    """
    own = [anchor.tp or 1, anchor.pp or 1, anchor.ep or 1]
    asked = [target.tp or own[0], target.pp or own[1], target.ep or own[2]]
    wanted = WIDE_ANCHOR_TP if asked[0] >= WIDE_TP else asked[0]
    away = float(sum(abs(here - there) for here, there in zip(own, asked, strict=True)))
    layers = None if target.deployment is None else target.deployment.model.layers
    if layers and anchor.layers:
        away += abs(anchor.layers - layers) / layers
    return float(distance), float(abs(own[0] - wanted)), int((own[2] > 1) != (asked[2] > 1)), away


def _files(folder: Path) -> Iterator[Path]:
    """JSON files of a folder, at most :data:`DEEPEST` levels deep, in order of their paths."""
    for depth in range(DEEPEST):
        for path in sorted(folder.glob("*/" * depth + "*.json")):
            if not (depth == 0 and path.name == INDEX) and not path.name.startswith(".") and path.is_file():
                yield path


def _entry(anchor: Anchor, stat: os.stat_result) -> Entry:
    axes = regime.of_anchor(anchor)
    return Entry(
        name=anchor.name,
        digest=anchor.digest,
        signature=regime.signature(axes),
        axes=axes,
        tp=anchor.tp,
        pp=anchor.pp,
        ep=anchor.ep,
        attention_dp=anchor.attention_dp,
        layers=anchor.layers,
        batches=tuple(point.batch for point in anchor.sweep),
        input_len=anchor.input_len,
        size=stat.st_size,
        modified_ns=stat.st_mtime_ns,
    )


def _read_index(path: Path) -> list[Entry]:
    """Entries of an index made with these axes; none where it was made with others or cannot be read."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["axes_version"] != regime.AXES_VERSION:
            return []
        return [Entry(**{**entry, "batches": tuple(entry["batches"])}) for entry in record["anchors"]]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def _write_index(path: Path, entries: Sequence[Entry]) -> None:
    """Keep the index; a store that cannot be written to is indexed anew each time."""
    if path.parent.is_dir():
        with suppress(GapscopeError):
            write({"axes_version": regime.AXES_VERSION, "anchors": [asdict(entry) for entry in entries]}, path)
