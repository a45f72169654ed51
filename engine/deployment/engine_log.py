"""What an engine says of its memory while it starts, read from its log: vLLM and SGLang.

Both count in GiB, and SGLang writes GB. Each GPU's process repeats the lines; of one process the first counts, as a
draft model's come after the target's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.errors import GapscopeError

VLLM, SGLANG = "vllm", "sglang"

_N = r"(\d[\d,]{0,14}(?:\.\d{1,9})?)"
_G = _N + r"\s?Gi?B"
_MOST_OF_A_LINE = 20_000

_LINES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (VLLM, rf"Model loading took {_G}", ("weights_gib",)),
    (VLLM, rf"Loading model weights took {_G}", ("weights_gib",)),
    (
        VLLM,
        rf"total_gpu_memory \({_G}\) x gpu_memory_utilization \({_N}\) = {_G}",
        ("hbm_gib", "fraction", "usable_gib"),
    ),
    (VLLM, rf"model weights take {_G}", ("weights_gib",)),
    (VLLM, rf"non_torch_memory takes {_G}", ("non_torch_gib",)),
    (VLLM, rf"PyTorch activation peak memory takes {_G}", ("activation_gib",)),
    (VLLM, rf"rest of the memory reserved for KV Cache is {_G}", ("kv_pool_gib",)),
    (VLLM, rf"Requested memory: {_N} \(util\), {_G}", ("fraction", "usable_gib")),
    (VLLM, rf"torch peak memory increase: {_G}", ("activation_gib",)),
    (VLLM, rf"non-torch forward increase memory: {_G}", ("non_torch_gib",)),
    (VLLM, rf"; weights memory: {_G}", ("weights_gib",)),
    (VLLM, rf"Available KV cache memory: {_G}", ("kv_pool_gib",)),
    (VLLM, rf"Current kv cache memory in use is {_G}", ("kv_pool_gib",)),
    (VLLM, rf"KV cache size: {_N} tokens", ("kv_tokens",)),
    (VLLM, rf"# (?:GPU|cuda|CUDA|rocm) blocks: {_N}", ("blocks",)),
    (VLLM, rf"num_gpu_blocks is: {_N}", ("blocks",)),
    (VLLM, rf"Maximum concurrency for {_N} tokens per request: {_N}x", ("context", "sequences")),
    (VLLM, rf"max_num_batched_tokens={_N}", ("token_budget",)),
    (VLLM, rf"Estimated CUDA graph memory: {_G} total", ("graphs_estimated_gib",)),
    (VLLM, rf"Graph capturing finished in {_N} secs, took {_G}", ("", "graphs_gib")),
    (VLLM, rf"CUDA graph pool memory: {_G} \(actual\), {_G} \(estimated\)", ("graphs_gib", "graphs_estimated_gib")),
    (VLLM, rf"Free memory on device \({_N}/{_G}\) on startup", ("", "hbm_gib")),
    (VLLM, rf"Desired GPU memory utilization is \({_N}, {_G}\)", ("fraction", "usable_gib")),
    (VLLM, rf"Actual usage is {_G} for weight", ("weights_gib",)),
    (VLLM, rf"Actual usage is {_G} for consumed memory", ("consumed_gib",)),
    (VLLM, rf"{_G} for peak activation", ("activation_gib",)),
    (VLLM, rf"{_G} for non-torch memory", ("non_torch_gib",)),
    (VLLM, rf"{_G} for CUDAGraph memory", ("graphs_gib",)),
    (SGLANG, rf"Load weight begin\. avail mem={_G}", ("before_gib",)),
    (SGLANG, rf"Load weight end\..*mem usage={_G}", ("weights_gib",)),
    (SGLANG, rf"mem_fraction_static={_N}", ("fraction",)),
    (SGLANG, rf"KV Cache is allocated\..*#tokens: {_N}", ("kv_tokens",)),
    (SGLANG, rf"KV Cache is allocated\..*\bK size: {_G}, V size: {_G}", ("kv_pool_gib", "kv_pool_gib")),
    (SGLANG, rf"KV Cache is allocated\..*\bKV size: {_G}", ("kv_pool_gib",)),
    (SGLANG, rf"Mamba Cache is allocated\. max_mamba_cache_size: {_N}", ("states",)),
    (SGLANG, rf"conv_state size: {_G},? ssm_state size: {_G}", ("state_gib", "state_gib")),
    (SGLANG, rf"max_total_num_tokens={_N}", ("kv_tokens",)),
    (SGLANG, rf"context_len={_N}", ("context",)),
    (SGLANG, rf"chunked_prefill_size={_N}", ("token_budget",)),
    (SGLANG, rf"Capture [a-z ]*(?:cuda|CUDA) graph end\..*mem usage={_G}", ("graphs_gib",)),
)
"""Engine, what its line says, and what each number is; a name twice in a line is a sum, no name is not kept."""

_PATTERNS = tuple((engine, re.compile(pattern), names) for engine, pattern, names in _LINES)
_HINTS = ("GiB", "GB", "KV cache size", "blocks", "_tokens=", "tokens per request", "mem_fraction_static")
_PROCESS = re.compile(r"\(([^()]*\bpid=\d+)\)|\[[^\]]*\b((?:DP\d+ )?(?:PP\d+ )?TP\d+)\b[^\]]*\]")
_SUMMED = {(SGLANG, "graphs_gib")}
"""What a process says once for each capture."""
_LEAST = {"kv_pool_gib"}


@dataclass(frozen=True, slots=True)
class LoggedMemory:
    """What a log says by name: the largest over processes, of KV pools the smallest, as engines size all by that one.

    ``ranges`` are the smallest and largest where processes differ.
    """

    engine: str
    values: Mapping[str, float]
    ranges: Mapping[str, tuple[float, float]]
    lines: int
    used: int

    @property
    def unused(self) -> int:
        """Lines with text that say nothing of memory."""
        return self.lines - self.used


def read_memory_log(lines: Iterable[str]) -> LoggedMemory:
    """What the lines of an engine's log say of its memory.

    Raises:
        GapscopeError: no line does.
    """
    found: dict[str, dict[str, dict[str, float]]] = {VLLM: {}, SGLANG: {}}
    number = dict.fromkeys(found, 0)
    total = 0
    for line in lines:
        if not line.strip():
            continue
        total += 1
        if not any(hint in line for hint in _HINTS):
            continue
        line = line[:_MOST_OF_A_LINE]
        said = _read_line(line)
        for engine, values in said.items():
            number[engine] += 1
            match = _PROCESS.search(line)
            process = found[engine].setdefault(next(filter(None, match.groups()), "") if match else "", {})
            for name, value in values.items():
                if (engine, name) in _SUMMED:
                    process[name] = process.get(name, 0.0) + value
                else:
                    process.setdefault(name, value)
    engine = max(number, key=lambda name: number[name])
    if not number[engine]:
        raise GapscopeError(
            f"None of the {total:,} lines says what an engine's memory is used for: expected a start-up log of vLLM "
            "(`Model loading took ... GiB`) or SGLang (`Load weight end. ... mem usage=... GB`)."
        )
    by_name: dict[str, list[float]] = {}
    for process in found[engine].values():
        for name, value in process.items():
            by_name.setdefault(name, []).append(value)
    return LoggedMemory(
        engine=engine,
        values={name: (min if name in _LEAST else max)(values) for name, values in by_name.items()},
        ranges={name: (min(values), max(values)) for name, values in by_name.items() if min(values) < max(values)},
        lines=total,
        used=number[engine],
    )


def _read_line(line: str) -> dict[str, dict[str, float]]:
    """Numbers of one line by engine and name."""
    said: dict[str, dict[str, float]] = {}
    for engine, pattern, names in _PATTERNS:
        match = pattern.search(line)
        if not match:
            continue
        values: dict[str, float] = {}
        for name, text in zip(names, match.groups(), strict=True):
            if name:
                values[name] = values.get(name, 0.0) + float(text.replace(",", ""))
        known = said.setdefault(engine, {})
        for name, value in values.items():
            known.setdefault(name, value)
    return said
