"""Where things lie on this machine is nobody's business who sees the page from another one."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from dashboard.serving.binding import VARIABLE, from_environment
from engine.stores import PROJECT
from engine.stores import VARIABLE as STORES


def hidden(text: str) -> str:
    """The text with folders of this machine by their names alone, where the page is served to others."""
    binding = os.environ.get(VARIABLE)
    if not binding or "/" not in text:
        return text
    for folder, name in _folders(binding, os.environ.get(STORES, "")):
        text = text.replace(folder, name)
    return text


@cache
def _folders(binding: str, stores: str) -> tuple[tuple[str, str], ...]:
    """The stores, and what else a message may name, the longest first; none where only this machine can look."""
    found = from_environment({VARIABLE: binding})
    if found is None or not found.wide:
        return ()
    places = [Path(one) for one in stores.split(os.pathsep) if one]
    places += [PROJECT, Path.home(), Path(tempfile.gettempdir())]
    known = {str(one) for place in places for one in (place, place.resolve()) if len(one.parts) > 1}
    return tuple((folder, Path(folder).name) for folder in sorted(known, key=len, reverse=True))
