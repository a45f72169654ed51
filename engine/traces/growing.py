"""Reads rows whose list of hash ids begins with that of the row before: of such a list only what is new is parsed.

A conversation's prompts grow, so most of a long list was there before, letter by letter, and comparing text is a
hundred times cheaper than reading numbers.
"""

from __future__ import annotations

from array import array
from typing import Any

import orjson

from engine.traces.fields import hash_ids_of

_NAME = b'"hash_ids"'
_SHORT = 1024
"""Bytes of a row that is parsed as fast as it is looked at."""


class GrowingIds:
    """Parses the rows of one trace, in order. A list of hash ids comes as an array where it can."""

    def __init__(self) -> None:
        self._text = b""  # inside the brackets of the row before; empty where it had no list
        self._ids = array("q")  # what that says

    def loads(self, line: memoryview) -> Any:
        """The value of a line, as :func:`orjson.loads` has it.

        Raises:
            orjson.JSONDecodeError: no JSON.
        """
        if len(line) < _SHORT:
            return orjson.loads(line)
        text = bytes(line)
        begin, end = _list_in(text)
        if not end:
            return orjson.loads(text)
        known = self._text
        stop = begin + len(known)
        if known and text[stop : stop + 1] == b"," and text.startswith(known, begin):
            row = self._continued(text, begin, stop + 1)
            if row is not None:
                self._text = text[begin:end]
                return row
        row = orjson.loads(text)
        self._text = b""
        if type(row) is dict and type(row.get("hash_ids")) is list:
            try:
                row["hash_ids"] = self._ids = hash_ids_of(row["hash_ids"])
            except (TypeError, OverflowError):
                return row
            self._text = text[begin:end]
        return row

    def _continued(self, text: bytes, begin: int, rest: int) -> dict[str, Any] | None:
        """The row whose list begins with that of the row before and goes on at ``rest``; None where it is bad."""
        try:
            row: dict[str, Any] = orjson.loads(text[:begin] + text[rest:])
            new = hash_ids_of(row["hash_ids"])
        except (orjson.JSONDecodeError, KeyError, TypeError, OverflowError):
            return None
        if not new:
            return None
        row["hash_ids"] = self._ids = self._ids + new
        return row


def _list_in(text: bytes) -> tuple[int, int]:
    """Where the hash ids of a row stand, without the brackets; (0, 0) where that is not plain to see."""
    at = text.find(_NAME)
    begin = text.find(b"[", at) + 1
    end = text.find(b"]", begin)
    if at < 0 or not begin or text.rfind(_NAME) != at or b"\\" in text:
        return 0, 0
    plain = text[at + len(_NAME) : begin].replace(b" ", b"") == b":["
    return (begin, end) if plain and end > 0 else (0, 0)
