"""A small sound input of each format, as its tool writes it: what the fuzz tests start from."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgpack

from engine.bundle import open_bundle
from engine.bundle.export import export_folder
from engine.importers import import_any
from tests.engine.recording_folder import Folder, write_sweep

DATA = Path(__file__).resolve().parents[1] / "data"
LINES = 12
"""Rows kept of each recorded file."""

Files = dict[str, bytes]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _csv(head: list[str], rows: list[list[Any]]) -> bytes:
    return "".join(",".join(map(str, row)) + "\n" for row in [head, *rows]).encode()


def recorded() -> dict[str, Files]:
    """Recordings of the project, unpacked, the first rows of each file."""
    found = {}
    for folder in sorted(path for path in DATA.glob("*/*") if path.is_dir()):
        files = {}
        for path, data in _files(folder).items():
            if path.endswith(".gz"):
                data = gzip.decompress(data)
            name = path.removesuffix(".gz")
            if name.endswith(".jsonl"):
                data = b"".join(data.splitlines(keepends=True)[:LINES])
            files[name] = data
        found[f"{folder.parent.name}/{folder.name}"] = files
    return found


def vllm_bench(detailed: bool = True) -> Files:
    document: dict[str, Any] = {
        "date": "20260101-000000",
        "backend": "openai-chat",
        "label": None,
        "model_id": "m",
        "tokenizer_id": "m",
        "num_prompts": 3,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 2,
        "duration": 2.0,
        "completed": 2,
        "failed": 1,
        "total_input_tokens": 30,
        "total_output_tokens": 5,
        "request_throughput": 1.0,
        "output_throughput": 2.5,
        "total_token_throughput": 17.5,
        "mean_ttft_ms": 100.0,
        "median_ttft_ms": 100.0,
        "std_ttft_ms": 0.0,
        "p99_ttft_ms": 100.0,
        "max_concurrent_requests": 2,
    }
    if detailed:
        document |= {
            "input_lens": [10, 10, 10],
            "output_lens": [3, 2, 0],
            "ttfts": [0.1, 0.1, 0.0],
            "itls": [[0.01, 0.02, 0.02, 0.01], [0.01, 0.02, 0.01], []],
            "latencies": [0.16, 0.14, 0.0],
            "start_times": [5.0, 5.5, 5.6],
            "queue_times": [0.0, 0.0, 0.0],
            "generated_texts": ["a", "b", ""],
            "errors": ["", "", "boom"],
        }
    return {"result.json": _json(document)}


def sglang_bench() -> Files:
    run = {
        "backend": "sglang-oai-chat",
        "dataset_name": "random",
        "request_rate": 4.0,
        "max_concurrency": 2,
        "random_input_len": 10,
        "random_output_len": 3,
        "random_range_ratio": 1.0,
        "server_info": {"tp_size": 1, "model_path": "m"},
        "duration": 2.0,
        "completed": 2,
        "total_input_tokens": 30,
        "total_output_tokens": 5,
        "total_output_tokens_retokenized": 5,
        "request_throughput": 1.0,
        "output_throughput": 2.5,
        "mean_ttft_ms": 100.0,
        "median_ttft_ms": 100.0,
        "p99_ttft_ms": 100.0,
        "mean_e2e_latency_ms": 150.0,
        "concurrency": 1.0,
        "input_lens": [10, 10, 10],
        "output_lens": [3, 2, 3],
        "ttfts": [0.1, 0.1, 0.0],
        "itls": [[0.01, 0.02], [0.03], []],
        "generated_texts": ["a", "b", ""],
        "errors": ["", "", "boom"],
    }
    return {"out.jsonl": _json(run) + b"\n" + _json(run | {"request_rate": 8.0}) + b"\n"}


def guidellm() -> Files:
    def request(number: int, status: str) -> dict[str, Any]:
        start = 1.78e9 + number
        timings = {
            "targeted_start": start,
            "request_start": start,
            "first_request_iteration": start + 0.1,
            "first_token_iteration": start + 0.1,
            "last_token_iteration": start + 0.2,
            "last_request_iteration": start + 0.2,
            "request_iterations": 3,
            "token_iterations": 3,
            "request_end": start + 0.21,
            "resolve_end": start + 0.22,
        }
        return {
            "type_": "generative_request_stats",
            "request_id": f"r{number}",
            "info": {"request_id": f"r{number}", "status": status, "timings": timings, "error": None},
            "request_args": "{}",
            "output": "abc",
            "input_metrics": {"text_tokens": 10},
            "output_metrics": {"text_tokens": 3},
            "prompt_tokens": 10,
            "output_tokens": 3,
            "total_tokens": 13,
            "request_start_time": start,
            "request_end_time": start + 0.21,
            "request_latency": 0.21,
            "time_to_first_token_ms": 100.0,
            "time_per_output_token_ms": 66.7,
            "inter_token_latency_ms": 50.0,
        }

    figures = {"mean": 0.21, "median": 0.21, "std_dev": 0.0, "count": 2, "percentiles": {"p50": 0.21, "p99": 0.21}}
    benchmark = {
        "type_": "generative_benchmark",
        "config": {"id_": "b", "strategy": {"type_": "concurrent", "streams": 2}, "constraints": {}, "backend": {}},
        "scheduler_metrics": {"start_time": 1.78e9, "end_time": 1.78e9 + 9, "requests_made": {"successful": 2}},
        "metrics": {
            "request_totals": {"successful": 2, "errored": 1, "incomplete": 1, "total": 4},
            "request_latency": {"successful": figures, "total": figures},
        },
        "requests": {
            "successful": [request(0, "completed"), request(1, "completed")],
            "incomplete": [request(2, "cancelled") | {"request_latency": None, "output_tokens": None}],
            "errored": [request(3, "errored")],
        },
        "start_time": 1.78e9,
        "end_time": 1.78e9 + 9,
        "duration": 9.0,
    }
    report = {"metadata": {"version": 2, "guidellm_version": "0.8.1"}, "config": {}, "benchmarks": [benchmark]}
    return {"benchmarks.json": _json(report)}


def genai_bench() -> Files:
    def request(ttft: float | None, error: int | None) -> dict[str, Any]:
        return {
            "ttft": ttft,
            "tpot": None if ttft is None else 0.01,
            "e2e_latency": None if ttft is None else ttft + 0.1,
            "output_latency": None if ttft is None else 0.1,
            "num_input_tokens": 10,
            "num_output_tokens": None if ttft is None else 11,
            "total_tokens": None if ttft is None else 21,
            "error_code": error,
            "error_message": "boom" if error else None,
        }

    figures = {"min": 0.1, "max": 0.2, "mean": 0.15, "stddev": 0.05, "p50": 0.15, "p99": 0.2}
    aggregated = {
        "scenario": "D(10,11)",
        "num_concurrency": 2,
        "batch_size": 1,
        "iteration_type": "num_concurrency",
        "run_duration": 2.0,
        "requests_per_second": 1.0,
        "error_codes_frequency": {"500": 1},
        "error_rate": 0.33,
        "num_error_requests": 1,
        "num_completed_requests": 2,
        "num_requests": 3,
        "stats": {"ttft": figures, "e2e_latency": figures},
    }
    rows = [request(0.1, None), request(0.2, None), request(None, 500)]
    run = {"aggregated_metrics": aggregated, "individual_request_metrics": rows, "_time_unit": "s"}
    setup = {"cmd": "genai-bench", "benchmark_version": "0.0.5", "api_backend": "openai", "model": "m", "task": "text"}
    return {
        "D_text_num_concurrency_2_time_2s.json": _json(run),
        "experiment_metadata.json": _json(
            setup | {"num_concurrency": [2], "iteration_type": "num_concurrency", "traffic_scenario": ["D(10,11)"]}
        ),
    }


def inference_perf() -> Files:
    def request(number: int, failed: bool) -> dict[str, Any]:
        start = 100.0 + number
        response = {"output_tokens": 3, "chunk_times": [start + 0.1, start + 0.2], "response_chunks": ["a", "b"]}
        info = {"request_metrics": {"text": {"input_tokens": 10}}, "response_metrics": None if failed else response}
        error = {"error_type": "HTTP", "error_msg": "boom"} if failed else None
        return {
            "start_time": start,
            "end_time": start + 0.3,
            "request": "{}",
            "response": "",
            "info": info,
            "error": error,
        }

    figures = {"mean": 0.3, "min": 0.3, "max": 0.3, "median": 0.3, "p99": 0.3}
    summary = {
        "benchmark_time_seconds": 3.0,
        "load_summary": {"count": 3, "requested_rate": 1.0, "achieved_rate": 1.0, "send_duration": 2.0},
        "successes": {"count": 2, "latency": {"request_latency": figures}, "throughput": {"requests_per_sec": 0.7}},
        "failures": {"count": 1},
    }
    rows = [request(0, False), request(1, True), request(2, False)]
    return {"per_request_lifecycle_metrics.json": _json(rows), "summary_lifecycle_metrics.json": _json(summary)}


def llmperf() -> Files:
    def response(ttft: float | None) -> dict[str, Any]:
        if ttft is None:
            return {
                "error_code": 500,
                "error_msg": "boom",
                "ttft_s": 0,
                "end_to_end_latency_s": 0,
                "number_output_tokens": 0,
                "number_input_tokens": 10,
            }
        return {
            "error_code": None,
            "error_msg": "",
            "inter_token_latency_s": 0.05,
            "ttft_s": ttft,
            "end_to_end_latency_s": ttft + 0.1,
            "request_output_throughput_token_per_s": 20.0,
            "number_total_tokens": 14,
            "number_output_tokens": 4,
            "number_input_tokens": 10,
        }

    summary = {
        "version": "2023-08-31",
        "model": "m",
        "num_concurrent_requests": 2,
        "results_ttft_s_quantiles_p50": 0.15,
        "results_ttft_s_mean": 0.15,
        "results_ttft_s_min": 0.1,
        "results_ttft_s_max": 0.2,
        "results_ttft_s_stddev": 0.05,
        "results_number_errors": 1,
        "results_num_completed_requests": 2,
    }
    rows = [response(0.1), response(0.2), response(None)]
    return {"m_individual_responses.json": _json(rows), "m_summary.json": _json(summary)}


def inferencex() -> Files:
    point = {
        "hw": "h200",
        "conc": 4,
        "image": "i",
        "model": "m",
        "framework": "vllm",
        "precision": "fp8",
        "isl": 1024,
        "osl": 1024,
        "tp": 8,
        "ep": 1,
        "dp_attention": "false",
        "tput_per_gpu": 100.0,
        "output_tput_per_gpu": 50.0,
        "input_tput_per_gpu": 50.0,
        "median_ttft": 0.1,
        "p99_ttft": 0.2,
        "mean_tpot": 0.01,
        "mean_intvty": 100.0,
    }
    return {"agg_results.json": _json([point, point | {"conc": 8}])}


def kv_cache_tester() -> Files:
    head = [
        "user_id",
        "request_idx",
        "trace_id",
        "timestamp",
        "request_type",
        "input_tokens",
        "output_tokens_expected",
        "output_tokens_actual",
        "cache_hit_blocks",
        "cache_miss_blocks",
        "ttft",
        "ttlt",
        "itl",
        "success",
        "error_message",
        "request_start_time",
        "prefill_complete_time",
        "request_complete_time",
        "token_timestamps",
        "tokens_per_chunk",
    ]
    start = 1.78e9
    rows = [
        ["u0", 0, "t0", start, "s", 64, 2, 2, 1, 3, 0.1, 0.2, 0.1, "True", "", start, start + 0.1, start + 0.2],
        ["u0", 1, "t0", start + 1, "s", 96, 2, 0, 0, 0, "", "", "", "False", "boom", start + 1, "", start + 1.2],
    ]
    rows = [
        [*row, '"[0.1, 0.2]"' if row[13] == "True" else "[]", '"[1, 1]"' if row[13] == "True" else "[]"] for row in rows
    ]
    return {"detailed_results.csv": _csv(head, rows)}


def lmbenchmark() -> Files:
    head = [
        "prompt_tokens",
        "generation_tokens",
        "ttft",
        "generation_time",
        "user_id",
        "question_id",
        "launch_time",
        "finish_time",
    ]
    rows = [[10, 3, 0.1, 0.2, user, turn, 100.0 + turn, 100.3 + turn] for user in (0, 1) for turn in range(3)]
    return {"summary.csv": _csv(head, rows)}


def fw_benchmark() -> Files:
    head = [
        "Provider",
        "Model",
        "Stream",
        "Concurrency",
        "Time To First Token",
        "Total Latency",
        "Num Tokens",
        "Num Requests",
        "Qps",
    ]
    return {"out.csv": _csv(head, [["vllm", "m", "True", 4, 100.0, 500.0, 20, 40, 2.0]])}


def llmservingsim() -> Files:
    head = [
        "instance id",
        "request id",
        "model",
        "input",
        "output",
        "arrival",
        "end_time",
        "latency",
        "queuing_delay",
        "TTFT",
        "TPOT",
        "ITL",
    ]
    rows = [
        [0, n, "m", 10, 3, n * 10**9, n * 10**9 + 3 * 10**8, 3 * 10**8, 0, 10**8, 10**8, '"[100000000, 100000000]"']
        for n in range(3)
    ]
    measured = [
        {
            "request_id": str(n),
            "input_toks": 10,
            "output_toks": 3,
            "arrival_time": 100.0 + n,
            "queued_ts": 100.0 + n,
            "scheduled_ts": 100.0 + n,
            "first_token_ts": 100.1 + n,
            "last_token_ts": 100.3 + n,
        }
        for n in range(3)
    ]
    return {
        "sim.csv": _csv(head, rows),
        "measured.jsonl": b"".join(_json(row) + b"\n" for row in measured),
        "meta.json": _json({"vllm_version": "0.19", "engine_kwargs": {"model": "m"}, "dataset_path": "d"}),
    }


def llmd() -> Files:
    figures = {"units": "s", "mean": 0.1, "p50": 0.1, "p99": 0.2}
    aggregate = {
        "requests": {"total": 3, "failures": 1, "incomplete": 0},
        "latency": {"time_to_first_token": figures, "request_latency": figures},
        "throughput": {"output_token_rate": {"units": "tokens/s", "mean": 10.0}},
    }
    report = {
        "version": "0.2",
        "run": {"uid": "u"},
        "scenario": {"stack": [], "load": {"standardized": {"tool": "inference-perf", "concurrency": 2}}},
        "results": {"request_performance": {"aggregate": aggregate}},
    }
    return {"report.json": _json(report)}


def fpm() -> dict[str, Files]:
    """Passes as a recorder writes them, bare, by position, and reduced."""
    scheduled = {
        "num_prefill_requests": 1,
        "sum_prefill_tokens": 128,
        "var_prefill_length": 0.0,
        "sum_prefill_kv_tokens": 0,
        "num_decode_requests": 2,
        "sum_decode_kv_tokens": 300,
        "var_decode_kv_tokens": 4.0,
    }
    queued = {name: value for name, value in scheduled.items() if name != "sum_prefill_kv_tokens"}

    def record(number: int) -> dict[str, Any]:
        return {
            "version": 1,
            "worker_id": "7",
            "dp_rank": 0,
            "counter_id": number,
            "wall_time": 0.01 * number,
            "scheduled_requests": scheduled,
            "queued_requests": queued,
        }

    def by_place(value: Any) -> Any:
        return [by_place(inner) for inner in value.values()] if isinstance(value, dict) else value

    records = [record(number) for number in range(1, 7)]
    recorded = [
        {"received_at_ns": 1_780_000_000_000_000_000 + n * 10_000_000, "wire_counter": n, "metrics": record(n)}
        for n in range(1, 7)
    ]
    head = ["num_context_tokens", "num_decode_tokens", "latency_ms"]
    self_benchmark = {
        "schema_version": 2,
        "artifact_type": "rank",
        "status": "complete",
        "dp": {"rank": 0, "size": 1},
        "results": [{"point": {"point_type": "decode", "batch_size": 3}, "fpms": records}],
    }
    return {
        "fpm-recorder": {"fpm.jsonl": _lines(recorded)},
        "fpm-bare": {"fpm.jsonl": _lines(records)},
        "fpm-msgpack": {"fpm.bin": b"".join(msgpack.packb(by_place(one)) for one in records)},
        "fpm-self-benchmark": {"benchmark.json": _json(self_benchmark)},
        "fpm-capture": {"fpm_metrics.csv": _csv(head, [[128, n, 10.0 + n] for n in range(6)])},
    }


def kv_events() -> dict[str, Files]:
    """Blocks stored, removed and cleared: of vLLM in batches, of Dynamo one by one."""
    stored = {
        "type": "BlockStored",
        "block_hashes": [2**64 - 1, 5],
        "parent_block_hash": None,
        "token_ids": [1, 2],
        "block_size": 1,
        "lora_id": None,
        "medium": "GPU",
    }
    removed = {"type": "BlockRemoved", "block_hashes": [5], "medium": "GPU"}
    batches = [
        {"ts": 1.78e9 + n, "events": [stored, removed, {"type": "AllBlocksCleared"}], "data_parallel_rank": 0}
        for n in range(4)
    ]
    return {
        "kv-events": {"kv.jsonl": _lines(batches)},
        "kv-events-msgpack": {"kv.bin": b"".join(msgpack.packb(batch) for batch in batches)},
    }


def aisimulate() -> Files:
    def request(number: int) -> dict[str, Any]:
        arrival = 100.0 * number
        return {
            "request_id": f"r{number}",
            "session_id": "s",
            "turn_index": number,
            "uuid": f"u{number}",
            "arrival_time_ms": arrival,
            "first_admit_ms": arrival + 1,
            "terminal_time_ms": arrival + 16,
            "terminal_status": "completed",
            "first_token_ms": arrival + 10,
            "last_token_ms": arrival + 16,
            "ttft_ms": 10.0,
            "e2e_latency_ms": 16.0,
            "itl_ms": 3.0,
            "input_length": 100,
            "requested_output_length": 3,
            "output_length": 3,
            "reused_input_tokens": 64,
            "admission_history": [{"admission_ordinal": 0, "at_ms": arrival + 1, "reused_input_tokens": 32}],
            "admission_count": 1,
            "readmission_count": 0,
        }

    report = {
        "num_requests": 3,
        "completed_requests": 3,
        "total_input_tokens": 300,
        "total_output_tokens": 9,
        "duration_ms": 216.0,
        "wall_time_ms": 5.0,
        "request_throughput_rps": 3 / 0.216,
        "num_ttft_samples": 3,
        "mean_ttft_ms": 10.0,
        "median_ttft_ms": 10.0,
        "mean_e2e_latency_ms": 16.0,
    }
    return {"prediction.json": _json(report), "requests.jsonl": _lines([request(number) for number in range(3)])}


def _lines(rows: list[Any]) -> bytes:
    return b"".join(_json(row) + b"\n" for row in rows)


def ours() -> dict[str, Files]:
    """A recording, a sweep, and the recording's run exported again."""
    with TemporaryDirectory() as held:
        folder = Path(held)
        recording = Folder().write(folder / "recording")
        sweep = write_sweep(folder / "sweep")
        (run_id,) = import_any(recording, folder / "store")
        run = open_bundle(folder / "store" / run_id)
        folders = {"recording": recording, "sweep": sweep}
        folders |= {f"exported-{form}": export_folder(run, form, folder / form) for form in ("csv", "jsonl")}
        return {name: _files(path) for name, path in folders.items()}


def _files(folder: Path) -> Files:
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        name = path.relative_to(folder).as_posix()
        found[name] = data
    return found


def inputs() -> dict[str, Files]:
    """Every input by name."""
    made = {
        "vllm": vllm_bench(),
        "vllm-summary": vllm_bench(False),
        "sglang": sglang_bench(),
        "guidellm": guidellm(),
        "genai-bench": genai_bench(),
        "inference-perf": inference_perf(),
        "llmperf": llmperf(),
        "inferencex": inferencex(),
        "kv-cache-tester": kv_cache_tester(),
        "lmbenchmark": lmbenchmark(),
        "fw-ai": fw_benchmark(),
        "llmservingsim": llmservingsim(),
        "llm-d": llmd(),
        "aisimulate": aisimulate(),
    }
    return {**made, **fpm(), **kv_events(), **ours(), **recorded()}
