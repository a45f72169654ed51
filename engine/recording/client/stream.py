"""Server-sent events out of the pieces of a response body."""

from __future__ import annotations

from typing import Any

import orjson

DONE = "[DONE]"


class EventReader:
    """Takes the pieces of a body as they come and gives the events that are complete.

    A line of its own is an event here, as every server of this kind writes them: ``data:`` and JSON, or ``[DONE]``.
    Other lines (comments, names of events) are passed over; ``foreign`` keeps the beginning of those that are neither.
    """

    def __init__(self) -> None:
        self._rest = b""
        self.foreign = b""

    def take(self, piece: bytes) -> list[Any]:
        """The events that this piece completes: objects, and :data:`DONE`.

        Raises:
            ValueError: an event that is no JSON.
        """
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        return [event for line in lines if (event := self._event(line.strip())) is not None]

    def end(self) -> list[Any]:
        """The event of a last line without an end.

        Raises:
            ValueError: as :meth:`take`.
        """
        line, self._rest = self._rest.strip(), b""
        event = self._event(line)
        return [] if event is None else [event]

    def _event(self, line: bytes) -> Any:
        if line.startswith(b"data:"):
            text = line[5:].strip()
            if text == DONE.encode():
                return DONE
            try:
                return orjson.loads(text)
            except orjson.JSONDecodeError:
                raise ValueError(f"an event is no JSON: {text[:80].decode(errors='replace')!r}") from None
        if line and line[:1] != b":" and line.partition(b":")[0] not in (b"event", b"id", b"retry"):
            self.foreign = self.foreign or line[:200]
        return None
