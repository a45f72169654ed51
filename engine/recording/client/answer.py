"""What a client saw of one response, event by event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SHOWN = 200
"""Characters of an error that are kept."""


@dataclass(slots=True)
class Chunk:
    """A chunk with content: when it came, how many tokens it has (None: the server does not say), and whether any of
    it can be seen."""

    time_ns: int
    tokens: int | None
    visible: bool


@dataclass(slots=True)
class Answer:
    """One response. Times are ns on the client's monotonic clock; None is unknown.

    ``status`` is ok, error or canceled. ``output_ids`` are the token ids as far as the server tells them.
    ``completion_tokens``, ``prompt_tokens`` and ``cached_tokens`` are the server's usage.
    """

    dispatched_ns: int = 0
    headers_ns: int | None = None
    end_ns: int = 0
    status: str = "error"
    error: str | None = None
    chunks: list[Chunk] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    response_id: str | None = None

    @property
    def output_tokens(self) -> int | None:
        """Tokens put out: by the usage of a response that came to its end, else by the token ids that arrived."""
        if self.completion_tokens is not None:
            return self.completion_tokens
        if any(chunk.tokens is None for chunk in self.chunks):
            return None
        return len(self.output_ids)

    def take(self, event: Mapping[str, Any], time_ns: int) -> None:
        """Note an event of the stream.

        Raises:
            ValueError: the event tells of an error.
        """
        if event.get("error") or event.get("object") == "error":
            raise ValueError(f"in the stream: {_message(event)}"[:SHOWN])
        if self.response_id is None and isinstance(event.get("id"), str):
            self.response_id = event["id"]
        for choice in _objects(event, "choices"):
            self._take_choice(choice, time_ns)
        usage = event.get("usage")
        if isinstance(usage, Mapping):
            self.prompt_tokens = _count(usage.get("prompt_tokens"))
            self.completion_tokens = _count(usage.get("completion_tokens"))
            details = usage.get("prompt_tokens_details")
            if isinstance(details, Mapping):
                self.cached_tokens = _count(details.get("cached_tokens"))

    def _take_choice(self, choice: Mapping[str, Any], time_ns: int) -> None:
        text = _text(choice)
        given = choice.get("token_ids")
        ids: list[int] | None = given if isinstance(given, list) and all(_is_id(one) for one in given) else None
        if text or ids:
            self.chunks.append(Chunk(time_ns, None if ids is None else len(ids), bool(text)))
            self.output_ids += ids or []
            self.text.append(text)
        reason = choice.get("finish_reason")
        self.finish_reason = reason if isinstance(reason, str) else self.finish_reason


def _text(choice: Mapping[str, Any]) -> str:
    """All that can be seen of a choice: its text, or the content, reasoning and tool calls of a chat."""
    delta = choice.get("delta")
    if not isinstance(delta, Mapping):
        return str(choice.get("text") or "")
    parts = [delta.get(name) for name in ("reasoning_content", "reasoning", "content")]
    functions = [call.get("function") for call in _objects(delta, "tool_calls")]
    parts += [function.get("arguments") for function in functions if isinstance(function, Mapping)]
    return "".join(part for part in parts if isinstance(part, str))


def _objects(holder: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The objects of a list, none where it is absent.

    Raises:
        ValueError: it is something else.
    """
    value = holder.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise ValueError(f"odd event: {name} is {str(value)[:40]!r}, expected a list of objects")
    return value


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _message(event: Mapping[str, Any]) -> str:
    error = event.get("error") or event
    if isinstance(error, Mapping):
        return f"{error.get('code') or error.get('type') or 'error'}: {error.get('message') or error}"
    return str(error)


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
