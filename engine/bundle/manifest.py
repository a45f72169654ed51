"""``run.json``: what it must hold, its canonical form, and the id and seal that follow from it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from engine.bundle.schema import KINDS, PHASES, REQUIRED_TABLES, SCHEMA_VERSION
from engine.errors import GapscopeError
from engine.identity import Identity

FILE_NAME = "run.json"
RUN_ID = re.compile(r"(?P<slug>[a-z0-9][a-z0-9_-]{0,63})-(?P<content>[0-9a-f]{12})")

VERDICTS = ("pass", "fail", "unknown")

# Not part of the id: a name, a moment, the machine's own figures, and what is computed from the rest.
_OUTSIDE_THE_ID = ("run_id", "title", "created_unix_ns", "host", "seal")

_SHAPE: dict[str, tuple[type, ...]] = {
    "schema_version": (int,),
    "run_id": (str,),
    "kind": (str,),
    "title": (str,),
    "created_unix_ns": (int,),
    "profile_start_unix_ns": (int, type(None)),
    "clocks": (dict,),
    "identity": (dict,),
    "phases": (list,),
    "ledger": (dict, type(None)),
    "lineage": (dict,),
    "qualification": (list,),
    "files": (dict,),
    "host": (dict,),
    "seal": (str,),
}


@dataclass(frozen=True, slots=True)
class Phase:
    """A span of the run in nanoseconds from profile start; ``end_ns`` is exclusive."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Check:
    """One question asked of the run itself: ``verdict`` is pass, fail or unknown, ``detail`` says why in words."""

    check: str
    verdict: str
    detail: str = ""


def to_json(value: Any) -> Any:
    """``value`` as it will be read back: tuples become lists, numpy scalars numbers.

    Raises:
        GapscopeError: something that JSON cannot hold (NaN and infinity included).
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain)
        text.encode()
    except (TypeError, ValueError) as problem:
        raise GapscopeError(f"{FILE_NAME} cannot hold {value!r:.200}: {problem}.") from None
    return json.loads(text)


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return asdict(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a numpy scalar
        return value.item()
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def content_of(manifest: Mapping[str, Any]) -> str:
    """The 12 hex digits of the run id: they name content, not encoding, wording or time of writing."""
    named = {key: value for key, value in manifest.items() if key not in _OUTSIDE_THE_ID}
    named["files"] = {
        name: {key: value for key, value in entry.items() if key in ("content", "rows")}
        for name, entry in manifest["files"].items()
    }
    return _sha256(named)[:12]


def seal_of(manifest: Mapping[str, Any]) -> str:
    """SHA-256 over everything in ``run.json`` but the seal itself."""
    return _sha256({key: value for key, value in manifest.items() if key != "seal"})


def _sha256(value: Mapping[str, Any]) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def serialise(manifest: Mapping[str, Any]) -> bytes:
    """The bytes of ``run.json``. There is one form, so that any changed byte shows."""
    return (json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def parse(data: bytes, where: str) -> dict[str, Any]:
    """The manifest in ``data``, well formed and of a version that this program reads.

    Raises:
        GapscopeError: not JSON, a key missing or of the wrong type, a newer schema, a required table missing.
    """
    bad = f"Run {where}: {FILE_NAME} is malformed"
    try:
        manifest = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as problem:  # bad UTF-8 is a ValueError as well
        raise GapscopeError(f"{bad} ({problem}). Restore the folder from its source or remove it.") from None
    if not isinstance(manifest, dict):
        raise GapscopeError(f"{bad}: expected an object, found {type(manifest).__name__}.")
    version = manifest.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise GapscopeError(
            f"Run {where} has bundle schema {version}; this gapscope reads up to {SCHEMA_VERSION}. Update gapscope."
        )
    for key, types in _SHAPE.items():
        if key not in manifest:
            raise GapscopeError(f"{bad}: {key} is missing.")
        value = manifest[key]
        if not isinstance(value, types) or isinstance(value, bool):
            expected = " or ".join("null" if t is type(None) else t.__name__ for t in types)
            raise GapscopeError(f"{bad}: {key} is {type(value).__name__}, expected {expected}.")
    if version != SCHEMA_VERSION:
        raise GapscopeError(f"{bad}: schema_version is {version}, expected 1 to {SCHEMA_VERSION}.")
    check_parts(manifest, bad)
    return manifest


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def check_parts(manifest: Mapping[str, Any], bad: str) -> None:
    """Each entry of each part for itself; ``bad`` begins the sentence of an error."""
    kind = manifest["kind"]
    if kind not in KINDS:
        raise GapscopeError(f"{bad}: kind is {kind!r}, expected one of {', '.join(KINDS)}.")
    if not manifest["title"].strip():
        raise GapscopeError(f"{bad}: title is empty.")
    try:
        Identity.from_json(manifest["identity"])
    except GapscopeError as problem:
        raise GapscopeError(f"{bad}: {problem}") from None
    for phase, row in (manifest["ledger"] or {}).items():
        if not isinstance(row, dict):
            raise GapscopeError(f"{bad}: ledger[{phase!r}] is {row!r:.80}, expected an object of counts.")
        for name, count in row.items():
            if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
                raise GapscopeError(f"{bad}: ledger[{phase!r}] has {name} {count!r:.80}, expected a count or null.")
    for phase in manifest["phases"]:
        _entry(phase, {"name": str, "start_ns": int, "end_ns": int}, "phases", bad)
        if phase["name"] not in PHASES:
            raise GapscopeError(f"{bad}: phase {phase['name']!r}, expected one of {', '.join(PHASES)}.")
        if phase["end_ns"] < phase["start_ns"]:
            raise GapscopeError(f"{bad}: phase {phase['name']} ends before it starts.")
    for check in manifest["qualification"]:
        _entry(check, {"check": str, "verdict": str, "detail": str}, "qualification", bad)
        if check["verdict"] not in VERDICTS:
            raise GapscopeError(f"{bad}: verdict {check['verdict']!r}, expected one of {', '.join(VERDICTS)}.")
    for name, entry in manifest["files"].items():
        _entry(entry, {"content": str, "rows": int, "sha256": str, "bytes": int}, f"files[{name!r}]", bad)
        if not re.fullmatch(r"[a-z][a-z0-9_]*\.parquet", name):
            raise GapscopeError(f"{bad}: {name!r} is no table's file name.")
    for table in REQUIRED_TABLES[kind]:
        if f"{table}.parquet" not in manifest["files"]:
            raise GapscopeError(f"{bad}: a {kind} run must have {table}.parquet.")


def _entry(entry: Any, shape: dict[str, type], where: str, bad: str) -> None:
    if not isinstance(entry, dict):
        raise GapscopeError(f"{bad}: an entry of {where} is not an object.")
    for key, type_ in shape.items():
        if not isinstance(entry.get(key), type_) or isinstance(entry.get(key), bool):
            raise GapscopeError(f"{bad}: {key} in {where} is {entry.get(key)!r}, expected {type_.__name__}.")
