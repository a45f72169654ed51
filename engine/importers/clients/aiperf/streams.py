"""Responses chunk by chunk (``profile_export_raw.jsonl``): the times of contents, how the stream ended, its usage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from engine.importers.clients.aiperf.values import count, dig, mapping, text, whole
from engine.intake.rows import parse

_REASONING = ("reasoning_content", "reasoning")
_VISIBLE = ("content", "text", "tool_calls", "function_call", "refusal")


@dataclass
class Response:
    """What one response was. Times are nanoseconds since the request was sent."""

    first_ns: int | None = None
    """First content of any kind."""
    first_output_ns: int | None = None
    """First content that is no reasoning."""
    last_ns: int | None = None
    chunks: list[tuple[int, bool]] = field(default_factory=list)
    """Time and whether it has content, of every chunk that came."""
    finished: bool = False
    usage: dict[str, Any] | None = None
    error: str | None = None
    """The error object inside the stream, in words."""
    streamed: bool = False
    contents: int = 0
    """Chunks with content."""
    asked_tokens: int | None = None
    """The output length that the request asked for."""

    @property
    def bare(self) -> bool:
        """Whether nothing that was received is kept: a request that failed."""
        return not (self.streamed or self.finished or self.usage or self.error or self.contents)

    @property
    def complete(self) -> bool:
        """Whether it ended as a response ends: with a reason or with the server's count."""
        return self.finished or self.usage is not None


def response_of(row: dict[str, Any]) -> Response:
    """The response in a row of raw records. Chunks that cannot be understood count as chunks without content."""
    found = Response()
    start = whole(row.get("start_perf_ns"))
    answers = row.get("responses")
    for answer in answers if isinstance(answers, list) else ():
        time = whole(dig(answer, "perf_ns"))
        after = None if start is None or time is None else time - start
        for document in _documents(answer, found):
            content, output = _take(document, found)
            if after is None or after < 0:
                continue
            found.chunks.append((after, content))
            if content:
                found.first_ns = after if found.first_ns is None else found.first_ns
                found.last_ns = after
            if output and found.first_output_ns is None:
                found.first_output_ns = after
    found.contents = sum(content for _, content in found.chunks)
    found.asked_tokens = _asked(row.get("payload"))
    return found


def _documents(answer: Any, found: Response) -> Iterator[dict[str, Any]]:
    packets = dig(answer, "packets")
    if isinstance(packets, list):
        found.streamed = True
        for packet in packets:
            value = dig(packet, "value")
            if dig(packet, "name") == "data" and isinstance(value, str) and value.strip() != "[DONE]":
                yield mapping(parse(value.encode())[0])
    elif isinstance(body := dig(answer, "text"), str):
        yield mapping(parse(body.encode())[0])


def _take(document: dict[str, Any], found: Response) -> tuple[bool, bool]:
    """Note what one document says; returns whether it has content, and whether some is no reasoning."""
    if "error" in document and not document.get("choices"):
        error = document["error"]
        found.error = text(dig(error, "message")) or text(error) or "an error without a message"
    if isinstance(document.get("usage"), dict):
        found.usage = document["usage"]
    reasoning = output = False
    choices = document.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if dig(choice, "finish_reason") is not None:
            found.finished = True
        for part in (mapping(dig(choice, "delta")), mapping(dig(choice, "message")), mapping(choice)):
            reasoning = reasoning or any(part.get(key) for key in _REASONING)
            output = output or any(part.get(key) for key in _VISIBLE)
    return reasoning or output, output


def usage_tokens(usage: dict[str, Any] | None) -> dict[str, int | None]:
    """The server's counts by column of ``requests``; None is not said."""
    return {
        "input_tokens": count(dig(usage, "prompt_tokens")),
        "output_tokens": count(dig(usage, "completion_tokens")),
        "cached_tokens": count(dig(usage, "prompt_tokens_details", "cached_tokens")),
        "reasoning_tokens": count(dig(usage, "completion_tokens_details", "reasoning_tokens")),
    }


def _asked(payload: Any) -> int | None:
    names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
    return next((found for name in names if (found := count(dig(payload, name))) is not None), None)
