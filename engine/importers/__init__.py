"""Measured formats turned into run bundles: one module or package each, registered here (docs/importers.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import GapscopeError
from engine.importers.recording import import_recording, import_sweep
from engine.importers.recording.files import RUN_SCHEMA, SWEEP_SCHEMA, identity_schema

__all__ = ["IMPORTERS", "Importer", "import_any", "import_recording", "import_sweep"]


@dataclass(frozen=True)
class Importer:
    """A measured format: what it is, how to tell it by its content, and how to import it.

    ``run(path, store, trace=None, title=None, skip_bad_rows=False)`` returns the run's id.
    """

    name: str
    describes: str
    recognises: Callable[[Path], bool]
    run: Callable[..., str]


IMPORTERS: tuple[Importer, ...] = (
    Importer(
        "recording",
        f"a folder whose identity.json has the schema {RUN_SCHEMA}: client rows, passes and KV events of one run",
        lambda path: identity_schema(path) == RUN_SCHEMA,
        import_recording,
    ),
    Importer(
        "sweep",
        f"a folder whose identity.json has the schema {SWEEP_SCHEMA}: passes of known shapes",
        lambda path: identity_schema(path) == SWEEP_SCHEMA,
        import_sweep,
    ),
)


def import_any(path: Path, store: Path, **options: Any) -> str:
    """Import whatever ``path`` holds, told by its content, into ``store``; returns the run's id.

    Options are those of :class:`Importer`'s ``run``.

    Raises:
        GapscopeError: nothing there, a format that no importer knows, or as the importer says.
    """
    path, store = Path(path), Path(store)
    if not path.exists():
        raise GapscopeError(f"{path} does not exist: give the folder or file to import.")
    for importer in IMPORTERS:
        if importer.recognises(path):
            return importer.run(path, store, **options)
    schema = identity_schema(path)
    says = f" Its identity.json has the schema {schema!r}." if schema else ""
    known = "; ".join(f"{i.name}: {i.describes}" for i in IMPORTERS)
    raise GapscopeError(f"{path} is in no format that can be imported.{says} Known are {known}.")
