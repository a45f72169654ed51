"""Who has logged in with the password: tokens in the memory of this server, good for some hours, gone at its end."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

LIFETIME_S = 12 * 3600.0
MOST = 1000


@dataclass
class Sessions:
    """Tokens that are let in. Only their digests are kept."""

    lifetime_s: float = LIFETIME_S
    clock: Callable[[], float] = monotonic
    _ends: OrderedDict[str, float] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> str:
        """A new token; where there are too many, the oldest ends."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._ends[_digest(token)] = self.clock() + self.lifetime_s
            while len(self._ends) > MOST:
                self._ends.popitem(last=False)
        return token

    def valid(self, token: str | None) -> bool:
        """Whether a token was given out, has not ended and was not closed."""
        if not token:
            return False
        with self._lock:
            ends = self._ends.get(_digest(token))
            if ends is not None and self.clock() >= ends:
                del self._ends[_digest(token)]
                ends = None
        return ends is not None

    def close(self, token: str | None) -> None:
        """End a session."""
        if token:
            with self._lock:
                self._ends.pop(_digest(token), None)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
