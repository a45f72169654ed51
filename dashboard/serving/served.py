"""The server that ``gapscope serve`` becomes: Streamlit behind the guard, as the binding in the environment says.

What the first page of any server needs is done before it says that it listens: its libraries, and the catalogue.
"""

from __future__ import annotations

import base64
import hashlib
import re
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import streamlit
from starlette.middleware import Middleware
from streamlit import runtime
from streamlit.starlette import App

from dashboard import app, pairs, preparing, widgets
from dashboard.jobs import spare
from dashboard.serving.binding import from_environment
from dashboard.serving.guard import Guard, content_policy
from dashboard.serving.password import kept_hash
from engine.collector import libraries_frozen
from engine.errors import GapscopeError

ENTRY = Path(app.__file__)
_INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)


def shell_scripts() -> tuple[str, ...]:
    """Digests of the inline scripts of Streamlit's page, as a content policy names them."""
    page = Path(streamlit.__file__).parent / "static" / "index.html"
    found = _INLINE.findall(page.read_text(encoding="utf-8"))
    return tuple(f"sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}" for one in found)


def held_bytes() -> int:
    """What the uploads of all sessions take in memory."""
    if not runtime.exists():
        return 0
    stats: Any = runtime.get_instance().uploaded_file_mgr.get_stats()
    return sum(int(one.byte_length) for family in stats.values() for one in family)


def open_store() -> None:
    """Look at the runs of the store, and begin to read those that open first, as their digests may take seconds, and to
    prepare the large ones."""
    store = widgets.store()
    entries = store.catalogue()
    libraries_frozen()

    def read() -> None:
        with suppress(GapscopeError):  # the page that shows such a run says what is wrong with it
            measured = pairs.default_measured(store, entries)
            for run_id in (measured, *pairs.default_replays(store, measured, entries)):
                store.tables(run_id)

    Thread(target=read, name="the pair that opens first", daemon=True).start()
    preparing.begin(store)


def main() -> None:
    """Serve until stopped."""
    binding = from_environment()
    assert binding is not None, "gapscope serve starts this"
    password_hash = kept_hash(binding.password_file) if binding.login == "password" else ""
    policy = content_policy(shell_scripts())
    with suppress(GapscopeError):  # a store that cannot be read: every page says so
        open_store()
    print(f"gapscope: {binding.words()} (Ctrl-C stops it)", flush=True)
    spare.keep()
    guard = Middleware(Guard, binding, password_hash=password_hash, policy=policy, held_bytes=held_bytes)
    App(ENTRY, middleware=[guard]).run(
        config={
            "server.address": binding.host,
            "server.port": binding.port,
            "server.headless": True,
            "server.allowedHosts": list(binding.hosts),
        }
    )


if __name__ == "__main__":
    main()
