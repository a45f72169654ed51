"""What the numbers of a load generator mean: words for its definitions, and which of them can stand side by side.

An importer sets the identity group ``definitions`` with these sentences (docs/importers.md). They describe the rows as
they are stored: where a rule was made ours on the way (a TTFT moved from the role chunk to the first content), the
sentence is the one of the result. How the tool itself defines a figure of its summary stands in the table ``reported``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.identity import Identity

FIRST_CONTENT = "first chunk with content of any kind, reasoning included"
FIRST_VISIBLE = "first chunk with visible text"
ROLE_CHUNK = "first chunk of any kind, the role chunk included"
FIRST_CHUNK = "first chunk of any kind"
FIRST_SIMULATED = "first simulated token"
FIRST_SAMPLED = "first sampled token"
"""Of a replay: what it samples is what its client sees first."""
FIRST_ENGINE = "first token inside the engine"

INSIDE_ENGINE = "What happened inside the engine"
"""Begins the sentence on what the files of a client do not record of the engine."""

TOKENS_USAGE = "server usage"
TOKENS_LOCAL = "tokenized by the client"
TOKENS_USAGE_OR_LOCAL = "server usage, else tokenized by the client"
TOKENS_REQUESTED = "the length that was asked for, not what came"
TOKENS_USAGE_OR_REQUESTED = "server usage, or the length that was asked for where the server sent none"
TOKENS_BORNE_OUT = "the length that was asked for where chunks or text bear it out, else unknown"
TOKENS_SIMULATED = "simulated"

END_CONTENT = "last content"
END_CHUNK = "last chunk of any kind, finish and usage chunks included"
END_RESPONSE = "end of the response"

TPOT_OURS = "(last visible - first visible) / (output tokens - 1), unweighted over requests, undefined for one token"
ITL_CHUNKS = "gaps between chunks, pooled"
ITL_SPREAD = "gaps between chunks, each spread over its tokens, pooled"
ITL_NONE = "no times of single chunks or tokens are kept"
PERCENTILES_LINEAR = "linear"
ZERO_OUTPUT_COUNTED = "counted, no latency"
STREAM_ERROR_FAILED = "status error, no latency"
STREAM_ERROR_SUCCESS = "a success; rows that look like one are flagged"
STREAM_ERROR_UNSEEN = "a success that cannot be told from others"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a number of two runs cannot stand side by side, and what would make it so; both are sentences."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason} {self.remedy}"


# What a first-token rule measures; rules of one class can be compared, unknown ones are not judged.
_FIRST: Mapping[str, str] = {
    FIRST_CONTENT: "content",
    FIRST_VISIBLE: "content",
    FIRST_SIMULATED: "content",
    FIRST_SAMPLED: "content",
    FIRST_ENGINE: "content",
    ROLE_CHUNK: "role chunk",
    FIRST_CHUNK: "any chunk",
}
_END: Mapping[str, str] = {END_CONTENT: "content", END_CHUNK: "any chunk", END_RESPONSE: "response"}
_NEEDS_FIRST = ("ttft", "tpot", "itl", "ttft_admit")
_NEEDS_END = ("tpot", "e2e")
_NEEDS_TOKENS = ("tpot", "tpot_chunk", "output_rate", "total_rate", "output_rate_per_gpu", "output_tokens")
# What an error inside a stream becomes: where it is a success on one side only, successes are two things.
_STREAM_ERROR: Mapping[str, str] = {
    STREAM_ERROR_FAILED: "failure",
    STREAM_ERROR_SUCCESS: "success",
    STREAM_ERROR_UNSEEN: "success",
}
_NEEDS_SUCCESSES = ("request_rate", "output_rate", "total_rate", "output_rate_per_gpu", "e2e")
_COUNTED = (TOKENS_USAGE, TOKENS_LOCAL, TOKENS_USAGE_OR_LOCAL, TOKENS_USAGE_OR_REQUESTED, TOKENS_BORNE_OUT)
"""Sources of token counts that mean what came; they differ by who counted, and for which requests nobody did."""


def refusal(metric: str, left: Identity, right: Identity) -> Refusal | None:
    """Why ``metric`` of two runs is not one and the same quantity; None where it is, or where a rule is unknown."""
    if metric in _NEEDS_FIRST:
        found = _clash(left, right, "first_token", _FIRST, "content")
        if found:
            return Refusal(
                f"The first token is {found[0]} on one side and {found[1]} on the other.",
                "Record again with the times of the single chunks kept (vLLM: --save-detailed), so that the first "
                "content can be found.",
            )
    if metric in _NEEDS_END:
        found = _clash(left, right, "end_of_latency", _END, "content")
        if found:
            return Refusal(
                f"The latency ends with {found[0]} on one side and {found[1]} on the other.",
                "Record again with the times of the single chunks kept.",
            )
    if metric == "itl":
        rules = {side.value("definitions", "itl") for side in (left, right)}
        if ITL_SPREAD in rules and len(rules) > 1:
            return Refusal(
                "Gaps are spread evenly over the tokens of a chunk on one side and stand where the chunks came on the "
                "other.",
                "Record with the endpoint that gives the times of the chunks (SGLang: an OpenAI backend).",
            )
    if metric in _NEEDS_TOKENS:
        sources = {side.value("definitions", "token_source") for side in (left, right)}
        if TOKENS_REQUESTED in sources and len(sources) > 1:
            return Refusal(
                "Output tokens are what was asked for on one side and what came on the other.",
                "Record with an endpoint that reports usage, or keep the generated text.",
            )
    return None


def caveats(metric: str, left: Identity, right: Identity) -> list[str]:
    """What must be said beside ``metric`` of two runs that is not refused: rules that differ for some requests only."""
    found = []
    errors = [side.value("definitions", "stream_errors") for side in (left, right)]
    kinds = {_STREAM_ERROR.get(str(rule)) for rule in errors}
    if metric in _NEEDS_SUCCESSES and len(kinds - {None}) > 1:
        found.append(f"errors inside a stream are '{errors[0]}' on one side and '{errors[1]}' on the other")
    sources = [side.value("definitions", "token_source") for side in (left, right)]
    if metric in _NEEDS_TOKENS and sources[0] != sources[1] and all(source in _COUNTED for source in sources):
        found.append(f"output tokens are '{sources[0]}' on one side and '{sources[1]}' on the other")
    return found


def differing(left: Identity, right: Identity) -> list[str]:
    """The definitions by which numbers of ``right`` are other quantities than those of ``left``, in a few words."""
    found = []
    for field, words, classes in (("first_token", "first token", _FIRST), ("end_of_latency", "end of latency", _END)):
        here, there = (_kind(side, field, classes, "content") for side in (right, left))
        if None not in (here, there) and here != there:
            found.append(f"{words}: {here}, not {there}")
    wishes = [side.value("definitions", "token_source") == TOKENS_REQUESTED for side in (left, right)]
    if wishes[0] != wishes[1]:
        found.append("output tokens: asked for, not counted" if wishes[1] else "output tokens: counted, not asked for")
    return found


def _kind(side: Identity, field: str, classes: Mapping[str, str], usual: str) -> str | None:
    """What a rule measures; one that nobody named counts as the usual one, an unknown one is None."""
    rule = side.value("definitions", field)
    return usual if rule is None else classes.get(str(rule))


def _clash(left: Identity, right: Identity, field: str, classes: Mapping[str, str], usual: str) -> list[str] | None:
    """Both rules in words where they are of different classes."""
    kinds = [_kind(side, field, classes, usual) for side in (left, right)]
    if None in kinds or kinds[0] == kinds[1]:
        return None
    return [f"'{side.value('definitions', field) or usual}'" for side in (left, right)]
