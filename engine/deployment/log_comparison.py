"""A memory ledger beside an engine's own log: component by component, each from what the log says of its neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.deployment.deployed import Deployment
from engine.deployment.engine_log import SGLANG, LoggedMemory
from engine.deployment.memory import GIB, MemoryLedger, fitting, memory_ledger
from engine.errors import GapscopeError

AGREES, DIFFERS, NOT_LOGGED, NOT_MODELLED = "agrees", "differs", "not logged", "not modelled"


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One component: what is predicted of it, what the log says; None is unknown.

    ``given`` names what the prediction takes from the log, so that a component is not blamed for its neighbours.
    """

    component: str
    unit: str
    predicted: float | None
    logged: float | None
    state: str
    given: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """Predicted less logged."""
        if self.predicted is None or self.logged is None:
            return None
        return self.predicted - self.logged

    @property
    def share(self) -> float | None:
        """Predicted / logged - 1."""
        return self.predicted / self.logged - 1 if self.predicted is not None and self.logged else None


@dataclass(frozen=True, slots=True)
class LogComparison:
    """The rows in the order in which one rests on another, and how much of the log they use."""

    engine: str
    rows: tuple[ComparedRow, ...]
    lines: int
    unused: int
    ranges: Mapping[str, tuple[float, float]]
    """What processes of one engine say differently: least and most."""


def compare_log(
    deployment: Deployment,
    log: LoggedMemory,
    *,
    tolerance: float = 0.05,
    block_size: int = 16,
    memory_fraction: float | None = None,
    **how: Any,
) -> LogComparison:
    """Compare what is predicted with what an engine logged.

    Args:
        deployment: the model on parts.
        log: what the engine said.
        tolerance: share of the logged value within which a row agrees.
        block_size: tokens per KV block of the engine; no engine logs it.
        memory_fraction: share of memory that the engine may use, where the log does not say it; without either, what
            rests on it is not predicted.
        how: what else ``memory_ledger`` takes; context and token budget are the log's where it has them.

    Raises:
        GapscopeError: as ``memory_ledger``; a tolerance below 0.
    """
    if not tolerance >= 0:
        raise GapscopeError(f"A tolerance of {tolerance:g}: expected 0 or more.")
    said = log.values
    share = said.get("fraction", memory_fraction)
    how |= {name: int(said[name]) for name in ("context", "token_budget") if name in said}
    ledger = memory_ledger(
        deployment, memory_fraction=1.0 if share is None else share, block_size=block_size, engine=log.engine, **how
    )
    book = _Book(ledger, log, tolerance, share)
    return LogComparison(log.engine, tuple(book.rows()), log.lines, log.unused, log.ranges)


