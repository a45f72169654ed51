"""Presets: parts and models as data files, packaged or a user's, that can inherit from each other."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from engine.deployment.huggingface import is_huggingface, shape_mapping
from engine.deployment.model import ModelShape
from engine.deployment.part import Part
from engine.deployment.reading import read_record
from engine.deployment.sound import check_model
from engine.errors import GapscopeError, did_you_mean

Kind = Literal["parts", "models"]

PACKAGED = Path(__file__).parent
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_LARGEST_BYTES = 1 << 20
_INHERIT = ("bases", "extends")
_Files = Mapping[str, Sequence[Path]]


class PresetFolders(list[Path]):
    """Where a user's presets lie, and presets as a record has them: under their names these are what is meant."""

    def __init__(self, folders: Sequence[Path], recorded: Mapping[tuple[Kind, str], Mapping[str, Any]]) -> None:
        super().__init__(folders)
        self.recorded = {(kind, name.lower()): dict(values) for (kind, name), values in recorded.items()}


def preset_folders(stores: Sequence[Path], timing: Mapping[str, Any] | None = None) -> PresetFolders:
    """Where the user's presets of some stores lie: what ``load_*`` and ``*_names`` take as ``folders``.

    ``timing`` is the lineage of the timing of a replay that is varied, played again or priced: the parts and models
    that it holds with their figures stay what they were when it was made, whatever became of the presets.
    """
    return PresetFolders([store / "presets" for store in stores], _recorded(timing or {}))


def changed_presets(folders: PresetFolders, knobs: Mapping[str, Any]) -> list[str]:
    """A sentence for each recorded part or model that ``knobs`` name and that its preset no longer is.

    Where a figure is from is no figure.
    """
    named = {str(knobs[name]).lower() for name in ("part", "model_preset", "draft_preset")}
    found = []
    for (kind, lowered), recorded in folders.recorded.items():
        if lowered not in named:
            continue
        one, name = kind.removesuffix("s"), recorded["name"]
        load = load_part if kind == "parts" else load_model
        try:
            now = json.loads(json.dumps(asdict(load(name, list(folders)))))
        except GapscopeError:
            found.append(f"There is no preset of {one} {name} any more: its recorded figures are used.")
            continue
        differing = [key for key in {**now, **recorded} if key != "sources" and now.get(key) != recorded.get(key)]
        if differing:
            key = differing[0]
            more = f", and {len(differing) - 1} more" if len(differing) > 1 else ""
            found.append(
                f"Preset of {one} {name} was changed ({key}: {recorded.get(key)} recorded, {now.get(key)} now{more}): "
                "the recorded figures are used."
            )
    return found


def _recorded(timing: Mapping[str, Any]) -> dict[tuple[Kind, str], Mapping[str, Any]]:
    """Parts and models in what a source said of itself, and in what it said of its fallback."""
    found: dict[tuple[Kind, str], Mapping[str, Any]] = {}
    for told in (timing.get("fallback") or {}, timing):
        deployment, drafting = told.get("deployment") or {}, told.get("drafting") or {}
        records: tuple[tuple[Kind, Any], ...] = (
            ("models", drafting.get("shape")),
            ("parts", deployment.get("part")),
            ("models", deployment.get("model")),
        )
        found |= {(kind, str(values["name"])): values for kind, values in records if values}
    return found


def part_names(folders: Sequence[Path] = ()) -> list[str]:
    """Names of all parts, sorted; ``folders`` hold a user's (``parts/*.toml`` and ``*.json`` in each)."""
    return _names("parts", folders)


def model_names(folders: Sequence[Path] = ()) -> list[str]:
    """Names of all models, sorted; ``folders`` hold a user's (``models/*.toml`` and ``*.json`` in each)."""
    return _names("models", folders)


def load_part(name: str, folders: Sequence[Path] = ()) -> Part:
    """The part of that name, in upper or lower case.

    Raises:
        GapscopeError: there is none (the nearest is named), or its file is not sound.
    """
    name, values, where = _load("parts", name, folders)
    return read_record(Part, values, where, name=name)


def load_model(name: str, folders: Sequence[Path] = ()) -> ModelShape:
    """The model of that name, in upper or lower case.

    From a preset, or from a Hugging Face ``config.json`` that is kept as ``models/NAME.json``.

    Raises:
        GapscopeError: there is none (the nearest is named), or its file is not sound.
    """
    name, values, where = _load("models", name, folders)
    return check_model(read_record(ModelShape, values, where, name=name), where)


def _names(kind: Kind, folders: Sequence[Path]) -> list[str]:
    kept = folders.recorded if isinstance(folders, PresetFolders) else {}
    return sorted({*_files(kind, folders), *(str(values["name"]) for (of, _), values in kept.items() if of == kind)})


