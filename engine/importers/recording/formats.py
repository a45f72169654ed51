"""Recordings and sweeps among the files of an input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from engine.importers.contract import Options, Part, Use
from engine.importers.recording.content import trace_name
from engine.importers.recording.files import RUN_SCHEMA, SWEEP_SCHEMA, identity_schema
from engine.importers.recording.run import import_recording
from engine.importers.recording.sweep import import_sweep
from engine.intake import InputFile, Intake

_WHAT = {
    "identity.json": "engine, model, machine, phases",
    "requests.jsonl": "a row per request, with its chunks",
    "fpm.jsonl.gz": "forward passes with their batches",
    "kv_events.jsonl.gz": "KV events",
    "summary.json": "the recording's own figures, to check against",
    "shapes.jsonl": "the shapes of the sweep, to check against",
}


class _FolderImporter:
    """A folder whose ``identity.json`` names the schema of the format."""

    def __init__(self, name: str, describes: str, schema: str, kind: str, run: Callable[..., str]) -> None:
        self.name = name
        self.describes = describes
        self._schema = schema
        self._kind = kind
        self._run = run

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per folder with such an identity; a load generator's own folder is left to its importer."""
        return [self._part(intake, file) for file in intake.files if self._is_ours(file)]

    def _is_ours(self, file: InputFile) -> bool:
        if file.base != "identity.json" or self._schema.encode() not in file.head:
            return False
        try:
            record = orjson.loads(file.head)
        except orjson.JSONDecodeError:
            return True  # the import says what is wrong with it
        client = record.get("client")
        foreign = isinstance(client, dict) and client.get("name") == "aiperf"
        return record.get("schema") == self._schema and not foreign

    def _part(self, intake: Intake, file: InputFile) -> Part:
        folder = file.path.parent
        beside = [f for f in intake.files if f.folder == file.folder and f.base in _WHAT]
        uses = [Use(f, _WHAT[f.base]) for f in beside]
        if self._schema == RUN_SCHEMA:
            uses += [Use(f, "the workload that was played") for f in self._trace(intake, file)]
        return Part(
            format=self.name,
            tool="a recorder of this format",
            version=self._schema.rpartition("/")[2],
            name=folder.name,
            kind=self._kind,
            side="both",
            uses=tuple(uses),
            run=lambda store, options: self._import(folder, store, options),
        )

    @staticmethod
    def _trace(intake: Intake, identity: InputFile) -> list[InputFile]:
        """The file that the import takes for the trace, where it is among the files: beside the identity, or above."""
        try:
            name = trace_name(orjson.loads(identity.head))
        except orjson.JSONDecodeError:
            return []
        folder = identity.path.parent
        found = {f.path: f for f in intake.files}
        return [found[path] for path in (folder / name, folder.parent / name) if path in found][:1]

    def _import(self, folder: Path, store: Path, options: Options) -> str:
        options.step(None, f"reading {folder.name}")
        return self._run(folder, store, options.trace, options.title, options.skip_bad_rows)


RECORDINGS = _FolderImporter(
    "recording",
    f"a folder whose identity.json has the schema {RUN_SCHEMA}: client rows, passes and KV events of one run",
    RUN_SCHEMA,
    "measured",
    import_recording,
)
SWEEPS = _FolderImporter(
    "sweep",
    f"a folder whose identity.json has the schema {SWEEP_SCHEMA}: passes of known shapes",
    SWEEP_SCHEMA,
    "sweep",
    import_sweep,
)


def schema_hint(intake: Intake) -> str:
    """What an ``identity.json`` of a schema that nobody knows says, as a sentence; empty where there is none."""
    for file in intake.files:
        if file.base == "identity.json" and (schema := identity_schema(file.path.parent)):
            return f" Its identity.json has the schema {schema!r}."
    return ""
