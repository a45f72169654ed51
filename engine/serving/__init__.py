"""Servers: a scheduler and a KV pool per replica, on the simulated clock."""

from __future__ import annotations

from engine.errors import GapscopeError
from engine.serving.ahead import AheadPlainServer, AheadReservingServer, AheadVariantServer
from engine.serving.contract import Server, ServerConfig
from engine.serving.plain import PlainServer
from engine.serving.pooled import PooledPlainServer, PooledVariantServer
from engine.serving.reserving import ReservingServer
from engine.serving.sglang import SglangServer
from engine.serving.skipping import SkippingServer
from engine.serving.skipping.ahead import AheadSkippingServer
from engine.serving.skipping.pooled import PooledSkippingServer
from engine.serving.variants import VariantServer
from engine.timing.contract import PassTimeSource

CORES = ("auto", "skipping", "plain")


def make_server(config: ServerConfig, timing: PassTimeSource, core: str = "auto") -> Server:
    """A server on the named core.

    Args:
        config: what the scheduler and the pool need to know.
        timing: how long passes take.
        core: ``skipping`` goes from event to event, ``plain`` walks every request in every pass, ``auto`` takes the
            faster one that supports ``config``. They give equal records. SGLang's goes from event to event.

    Raises:
        GapscopeError: an unknown core, or one that does not support ``config``.
    """
    if core not in CORES:
        raise GapscopeError(f"Unknown core {core!r}: expected one of {', '.join(CORES)}.")
    if config.async_scheduling and (config.engine != "vllm" or config.speculation is not None or config.pooled):
        raise GapscopeError("Asynchronous scheduling: expected engine vllm, no speculation and no pool of its own.")
    if config.host is not None and (config.engine == "sglang" or config.cache_blocks or config.policy != "fcfs"):
        raise GapscopeError(
            f"Host memory with engine={config.engine}, cache_blocks={config.cache_blocks} and policy={config.policy}: "
            "expected an engine with vLLM's pool, cache_blocks=0 and policy=fcfs."
        )
    if config.engine == "sglang":
        if core == "plain":
            raise GapscopeError("SGLang's scheduler has one core, which goes from event to event: set core to auto.")
        return SglangServer(config, timing)
    if config.pooled:
        if VariantServer.is_asked_for(config):
            if core == "skipping":
                raise GapscopeError("The skipping core does not have these rules in a pool: set core to auto or plain.")
            return PooledVariantServer(config, timing)
        skips = core == "skipping" or (core == "auto" and SkippingServer.supports(config))
        return (PooledSkippingServer if skips else PooledPlainServer)(config, timing)
    ahead = config.async_scheduling
    if VariantServer.is_asked_for(config):
        if core != "plain" and SkippingServer.supports(config) and not VariantServer.is_alone(config):
            return (AheadReservingServer if ahead else ReservingServer)(config, timing)
        if core == "skipping":
            raise GapscopeError("The skipping core does not have these rules: set core to auto or plain.")
        return (AheadVariantServer if ahead else VariantServer)(config, timing)
    if core == "plain" or (core == "auto" and not SkippingServer.supports(config)):
        return (AheadPlainServer if ahead else PlainServer)(config, timing)
    return (AheadSkippingServer if ahead else SkippingServer)(config, timing)
