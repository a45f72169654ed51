"""The errors that a user is meant to read."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class GapscopeError(Exception):
    """Bad input or an impossible request, told in one sentence: what, where, what was expected, what to do.

    The command line prints the message and exits non-zero; a page shows it in a red box. Anything else that
    is raised is a defect of the program.
    """


class Interrupted(KeyboardInterrupt):
    """A signal (Ctrl-C, SIGTERM) ended the work; one sentence says what is left of it.

    It is a ``KeyboardInterrupt``, so that nothing on the way takes it for an error that it can handle.
    """

    def __init__(self, number: int, words: str = "interrupted; nothing is half written, finished runs stay.") -> None:
        super().__init__(words)
        self.number = number
        """Which signal."""


class UnwritableStore(GapscopeError):
    """A run cannot be written into a store, nor can another: work that writes several runs ends here."""


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """A question that names what was most likely meant, after a space; empty where nothing is alike.

    A name that begins like ``text`` comes before one that only resembles it; case does not matter.
    """
    known = {name.lower(): name for name in names}
    beginning = [name for name in known if text and name.startswith(text.lower())]
    near = get_close_matches(text.lower(), beginning or known, n=1, cutoff=0.0 if beginning else 0.6)
    return f" Did you mean {known[near[0]]}?" if near else ""