class _Book:
    """Takes each quantity from the log where it is there, and remembers that it did."""

    def __init__(self, ledger: MemoryLedger, log: LoggedMemory, tolerance: float, share: float | None):
        self._ledger, self._log, self._tolerance, self._share = ledger, log, tolerance, share
        self._given: list[str] = []

    def rows(self) -> list[ComparedRow]:
        ledger, said = self._ledger, self._log.values
        rows = [
            self._row("HBM capacity", "GiB", ledger.hbm_bytes / GIB, said.get("hbm_gib")),
            self._row("usable memory", "GiB", self._usable(), said.get("usable_gib")),
            self._row("weights", "GiB", ledger.weight_bytes / GIB, said.get("weights_gib")),
            self._row("activations", "GiB", ledger.activation_bytes / GIB, said.get("activation_gib")),
            self._row("outside PyTorch", "GiB", None, _non_torch(said)),
            self._row("graphs", "GiB", _gib(ledger.graphs_bytes), said.get("graphs_gib")),
            self._row("linear state", "GiB", self._states(), said.get("state_gib")),
            self._row("KV pool", "GiB", self._pool(), said.get("kv_pool_gib")),
            self._row("KV per token", "bytes", self._per_token(), _per_token(said)),
            self._row("KV tokens", "tokens", self._tokens(), said.get("kv_tokens")),
            self._row("KV blocks", "blocks", self._blocks(), said.get("blocks")),
            self._row(f"sequences of {ledger.context:,}", "", self._sequences(), said.get("sequences")),
        ]
        return [row for row in rows if row.predicted is not None or row.logged is not None]

    def _row(self, component: str, unit: str, predicted: float | None, logged: float | None) -> ComparedRow:
        given, self._given = tuple(self._given), []
        if logged is None:
            state = NOT_LOGGED
        elif predicted is None:
            state = NOT_MODELLED
        else:
            state = AGREES if abs(predicted - logged) <= self._tolerance * abs(logged) else DIFFERS
        return ComparedRow(component, unit, predicted, logged, state, given)

    def _take(self, name: str, called: str, otherwise: float) -> float:
        """What the log says, noted; else what is predicted."""
        value = self._log.values.get(name)
        if value is None:
            return otherwise
        self._given.append(called)
        return value

    def _usable(self) -> float | None:
        ledger = self._ledger
        if self._share is None:
            return None
        if "fraction" in self._log.values:
            self._given.append("share of memory")
        if self._log.engine == SGLANG:
            return self._take("before_gib", "memory before loading", ledger.hbm_bytes / GIB) * self._share
        return self._take("hbm_gib", "HBM capacity", ledger.hbm_bytes / GIB) * self._share

    def _pool(self) -> float | None:
        ledger, said = self._ledger, self._log.values
        if "usable_gib" in said:
            usable: float | None = self._take("usable_gib", "usable memory", 0.0)
        else:
            usable = self._usable()
        if usable is None:
            return None
        left = usable - self._take("weights_gib", "weights", ledger.weight_bytes / GIB)
        left -= self._take("state_gib", "linear state", 0.0)
        if self._log.engine == SGLANG:
            return left
        left -= self._take("activation_gib", "activations", ledger.activation_bytes / GIB)
        if (non_torch := _non_torch(said)) is not None:
            self._given.append("outside PyTorch")
            left -= non_torch
        # vLLM sizes the pool before it captures graphs: it sets aside what it estimated, if it did.
        return left - self._take("graphs_estimated_gib", "estimate of graphs", 0.0)

    def _states(self) -> float | None:
        """Linear state of the sequences that the engine keeps slots for; how many those are, only its log says."""
        number = self._log.values.get("states")
        if number is None or not self._ledger.kv.state:
            return None
        self._given.append("number of states")
        return number * self._ledger.kv.state / GIB

    def _per_token(self) -> float:
        """Bytes per token of a sequence of the context, as a pool's size over its tokens is."""
        ledger = self._ledger
        if self._log.engine == SGLANG or not (ledger.kv.window or ledger.kv.state):
            return ledger.kv.per_token
        return ledger.kv.per_sequence(ledger.context) / ledger.context

    def _fitting(self) -> tuple[int, float] | None:
        """Blocks and sequences in the pool that is logged, else in the one that is predicted from the other rows."""
        pool = self._take("kv_pool_gib", "KV pool", 0.0) if "kv_pool_gib" in self._log.values else self._pool()
        if pool is None:
            return None
        ledger = self._ledger
        return fitting(pool * GIB, ledger.kv, ledger.context, ledger.block_size)

    def _tokens(self) -> float | None:
        found = self._fitting()
        if found is None:
            return None
        blocks, sequences = found
        if self._ledger.kv.window or self._ledger.kv.state:
            return float(int(sequences * self._ledger.context))
        return float(blocks * self._ledger.block_size)

    def _blocks(self) -> float | None:
        found = self._fitting()
        return None if found is None else float(found[0])

    def _sequences(self) -> float | None:
        found = self._fitting()
        return None if found is None else found[1]


def _gib(amount: float | None) -> float | None:
    return None if amount is None else amount / GIB


def _non_torch(said: Mapping[str, float]) -> float | None:
    """Memory outside PyTorch's allocator: as logged, or what is consumed beside the weights."""
    if "non_torch_gib" in said:
        return said["non_torch_gib"]
    if "consumed_gib" in said and "weights_gib" in said:
        return said["consumed_gib"] - said["weights_gib"]
    return None


def _per_token(said: Mapping[str, float]) -> float | None:
    pool, tokens = said.get("kv_pool_gib"), said.get("kv_tokens")
    return pool * GIB / tokens if pool and tokens else None
