"""Captures of forward passes among the files of an input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from engine.importers.clients.values import csv_head
from engine.importers.contract import Part, Use
from engine.importers.fpm.capture_identity import is_configuration
from engine.importers.fpm.captures import FORMS, capture_name, form_of
from engine.importers.fpm.load import import_capture, import_records
from engine.importers.fpm.records import SCHEMA, flat, looks_like_record
from engine.importers.messages import framing, peek
from engine.intake import InputFile, Intake
from engine.intake.rows import parse

_NOTE = "Passes without requests of a client; `gapscope attach RUN FILE` lays them under the run of the client."
_PEEKED = 100
_RANK = SCHEMA.get_field_index("dp_rank")
_WORKLOAD = {"workload_label", "request_index"}


class FpmImporter:
    """Streams are a run each, those of single ranks in one folder one run; so are the files of a reduced capture."""

    name = "fpm"
    describes = (
        "forward pass metrics: records as JSON Lines or msgpack, bare or of a recorder, and reduced captures in CSV "
        "(columns latency_ms and the shape of each pass)"
    )

    def find(self, intake: Intake) -> Sequence[Part]:
        """Captures first, then streams, in the order of the files."""
        parts = []
        captures: dict[str, list[InputFile]] = {}
        for file in intake.files:
            if form_of(file) is not None:
                captures.setdefault(file.folder, []).append(file)
        parts += [self._capture(intake, folder, files) for folder, files in captures.items()]
        return [*parts, *(self._streams(intake, files) for files in _by_capture(filter(is_stream, intake.files)))]

    def _streams(self, intake: Intake, files: list[InputFile]) -> Part:
        form = "JSON Lines" if framing(files[0].head) == "json" else "msgpack"
        name = files[0].base.partition(".")[0] if len(files) == 1 else capture_name(intake, files[0])
        return Part(
            format=self.name,
            tool="forward pass metrics",
            version="1" if any(_version(record) == 1 for record in peek(files[0])) else None,
            name=name,
            kind="sweep",
            side="engine",
            uses=tuple(Use(file, f"a record per pass, as {form}") for file in files),
            run=partial(import_records, intake, name, files),
            notes=(_NOTE,),
        )

    def _capture(self, intake: Intake, folder: str, files: list[InputFile]) -> Part:
        files = sorted(files, key=lambda file: (form_of(file), file.name))
        best = files[0]
        beside = [f for f in intake.files if f.folder == folder and f not in files]
        settings = [file for file in beside if is_configuration(parse(file.head)[0])]
        workloads = [file for file in beside if set(csv_head(file.head)) >= _WORKLOAD]
        place = form_of(best)
        assert place is not None
        name = capture_name(intake, best)
        return Part(
            format=self.name,
            tool="a reduced capture of forward passes",
            version=None,
            name=name,
            kind="sweep",
            side="engine",
            uses=(
                Use(best, f"a row per pass ({FORMS[place][0]})"),
                *(Use(file, "the configuration of the engine") for file in settings),
            ),
            run=partial(import_capture, intake, name, best, settings),
            ignores=(
                *((file.name, f"{best.base} says more of the same passes") for file in files[1:]),
                *(
                    (file.name, "the requests that were meant to be sent; the passes say what ran")
                    for file in workloads
                ),
                *((file.name, "the segment is a column of the passes") for file in beside if _is_segment(file)),
            ),
            notes=(_NOTE,),
        )


def is_stream(file: InputFile) -> bool:
    """Whether a file is a stream of records."""
    found = peek(file)
    return bool(found) and looks_like_record(found[0])


def _by_capture(files: Iterable[InputFile]) -> list[list[InputFile]]:
    """Streams that belong together: those of a folder that are of one rank each, every one of another."""
    folders: dict[str, list[InputFile]] = {}
    for file in files:
        folders.setdefault(file.folder, []).append(file)
    groups = []
    for held in folders.values():
        ranks = [_ranks(file) for file in held]
        apart = all(len(found) == 1 for found in ranks) and len(frozenset().union(*ranks)) == len(held)
        groups += [held] if apart else [[file] for file in held]
    return groups


def _ranks(file: InputFile) -> frozenset[int]:
    """The ranks that the first records name."""
    found = set()
    for value in peek(file, _PEEKED):
        try:
            found.add(flat(value)[0][_RANK])
        except ValueError:
            continue
    return frozenset(rank for rank in found if rank is not None)


def _version(record: object) -> object:
    inner = record.get("metrics", record) if isinstance(record, dict) else None
    return inner.get("version") if isinstance(inner, dict) else None


def _is_segment(file: InputFile) -> bool:
    return file.size < 64 and file.head.strip() in (b"sweep", b"real")
