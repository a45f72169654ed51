"""A small sound input of each format, as its tool writes it: what the fuzz tests start from."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

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
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            data = path.read_bytes()
            if path.suffix == ".gz":
                data = gzip.decompress(data)
            name = path.relative_to(folder).as_posix().removesuffix(".gz")
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
    }
    return {**made, **recorded()}
