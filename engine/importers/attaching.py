"""Files of an engine attached to a run: the files are imported by whoever knows them, then laid under the run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from engine.bundle import Bundle, open_bundle, working_folder
from engine.errors import GapscopeError
from engine.importers import plan_import
from engine.importers.attach.write import attach_streams
from engine.importers.contract import Options, Part, Plan
from engine.importers.joined import is_engine_part
from engine.importers.own_names import own_name
from engine.intake import open_intake


def plan_attach(path: Path, plan: Plan) -> list[Part]:
    """The parts of a plan that can be attached.

    Raises:
        GapscopeError: there is none.
    """
    parts = [part for part in plan.parts if is_engine_part(part)]
    if not parts:
        tools = ", ".join(sorted({part.tool for part in plan.parts}))
        raise GapscopeError(
            f"{path} holds no passes and no KV events of an engine, but files of {tools}: import them as a run."
        )
    return parts


def attach(run: Bundle, paths: Sequence[Path], store: Path, options: Options, clock: str = "auto") -> str:
    """Make a new run in ``store`` of ``run`` and the passes and KV events in files and folders; returns its id.

    ``clock``: ``wall`` (both recorded times of day), ``ids`` (requests known to both), seconds from profile start to
    the first pass or event, or ``auto``. ``run`` stays as it is.

    Raises:
        GapscopeError: files that cannot be read or hold nothing to attach, a run that is not measured or has passes
            already, clocks that nothing tells apart.
    """
    run.require_intact()
    store = Path(store)
    with working_folder(store) as scratch, ExitStack() as held:
        streams: list[Bundle] = []
        files: dict[str, str] = {}
        for path in paths:
            intake = held.enter_context(open_intake(Path(path), scratch))
            for part in plan_attach(Path(path), plan_import(intake, join=False)):
                streams.append(open_bundle(scratch / "streams" / part.run(scratch / "streams", options)))
                used = [use.file for use in part.uses]
                files |= {own_name(file, used): file.sha256 for file in used}
        return attach_streams(run, streams, store, scratch, options, clock, files)
