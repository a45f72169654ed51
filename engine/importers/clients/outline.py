"""The keys of a JSON document told from its beginning, which may break off anywhere."""

from __future__ import annotations

import re

_TOKEN = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)"(\s*:)?|[{}]|"', re.DOTALL)


def outline(head: bytes) -> dict[str, frozenset[str]]:
    """Keys of the first JSON object in ``head``, each with the keys of the objects right below it.

    Lists are looked through: in ``{"a": [{"b": 1}]}`` the key ``b`` is below ``a``. Empty where no object comes first.
    """
    if not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return {}
    keys: dict[str, set[str]] = {}
    depth, top = 0, ""
    for token in _TOKEN.finditer(head):
        text = token[0]
        if text == b"{":
            depth += 1
        elif text == b"}":
            depth -= 1
            if depth == 0:
                break
        elif token[1] is None:
            break  # a string that breaks off
        elif token[2] is not None and depth in (1, 2):
            key = token[1].decode("utf-8", "replace")
            if depth == 1:
                top = key
                keys.setdefault(top, set())
            else:
                keys.setdefault(top, set()).add(key)
    return {key: frozenset(below) for key, below in keys.items()}
