"""Runs in an interpreter that has NVIDIA Dynamo: replays a trace for each line on standard input.

A line is a JSON object ``{"path", "block_size", "clients", "kv_tokens", "hash_tokens"}``; the answer has the CPU
seconds of the call and what it says of itself. Kept to the standard library and Dynamo, as nothing else is installed.
"""

import json
import sys
import time

from dynamo._core import _normalize_mocker_config, run_mocker_trace_replay


def call(path, block_size, clients, kv_tokens, hash_tokens):
    engine = {
        "num_gpu_blocks": kv_tokens // block_size,
        "block_size": block_size,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
    }
    config = _normalize_mocker_config({"engine": engine})
    begun = time.process_time()
    report = run_mocker_trace_replay(
        [path],
        extra_engine_args=config,
        replay_concurrency=clients,
        trace_block_size=hash_tokens,
        trace_format="mooncake",
    )
    cpu_s = time.process_time() - begun
    summary = report.summary
    return {
        "cpu_s": cpu_s,
        "requests": summary["num_requests"],
        "output_tokens": summary["total_output_tokens"],
        "reuse": summary["prefix_cache_reused_ratio"],
    }


for line in sys.stdin:
    print("answer " + json.dumps(call(**json.loads(line))), flush=True)
