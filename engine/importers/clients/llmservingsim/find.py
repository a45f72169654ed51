"""LLMServingSim's files as parts of an import."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engine.importers.clients.llmservingsim.measured import import_measured
from engine.importers.clients.llmservingsim.simulated import import_simulated
from engine.importers.clients.llmservingsim.table import TOOL
from engine.importers.clients.values import csv_head, first_keys, has_row
from engine.importers.contract import Part, Use
from engine.intake import InputFile, Intake

SIMULATED = [
    "instance id",
    "request id",
    "model",
    "input",
    "output",
    "arrival",
    "end_time",
    "latency",
    "queuing_delay",
    "TTFT",
    "TPOT",
    "ITL",
]
MEASURED = frozenset(
    ["request_id", "input_toks", "output_toks", "arrival_time", "queued_ts", "first_token_ts", "last_token_ts"]
)
META = frozenset(("vllm_version", "engine_kwargs", "dataset_path"))


class LlmServingSim:
    """The simulated CSV is told by its exact columns, the measured rows by their keys."""

    name = "llmservingsim"
    describes = "LLMServingSim: the CSV of a simulation, and the measured requests (JSON Lines) that it is held against"

    def find(self, intake: Intake) -> Sequence[Part]:
        """One part per file, each of which names the other side where there is just one in the input."""
        simulated = [file for file in intake.files if csv_head(file.head) == SIMULATED]
        measured = [file for file in intake.files if has_row(file.head, MEASURED)]
        parts = [self._part(intake, file, True, _other(file, measured), None) for file in simulated]
        for file in measured:
            meta = next(iter(intake.beside(file, lambda near: first_keys(near.head).keys() >= META)), None)
            parts.append(self._part(intake, file, False, _other(file, simulated), meta))
        return parts

    def _part(
        self, intake: Intake, file: InputFile, simulated: bool, other: InputFile | None, meta: InputFile | None
    ) -> Part:
        side = "simulated" if simulated else "measured"
        above = file.name.split("/")[:-1]
        name = " ".join((*above[-2:-1], file.base.partition(".")[0], side))
        uses = [Use(file, f"a row per {side} request")] + ([Use(meta, "engine and machine")] if meta else [])
        notes = []
        if other:
            notes.append(f"The other side of the pair is {other.name}.")
        if simulated:
            notes.append("Nothing is known of the timing model: a pair with this replay is no blind prediction.")
        return Part(
            format=self.name,
            tool=TOOL if simulated else "vLLM, run by LLMServingSim",
            version=None,
            name=name,
            kind="replay" if simulated else "measured",
            uses=tuple(uses),
            run=partial(import_simulated if simulated else import_measured, intake, name, file, other, meta),
            notes=tuple(notes),
        )


def _other(file: InputFile, others: list[InputFile]) -> InputFile | None:
    """The one file of the other side; with several, the one whose folder shares the longest beginning."""
    if len(others) < 2:
        return next(iter(others), None)

    def shared(other: InputFile) -> int:
        pairs = zip(file.name.split("/"), other.name.split("/"), strict=False)
        return next((place for place, (a, b) in enumerate(pairs) if a != b), 0)

    ranked = sorted(others, key=shared)
    return ranked[-1] if shared(ranked[-1]) > shared(ranked[-2]) else None
