"""Request ids of an engine and of its client.

An engine makes its id of the one that the client sent: ``chatcmpl-ID`` for a chat, ``cmpl-ID-0`` for the first prompt
of a completion; some add eight hex digits of their own. An engine's id belongs to the client's request whose id is
left when the prefix, the place of the prompt and those digits are taken away, or that equals it as it is. Where
several ids of the engine lead to one request, none of them is joined.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

_PREFIX = re.compile(r"^(chatcmpl|cmpl|resp|embd|score|rerank|generate)[-_](tokens-)?")
_PLACE = re.compile(r"-\d{1,4}$")
_OWN = re.compile(r"-[0-9a-f]{8}$")


def match(engine_ids: Iterable[str], client_ids: Collection[str]) -> dict[str, str]:
    """Client's id by engine's id, of those that belong together one to one."""
    found: dict[str, list[str]] = {}
    for engine_id in dict.fromkeys(engine_ids):
        mine = next((name for name in _candidates(engine_id) if name in client_ids), None)
        if mine is not None:
            found.setdefault(mine, []).append(engine_id)
    return {names[0]: client_id for client_id, names in found.items() if len(names) == 1}


def _candidates(engine_id: str) -> Iterator[str]:
    yield engine_id
    bare = _PREFIX.sub("", engine_id)
    yield bare
    without = _OWN.sub("", bare)
    yield without
    yield _PLACE.sub("", bare)
    yield _PLACE.sub("", without)