def _files(kind: Kind, folders: Sequence[Path]) -> dict[str, list[Path]]:
    """The files of each name, the packaged one first."""
    found = {path.stem: [path] for path in sorted((PACKAGED / kind).glob("*.toml"))}
    for folder in folders:
        for path in sorted((folder / kind).glob("*")):
            if path.suffix in (".toml", ".json"):
                found.setdefault(path.stem, []).append(path)
    return found


def _load(kind: Kind, name: str, folders: Sequence[Path]) -> tuple[str, dict[str, Any], str]:
    """A preset's name as its file is spelled, what it says, and how to call it in a message."""
    kept = folders.recorded.get((kind, name.lower())) if isinstance(folders, PresetFolders) else None
    if kept is not None:
        own = {key: value for key, value in kept.items() if key != "name"}
        return str(kept["name"]), own, f"The recorded {kind.removesuffix('s')} {kept['name']}"
    files = _files(kind, folders)
    name = _spelled(name, files)
    values = _inherit(kind, name, files, ())
    return name, values, f"Preset {kind}/{files[name][0].name}"


def _spelled(name: str, files: _Files) -> str:
    """The name as its file has it; itself where none, or more than one, differs from it in case alone."""
    if name in files:
        return name
    alike = [known for known in files if known.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else name


def _inherit(kind: Kind, name: str, files: _Files, trail: tuple[str, ...]) -> dict[str, Any]:
    """What a file says, over what those that it names say: later ones win, then the file itself."""
    name = _spelled(name, files)
    if name in trail:
        circle = " -> ".join([*trail[trail.index(name) :], name])
        raise GapscopeError(f"Presets of {kind} inherit in a circle: {circle}.")
    path = _named(kind, name, files, trail)
    own = _parse(path)
    merged: dict[str, Any] = {}
    for word in _INHERIT:
        for base in _base_names(own.pop(word, []), word, path):
            merged = _merge(merged, _inherit(kind, base, files, (*trail, name)))
    if kind == "models" and is_huggingface(own):
        own = shape_mapping(own, f"{path.name}, a Hugging Face config")
    if merged and not path.is_relative_to(PACKAGED):
        own = own | {"sources": _own_sources(own, f"preset {name}")}
    return _merge(merged, own)


def _own_sources(own: Mapping[str, Any], otherwise: str) -> Any:
    """Where the figures of a file are from: what it changes has no longer the source that was inherited."""
    stated = own.get("sources", {})
    if not isinstance(stated, Mapping):
        return stated  # refused where the record is read
    rest, sources = stated.get("*", otherwise), dict(stated)
    for key, value in own.items():
        inner = value if isinstance(value, Mapping) and not all(str(name).isdigit() for name in value) else {}
        if key != "sources" and key not in stated:
            sources |= {name: rest for name in ([f"{key}.{field}" for field in inner] or [key]) if name not in stated}
    return sources


def _named(kind: Kind, name: str, files: _Files, trail: tuple[str, ...]) -> Path:
    """The one file of that name: a user's may not have a packaged one's, so that a name means the same in every store.

    Raises:
        GapscopeError: there is none, or several that differ.
    """
    if name in files:
        path, *others = files[name]
        for other in others:
            if path.is_relative_to(PACKAGED):
                raise GapscopeError(f"{other} has the name of a packaged preset: give it another.")
            if _bytes(path) != _bytes(other):
                raise GapscopeError(f"{path} and {other} have one name and differ: rename one of them.")
        return path
    one = kind.removesuffix("s")
    if not _NAME.fullmatch(name):
        raise GapscopeError(f"{name!r} is no name of a {one}: expected a name, not a path, such as {min(files)}.")
    by = f" (named by {trail[-1]})" if trail else ""
    raise GapscopeError(
        f"There is no {one} {name!r}{by}.{did_you_mean(name, files)} `gapscope {one} list` names all of them."
    )


def _base_names(value: Any, word: str, path: Path) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
        raise GapscopeError(f"{path}: {word} is {value!r}, expected the name of a preset or a list of names.")
    return names


def _parse(path: Path) -> dict[str, Any]:
    data = _bytes(path)
    try:
        text = data.decode("utf-8")
        value = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise GapscopeError(f"{path} is not valid {path.suffix[1:].upper()} ({error}).") from error
    if not isinstance(value, dict):
        raise GapscopeError(f"{path} holds {type(value).__name__}: expected one object.")
    return value


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise GapscopeError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(data) > _LARGEST_BYTES:
        raise GapscopeError(f"{path} is larger than {_LARGEST_BYTES:,} bytes: expected a preset.")
    return data


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged
