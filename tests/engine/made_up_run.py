"""What a recording of a run of the plain core would hold: one tick a pass, everything recorded."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
from serving_driver import FixedTiming, batches, drive, events

from engine.bundle.schema import TABLES
from engine.serving.plain import PlainServer

TICKS = 1_000_000
"""A time of the load in nanoseconds of the recording; a pass takes one."""


class MadeUpRun:
    """What a recording of a run of the plain core would hold."""

    run_id = "made-up-0123456789ab"

    def __init__(self, config, load, core=PlainServer):
        record, _ = drive(core(config, FixedTiming()), load)
        settings_ = {
            ("capacity", "usable_kv_blocks"): config.usable_kv_blocks,
            ("capacity", "block_size"): config.block_size,
            ("capacity", "prefix_caching"): config.prefix_caching,
            ("scheduler", "max_num_seqs"): config.max_num_seqs,
            ("scheduler", "max_num_batched_tokens"): config.max_num_batched_tokens,
            ("scheduler", "long_prefill_token_threshold"): config.long_prefill_token_threshold,
            ("scheduler", "reserve_full_prompt"): config.reserve_full_prompt,
        }
        self.identity = SimpleNamespace(value=lambda group, field: settings_.get((group, field)))
        self.tables = {
            "passes": table_of("passes", _passes(record)),
            "requests": table_of("requests", _requests(record, load)),
            "kv_events": table_of("kv_events", _events(record)),
        }

    def table(self, name, columns=None):
        table = self.tables[name]
        return table if columns is None else table.select(columns)


def table_of(name, rows):
    schema = TABLES[name].schema
    return pa.Table.from_pylist([{column: row.get(column) for column in schema.names} for row in rows], schema)


def _passes(record):
    for p, batch in enumerate(batches(record)):
        start = int(record.passes["start_ns"][p]) * TICKS
        yield {
            "pass_index": p,
            "start_ns": start,
            "end_ns": start + TICKS,
            "kv_blocks_cached": int(record.passes["kv_blocks_cached"][p]),
            "kv_blocks_used": int(record.passes["kv_blocks_used"][p]),
            "members": [
                {"request_id": f"r{index}", "computed_before": before, "scheduled_tokens": tokens}
                for index, before, tokens in batch
            ],
        }


def _requests(record, load):
    aborted_at = {index: at for at, index in sorted(load.aborts, reverse=True)}
    count = len(load.arrivals)
    for order, (at, r) in enumerate(load.arrivals):
        aborted = bool(record.requests["aborted"][r.index])
        yield {
            "request_id": f"r{r.index}",
            "status": "canceled" if aborted else "ok",
            # Just before the pass that takes it, in the order of arrival.
            "received_ns": at * TICKS - count + order,
            # Half a tick before the look that finds it: requests and cancels alike.
            "dispatched_ns": at * TICKS - TICKS // 2,
            "end_ns": aborted_at.get(r.index, 0) * TICKS - TICKS // 2 if aborted else None,
            "released_ns": aborted_at.get(r.index, 0) * TICKS if aborted else None,
            "input_tokens": r.prompt_tokens,
            "requested_output_tokens": r.output_tokens,
            "output_tokens": int(record.requests["output_tokens"][r.index]),
            "prompt_block_hashes": [1 + key for key in r.block_keys],
            "output_block_hashes": [],
        }


def _events(record):
    for n, (kind, p, index, keys) in enumerate(events(record)):
        yield {
            "event_index": n,
            "time_ns": p,
            "pass_index": p,
            "kind": kind,
            "request_id": f"r{index}",
            "num_blocks": len(keys),
            "block_hashes": [engine_hash(key) for key in keys],
        }


def engine_hash(key):
    """Some other name of a content, one to one."""
    return (key * 0x9E3779B97F4A7C15 + 0xABCDEF) % 2**64
