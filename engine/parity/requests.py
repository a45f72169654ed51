"""The requests of a recording as the engine met them, those that the client does not know included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from engine.bundle.reader import Bundle
from engine.errors import GapscopeError
from engine.parity.stored import StoredBlocks
from engine.serving.members import Members

Ints = npt.NDArray[np.int64]

_REQUEST_COLUMNS = (
    "request_id",
    "status",
    "received_ns",
    "released_ns",
    "input_tokens",
    "requested_output_tokens",
    "output_tokens",
    "prompt_block_hashes",
    "output_block_hashes",
)


@dataclass(slots=True)
class RecordedRequest:
    """A request as the engine met it.

    ``aborted`` is the pass before which it is dropped, None if it ends by itself. ``released_ns`` orders those that are
    dropped before one pass. ``known`` says whether the client's record has it.
    """

    request_id: str
    arrival: int
    prompt_tokens: int
    output_tokens: int
    block_keys: list[int]
    aborted: int | None
    released_ns: int | None
    known: bool


def requests_table(bundle: Bundle) -> pa.Table:
    """The client's record.

    Raises:
        GapscopeError: the run has none.
    """
    table = bundle.table("requests", list(_REQUEST_COLUMNS))
    if table is None or not len(table):
        raise GapscopeError(
            f"Run {bundle.run_id} has no requests (a sweep never has): scheduler parity needs a measured run with its "
            "client's record of who came when."
        )
    return table


def read_requests(
    table: pa.Table,
    names: list[str],
    batches: Members,
    starts: Ints,
    ends: Ints,
    stored: StoredBlocks | None,
) -> tuple[list[RecordedRequest], Ints]:
    """Every request that the engine took, in that order, and the number of each of ``names`` among them."""
    rows = {row["request_id"]: row for row in table.to_pylist()}
    lives = _lives(batches, len(names))
    seen = set(names)
    ids = names + [name for name, row in rows.items() if row["received_ns"] is not None and name not in seen]
    received = _received(ids, rows, lives, starts)
    order = sorted(range(len(ids)), key=lambda n: (received[n], n))  # names come in order of first admission
    given = [_given_keys(rows.get(name)) for name in ids]
    if stored is not None:
        for n, keys in enumerate(given):
            stored.learn(n, keys)
    numbers: dict[Any, int] = {}
    requests: list[RecordedRequest] = []
    for n in order:
        row, life = rows.get(ids[n]), lives[n] if n < len(names) else None
        prompt = row["input_tokens"] if row else life.prompt_tokens  # type: ignore[union-attr]
        keys = given[n] if stored is None else stored.continued(n, given[n])
        requests.append(
            RecordedRequest(
                request_id=ids[n],
                arrival=int(np.searchsorted(starts, received[n])),
                prompt_tokens=prompt,
                output_tokens=_output_tokens(row, prompt, life),
                block_keys=[numbers.setdefault(key, len(numbers)) for key in keys],
                aborted=_aborted(row, life, starts),
                released_ns=row["released_ns"] if row else None,
                known=row is not None,
            )
        )
    number = np.empty(len(ids), dtype=np.int64)
    number[order] = np.arange(len(ids))
    _keep_release_order(requests, {int(number[n]): life.last_pass for n, life in enumerate(lives)}, ends)
    return requests, number


def _keep_release_order(requests: list[RecordedRequest], last_pass: dict[int, int], ends: Ints) -> None:
    """Where the engine dropped a request before it let go of those that finished in the same pass, drop these as well.

    A server finishes a pass before it takes aborts, and the order in which blocks are let go is the order of their
    eviction. So a request that was let go after a dropped one is made to be dropped too, after its last token.
    """
    dropped: dict[int, int] = {}  # pass -> when the first was dropped in it
    for number, at in last_pass.items():
        request = requests[number]
        if request.aborted == at + 1 and request.released_ns is not None and request.released_ns < ends[at]:
            dropped[at] = min(dropped.get(at, request.released_ns), request.released_ns)
    for number, last in last_pass.items():
        request = requests[number]
        released = request.released_ns
        if request.aborted is None and released is not None and released > dropped.get(last, released):
            request.aborted = last + 1
            request.output_tokens += 1


def _given_keys(row: dict[str, Any] | None) -> list[int]:
    return [] if row is None else (row["prompt_block_hashes"] or []) + (row["output_block_hashes"] or [])


@dataclass(slots=True)
class _Life:
    """A request in the passes: its first and last, and the tokens that had KV when it was last seen."""

    first_pass: int
    last_pass: int
    prompt_tokens: int  # at the end of its last chunk of more than one token: all that matters to a scheduler
    computed: int


def _lives(batches: Members, count: int) -> list[_Life]:
    lives: list[_Life | None] = [None] * count
    for n, p, before, tokens in zip(
        batches.index.tolist(),
        batches.pass_index.tolist(),
        batches.computed_before.tolist(),
        batches.scheduled_tokens.tolist(),
        strict=True,
    ):
        life = lives[n]
        if life is None:
            lives[n] = _Life(p, p, before + tokens, before + tokens)
            continue
        if tokens > 1 and life.computed == life.prompt_tokens:
            life.prompt_tokens = max(life.prompt_tokens, before + tokens)
        life.last_pass, life.computed = p, before + tokens
    return [life for life in lives if life is not None]


def _received(ids: list[str], rows: dict[str, dict[str, Any]], lives: Sequence[_Life], starts: Ints) -> list[int]:
    """When the engine took each request; where nobody recorded it, the latest time that explains its admission.

    Admissions are first come, first served, so it came before whoever was admitted after it.
    """
    recorded = [rows[name]["received_ns"] if name in rows else None for name in ids]
    received = [0] * len(ids)
    latest = int(starts[-1])
    for n in reversed(range(len(ids))):
        known = recorded[n]
        if known is None:
            known = min(latest, int(starts[lives[n].first_pass]))
        received[n] = known
        if n < len(lives):
            latest = min(latest, known)
    return received


def _output_tokens(row: dict[str, Any] | None, prompt: int, life: _Life | None) -> int:
    """How many tokens a request samples if nobody aborts it."""
    sampled = max(life.computed - prompt + 1, 1) if life is not None else 1
    if row is None:
        return sampled
    if row["status"] == "ok":
        return max(int(row["output_tokens"]), 1)
    requested = row["requested_output_tokens"]
    return max(int(requested), 1) if requested is not None else sampled + 1


def _aborted(row: dict[str, Any] | None, life: _Life | None, starts: Ints) -> int | None:
    if row is None or row["status"] in ("ok", "in_flight"):
        return None
    if row["released_ns"] is not None:
        return int(np.searchsorted(starts, row["released_ns"]))
    return life.last_pass + 1 if life is not None else None
