"""A client's files and its engine's in one folder: one run instead of several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from engine.bundle import Bundle, BundleWriter, Check, open_bundle, working_folder
from engine.importers.attach.client_side import batches
from engine.importers.attach.engine_side import NotAttachable
from engine.importers.attach.write import attach_streams
from engine.importers.contract import Options, Part
from engine.importers.passes_and_events import together


def is_engine_part(part: Part) -> bool:
    """Whether a part holds what an engine published, and no client's requests."""
    return part.side == "engine"


def _is_client_part(part: Part) -> bool:
    return part.side == "client" and part.kind == "measured"


def join_parts(parts: Sequence[Part]) -> list[Part]:
    """The parts, those of one client and its engine in one folder as one; with several clients nothing is joined.

    Without a client, the passes of an engine and its KV events in one folder are one, too.
    """
    out: list[Part] = []
    for part in parts:
        near = [other for other in parts if _folder(other) == _folder(part)]
        clients = [other for other in near if _is_client_part(other)]
        engines = [other for other in near if is_engine_part(other)]
        passes, events = [p for p in engines if p.kind == "sweep"], [p for p in engines if p.kind != "sweep"]
        if not clients and len(passes) == 1 and events and part in engines:
            out += [together(part, events)] if part is passes[0] else []
        elif not clients or not engines or part not in (*clients, *engines):
            out.append(part)
        elif len(clients) > 1:
            out.append(_noted(part) if is_engine_part(part) else part)
        elif part is clients[0]:
            out.append(_joined(part, engines))
    return out


def _folder(part: Part) -> str:
    """The folder of a part: the outermost of its files'."""
    return min((use.file.folder for use in part.uses), key=lambda name: (name.count("/"), len(name)), default="")


def _noted(part: Part) -> Part:
    note = "several runs of clients lie in this folder: say which one it belongs to with `gapscope attach RUN FILE`"
    return replace(part, notes=(*part.notes, note))


def _joined(client: Part, engines: Sequence[Part]) -> Part:
    what = " and ".join(dict.fromkeys(part.format for part in engines))
    return replace(
        client,
        format=" + ".join(dict.fromkeys((client.format, *(part.format for part in engines)))),
        uses=(*client.uses, *(use for part in engines for use in part.uses)),
        ignores=(*client.ignores, *(left for part in engines for left in part.ignores)),
        notes=(*client.notes, f"{what} of the same folder become part of the run, on the client's clock"),
        run=lambda store, options: _import(client, engines, store, options),
    )


def _import(client: Part, engines: Iterable[Part], store: Path, options: Options) -> str:
    with working_folder(store) as scratch:
        apart = scratch / "apart"
        run = open_bundle(apart / client.run(apart, options))
        streams: list[Bundle] = []
        files: dict[str, str] = {}
        for part in engines:
            streams.append(open_bundle(apart / part.run(apart, replace(options, title=None))))
            files |= {use.file.name: use.file.sha256 for use in part.uses}
        try:
            return attach_streams(run, streams, store, scratch, options, files=files)
        except NotAttachable as problem:
            return _alone(run, store, f"{', '.join(files)}: {problem}")


def _alone(run: Bundle, store: Path, problem: str) -> str:
    """The client's run by itself, with a failed check that says why its engine's files are no part of it."""
    with BundleWriter(store, run.kind, run.run_id.rpartition("-")[0], run.title, run.identity) as writer:
        for table in run.tables:
            writer.write_table(table, batches(run, table))
        return writer.seal(
            phases=run.phases,
            never_issued=((run.ledger or {}).get("total") or {}).get("never_issued"),
            lineage=run.lineage,
            qualification=[
                *(check for check in run.qualification if check.check != "ledger_balances"),
                Check("streams_attached", "fail", problem),
            ],
            profile_start_unix_ns=run.manifest["profile_start_unix_ns"],
            clocks=run.manifest["clocks"],
        )
