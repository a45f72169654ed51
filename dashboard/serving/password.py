"""The password of a dashboard that others can reach: kept as a scrypt hash, compared in constant time, tried slowly.

A hash is one line, ``scrypt$LOG2N$R$P$SALT$KEY`` with salt and key in hexadecimal, so that the cost can grow and old
lines stay readable.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from engine.errors import GapscopeError

HASH_VARIABLE = "GAPSCOPE_PASSWORD_HASH"
FILE_VARIABLE = "GAPSCOPE_PASSWORD_FILE"
SHORTEST = 10
LONGEST = 256
LOG2_N, BLOCKS, PARALLEL = 15, 8, 1  # 32 MiB and a tenth of a second per try
MOST_MEMORY = 128 * 1024 * 1024


def make_hash(password: str, salt: bytes | None = None) -> str:
    """The line to keep.

    Raises:
        GapscopeError: too short or too long.
    """
    if not SHORTEST <= len(password) <= LONGEST:
        raise GapscopeError(f"The password has {len(password)} characters: expected {SHORTEST} to {LONGEST}.")
    salt = salt or secrets.token_bytes(16)
    key = _derive(password, salt, LOG2_N, BLOCKS, PARALLEL)
    return f"scrypt${LOG2_N}${BLOCKS}${PARALLEL}${salt.hex()}${key.hex()}"


def matches(password: str, line: str) -> bool:
    """Whether a password is the one that the line keeps; takes as long for a wrong one."""
    log2_n, blocks, parallel, salt, key = _parts(line)
    return hmac.compare_digest(_derive(password[: LONGEST + 1], salt, log2_n, blocks, parallel), key)


def _derive(password: str, salt: bytes, log2_n: int, blocks: int, parallel: int) -> bytes:
    return hashlib.scrypt(
        password.encode("utf-8", "surrogatepass"), salt=salt, n=1 << log2_n, r=blocks, p=parallel, maxmem=MOST_MEMORY
    )


def _parts(line: str) -> tuple[int, int, int, bytes, bytes]:
    try:
        scheme, log2_n, blocks, parallel, salt, key = line.strip().split("$")
        found = int(log2_n), int(blocks), int(parallel), bytes.fromhex(salt), bytes.fromhex(key)
        if scheme != "scrypt" or not (14 <= found[0] <= 16 and found[1:3] == (8, 1) and len(found[3]) >= 16):
            raise ValueError(scheme)
    except ValueError:
        raise GapscopeError(
            "The password hash is not one: expected a line made by `gapscope password` (scrypt$...)."
        ) from None
    return found


def kept_hash(file: str = "", environment: Mapping[str, str] = os.environ) -> str:
    """The hash that is set up, from a file or the environment; empty where there is none.

    Raises:
        GapscopeError: the file is absent, readable by others or holds no hash.
    """
    where = file or environment.get(FILE_VARIABLE, "")
    line = environment.get(HASH_VARIABLE, "")
    if where:
        path = Path(where).expanduser()
        try:
            open_to = stat.S_IMODE(path.stat().st_mode) & 0o077
            line = path.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not text"
            raise GapscopeError(
                f"The password file {where} cannot be read ({why}): make one with `gapscope password --out FILE`."
            ) from None
        if open_to:
            raise GapscopeError(f"The password file {where} can be read by others: chmod 600 it.")
    if line:
        _parts(line)
    return line.strip()


def write_hash(line: str, path: Path) -> None:
    """Keep the line in a file that only its owner reads.

    Raises:
        GapscopeError: it cannot be written, or exists.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(line + "\n")
    except OSError as error:
        raise GapscopeError(f"{path} cannot be written ({error.strerror}): name another file with --out.") from None


@dataclass
class Attempts:
    """How often a password may be tried: a few times per address, and not too often by all of them together."""

    per_address: int = 5
    by_all: int = 60
    pause_s: float = 60.0
    clock: Callable[[], float] = monotonic
    most_addresses: int = 4096
    _failed: OrderedDict[str, list[float]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait_s(self, address: str) -> float:
        """Seconds until this address may try again; 0 where it may."""
        with self._lock:
            now = self.clock()
            return max(
                self._wait(self._recent(address, now), self.per_address, now),
                self._wait(self._recent("", now), self.by_all, now),
            )

    def failed(self, address: str) -> None:
        """Count a wrong password."""
        with self._lock:
            now = self.clock()
            for one in (address, ""):
                self._failed[one] = [*self._recent(one, now), now]
                self._failed.move_to_end(one)
            while len(self._failed) > self.most_addresses:
                oldest = next(one for one in self._failed if one)
                del self._failed[oldest]

    def succeeded(self, address: str) -> None:
        """Forget the failures of an address."""
        with self._lock:
            self._failed.pop(address, None)

    def _recent(self, address: str, now: float) -> list[float]:
        return [at for at in self._failed.get(address, ()) if now - at < self.pause_s]

    def _wait(self, recent: list[float], most: int, now: float) -> float:
        return self.pause_s - (now - recent[-most]) if len(recent) >= most else 0.0
