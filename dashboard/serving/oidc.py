"""Login at an OpenID provider, with Streamlit's own support: whether it is set up, and who of it may come."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from time import time
from typing import Any

from dashboard.serving.sessions import LIFETIME_S
from engine.errors import GapscopeError
from engine.stores import PROJECT

NEEDED = ("redirect_uri", "cookie_secret", "client_id", "client_secret", "server_metadata_url")


def settings(folders: Sequence[Path] = (Path.home(), PROJECT)) -> Mapping[str, Any] | None:
    """The section ``[auth]`` of the first ``.streamlit/secrets.toml`` that has one; None where none has.

    Raises:
        GapscopeError: it lacks something, cannot be read, or the library for it is not installed.
    """
    for folder in folders:
        path = folder / ".streamlit" / "secrets.toml"
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8")).get("auth")
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise GapscopeError(f"{path} cannot be read as TOML ({type(error).__name__}): mend it.") from None
        if found is not None:
            lacking = [name for name in NEEDED if not found.get(name)]
            if lacking:
                raise GapscopeError(f"{path}: [auth] lacks {', '.join(lacking)}.")
            if find_spec("authlib") is None or find_spec("httpx") is None:
                raise GapscopeError("Login by OIDC needs Authlib and httpx: pip install 'gapscope[login]'.")
            return dict(found)
    return None


def refused(user: Mapping[str, Any], users: Sequence[str], now_s: float | None = None) -> str:
    """Why an account that the provider vouches for is not let in; empty where it is.

    Args:
        user: the claims of the account.
        users: addresses and ``@domains`` that may come; empty lets in everyone.
        now_s: seconds since 1970.
    """
    issued = user.get("iat")
    if isinstance(issued, int | float) and (time() if now_s is None else now_s) - issued > LIFETIME_S:
        return "This login is over: log in again."
    if not users:
        return ""
    mail = str(user.get("email") or "").lower()
    known = mail in users or any(one.startswith("@") and mail.endswith(one) for one in users)
    if not known or user.get("email_verified") is False:
        return "This account may not see this gapscope."
    return ""
