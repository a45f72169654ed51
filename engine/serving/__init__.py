"""Servers: a scheduler and a KV pool per replica, on the simulated clock."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from engine.errors import GapscopeError
from engine.serving.contract import Server, ServerConfig
from engine.timing.contract import PassTimeSource

CORES = {"plain": ("engine.serving.plain", "PlainServer"), "skipping": ("engine.serving.skipping", "SkippingServer")}
"""Module and class of each core; only the one in use is imported."""


def make_server(config: ServerConfig, timing: PassTimeSource, core: str = "auto") -> Server:
    """A server on the named core.

    Args:
        config: what the scheduler and the pool need to know.
        timing: how long passes take.
        core: ``plain`` walks every pass, ``skipping`` goes from event to event, ``auto`` is the faster one. They
            give equal records.

    Raises:
        GapscopeError: an unknown core.
    """
    if core == "auto":
        core = "skipping" if find_spec(CORES["skipping"][0]) else "plain"
    if core not in CORES:
        raise GapscopeError(f"Unknown core {core!r}: expected one of auto, {', '.join(CORES)}.")
    module, name = CORES[core]
    server: Server = getattr(import_module(module), name)(config, timing)
    return server
