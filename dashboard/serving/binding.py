"""Where the dashboard listens and who may come: decided once by ``gapscope serve``, handed on to the server it becomes.

The loopback interface needs no login: who reaches it has an account on this machine. Anything wider does, and a name
given with ``--allow-host`` counts as wider, since it is how a proxy in front is reached.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.errors import GapscopeError

VARIABLE = "GAPSCOPE_BINDING"
"""The binding of this server, as JSON; holds no secret."""
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::")
LOGINS = ("", "password", "oidc")
_NAME = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?|[0-9a-f:]*:[0-9a-f:.]*")


@dataclass(frozen=True)
class Binding:
    """An address, the names under which it answers, and how one is let in."""

    host: str = "127.0.0.1"
    port: int = 8501
    names: tuple[str, ...] = ()
    login: str = ""  # one of LOGINS
    users: tuple[str, ...] = ()  # of OIDC: addresses or @domains; empty lets in whom the provider lets in
    password_file: str = ""

    @property
    def wide(self) -> bool:
        """Whether others than those on this machine can reach it."""
        return not (is_loopback(self.host) and all(is_loopback(name) for name in self.names))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host names that a request may be addressed to."""
        own = () if self.host in EVERYWHERE else (self.host,)
        return tuple(dict.fromkeys([*LOOPBACK_NAMES, *own, *self.names]))

    @property
    def address(self) -> str:
        """What to type into a browser."""
        host = next(iter(self.names), "127.0.0.1") if self.host in EVERYWHERE else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def words(self) -> str:
        """Who can reach it, in one line."""
        if not self.wide:
            return f"{self.address}, this machine only" + (f", login by {self.login}" if self.login else ", no login")
        return f"{self.address}, open to others as {', '.join(self.hosts)}, login by {self.login}"


def is_loopback(host: str) -> bool:
    """Whether an address or a name means this machine and no other."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def bind(
    host: str,
    port: int,
    names: Sequence[str],
    login: str,
    *,
    users: Sequence[str] = (),
    password_file: str = "",
) -> Binding:
    """The binding that was asked for.

    Raises:
        GapscopeError: no such port or address, a name that is none, or a wide one without a login.
    """
    if not 1 <= port <= 65535:
        raise GapscopeError(f"Port {port}: expected a number from 1 to 65535.")
    clean = tuple(name.strip().lower().rstrip(".") for name in names)
    for name in clean:
        if not _NAME.fullmatch(name):
            raise GapscopeError(f"--allow-host {name[:80]!r}: expected a host name such as gapscope.example.org.")
    binding = Binding(host, port, clean, login, tuple(user.lower() for user in users), password_file)
    if binding.wide and not login:
        raise GapscopeError(
            f"{host if not is_loopback(host) else clean[0]} can be reached from other machines, and no login is set "
            "up: make a password with `gapscope password --out FILE` and serve with --password-file FILE, or set up "
            "OIDC (docs/dashboard.md, Trust)."
        )
    if host in EVERYWHERE and not clean:
        raise GapscopeError(
            f"{host} answers on every interface under no name of its own: give each name or address that it is reached "
            "by with --allow-host NAME."
        )
    if users and login != "oidc":
        raise GapscopeError("--allow-user names accounts of OIDC, which is not set up here (docs/dashboard.md, Trust).")
    return binding


def require_servable(binding: Binding, roots: Sequence[Path]) -> None:
    """Find out what would stop the server before it is announced.

    Raises:
        GapscopeError: the address is not one of this machine, the port is taken or not ours, or a store is no folder.
    """
    for root in roots:
        if root.exists() and not root.is_dir():
            raise GapscopeError(f"Store {root} is not a folder: give --store a folder of runs.")
    try:
        family, kind, _, _, where = socket.getaddrinfo(binding.host, binding.port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise GapscopeError(
            f"Host {binding.host[:80]!r}: expected an address or a name of this machine, such as 127.0.0.1."
        ) from None
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was left just now is free
        try:
            probe.bind(where)
        except OSError as error:
            raise GapscopeError(
                f"Port {binding.port} of {binding.host} cannot be used ({error.strerror}): give another one with "
                "--port, or an address of this machine with --host."
            ) from None


def to_environment(binding: Binding) -> str:
    """The binding as text for :data:`VARIABLE`."""
    return json.dumps(asdict(binding))


def from_environment(environment: Mapping[str, str] | None = None) -> Binding | None:
    """The binding of this server; None of one that was not started by ``gapscope serve``."""
    text = (os.environ if environment is None else environment).get(VARIABLE)
    if not text:
        return None
    fields: dict[str, Any] = json.loads(text)
    return Binding(**fields | {name: tuple(fields[name]) for name in ("names", "users")})


def for_others(address: str | None) -> bool:
    """Whether this server is open to others; ``address`` is where one that nobody described listens."""
    binding = from_environment()
    return binding.wide if binding else not (address and is_loopback(address))
