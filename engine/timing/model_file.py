"""The timing model as a file: canonical JSON that carries its own digest."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.errors import GapscopeError

KIND = "gapscope-timing-fpm"
VERSION = 1
ANCHOR_KIND = "gapscope-timing-anchor"
TABLE_KIND = "gapscope-timing-table"
CORRECTION_KIND = "gapscope-timing-correction"
VERSIONS = {KIND: VERSION, ANCHOR_KIND: 1, TABLE_KIND: 1, CORRECTION_KIND: 1}
"""Kinds of timing models that are files, each with the version that this program reads and writes."""


def with_digest(model: Mapping[str, Any]) -> dict[str, Any]:
    """``model`` with ``digest``: the SHA-256 over its canonical JSON without that field."""
    return {**model, "digest": _digest(model)}


def _digest(model: Mapping[str, Any]) -> str:
    bare = {k: v for k, v in model.items() if k != "digest"}
    return hashlib.sha256(_canonical(bare).encode()).hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def save_model(model: Mapping[str, Any], path: Path | str) -> Path:
    """Write a model beside its final place and rename it there, so that no half file is ever seen."""
    path = Path(path)
    check_model(model, str(path))
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden.write_text(_canonical(model) + "\n", encoding="utf-8")
        hidden.replace(path)
    except OSError as error:
        with suppress(OSError):
            hidden.unlink(missing_ok=True)
        raise GapscopeError(
            f"Cannot write the timing model to {path}: {error.strerror or error}; choose another place."
        ) from None
    return path


def load_model(path: Path | str) -> dict[str, Any]:
    """Read and check a model.

    Raises:
        GapscopeError: no such file, not JSON, another kind or version, or altered since it was written.
    """
    try:
        model = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise GapscopeError(
            f"Cannot read the timing model {path}: {error.strerror or error}; fit one with `gapscope fit`."
        ) from None
    except (ValueError, UnicodeDecodeError) as error:
        raise GapscopeError(
            f"Timing model {path} is not JSON ({error}): expected a file that `gapscope fit` wrote."
        ) from None
    check_model(model, str(path))
    return dict(model)


def check_model(model: Any, where: str = "given", kind: str | None = None) -> None:
    """Raise GapscopeError, in one sentence, unless ``model`` is one that this version wrote and nobody altered.

    ``kind`` is the one that is expected; None takes each of :data:`VERSIONS`.
    """
    if not isinstance(model, Mapping) or "kind" not in model:
        raise GapscopeError(f"Timing model {where} has no kind: expected a file that `gapscope fit` wrote.")
    kinds = VERSIONS if kind is None else {kind: VERSIONS[kind]}
    if model["kind"] not in kinds:
        told = " or ".join(map(repr, kinds))
        raise GapscopeError(f"Timing model {where} is of kind {model['kind']!r}: expected {told}; make it again.")
    if model.get("version") != kinds[model["kind"]]:
        raise GapscopeError(
            f"Timing model {where} has version {model.get('version')!r}: this program reads version "
            f"{kinds[model['kind']]}; make it again."
        )
    try:
        told = _digest(model)
    except (TypeError, ValueError):
        told = ""
    if model.get("digest") != told:
        raise GapscopeError(
            f"Timing model {where} was altered after it was made: its digest does not match; make it again."
        )
