"""Files that no importer knows: what is wrong with them, or what else they are and what can be done with them."""

from __future__ import annotations

import orjson

from engine.importers.clients.outline import outline
from engine.importers.recording import schema_hint
from engine.intake import InputFile, Intake, trouble
from engine.traces import FORMATS, agentic, compact, mooncake
from engine.traces.files import head_of

WHOLE = 64 << 20
"""How much of the only file of an input is looked at to say where it stops being JSON."""

_PLAYED = "and no run: `gapscope replay --trace FILE` plays it"


def reason(file: InputFile) -> str:
    """Why a file is of no run."""
    return trouble(file) or workload(file) or "no importer knows it"


def hint(intake: Intake) -> str:
    """What is known of the files of an input that nobody knows, as sentences; empty where nothing is."""
    if said := schema_hint(intake):
        return said
    most = {"most": WHOLE} if len(intake.files) == 1 else {}
    found = [(file, words) for file in intake.files if (words := trouble(file, **most) or workload(file))]
    if not found:
        return ""
    file, words = found[0]
    others = f", and {len(found) - 1} more files like it" if len(found) > 1 else ""
    return f" {file.name}: {words}{others}."


def workload(file: InputFile) -> str | None:
    """What a file is that says what is to be sent, and holds nothing measured; None of any other file."""
    keys = outline(file.head)
    if keys.keys() >= mooncake.KEYS:
        return f"it is a workload (Mooncake JSONL) {_PLAYED}"
    if compact.is_compact(file.path):
        return f"it is a workload (a compact trace) {_PLAYED}"
    if _is_agentic(file.head):
        return f"it is a workload ({agentic.FORMAT}) {_PLAYED}; a recording of it is imported with --trace FILE"
    if {"in", "out", "hash_ids"} <= keys.get("requests", frozenset()):
        return (
            f"it is a workload (sessions with hash ids, as AIPerf plays them) {_PLAYED}; of a run, import what the "
            "client wrote"
        )
    head = head_of(file.head)
    name = next((known.NAME for known in FORMATS if known is not compact and known.looks_like(head)), None)
    if name:
        return (
            f"it looks like a workload ({name}); if nothing measured is in it, `gapscope replay --trace FILE` plays it"
        )
    return None


def _is_agentic(head: bytes) -> bool:
    try:
        row = orjson.loads(head.lstrip().partition(b"\n")[0])
    except orjson.JSONDecodeError:
        return False
    return isinstance(row, dict) and row.get("schema") == agentic.FORMAT
