"""Sessions that a login by OIDC let in: the guard takes uploads from no other."""

from __future__ import annotations

import threading
from collections import OrderedDict

MOST = 1000
_sessions: OrderedDict[str, None] = OrderedDict()
_lock = threading.Lock()


def grant(session: str) -> None:
    """A session is let in; where there are too many, the oldest is forgotten until its page runs again."""
    with _lock:
        _sessions[session] = None
        _sessions.move_to_end(session)
        while len(_sessions) > MOST:
            _sessions.popitem(last=False)


def withdraw(session: str) -> None:
    """A session is not, or no longer, let in."""
    with _lock:
        _sessions.pop(session, None)


def is_granted(session: str) -> bool:
    """Whether a session was let in."""
    with _lock:
        return session in _sessions
