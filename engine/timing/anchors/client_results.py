"""Anchors from the result files of load generators: one file per concurrency, and prompts one at a time.

Read are ``median_itl_ms``, ``mean_tpot_ms`` and ``mean_ttft_ms`` of vLLM's and SGLang's serving benchmarks; of JSON
lines the last one. A decode figure is the median time between tokens of a single wave (as many prompts as run at
once), else of a refilling loop, else the mean time per output token; all rows of a sweep are one and the same.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import GapscopeError

COALESCING = 1.25
"""Median time between chunks, in mean times per token, from which chunks hold more than a token each."""
LARGEST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Result:
    """What one file says: requests at once and in all, their mean lengths, and its figures in milliseconds."""

    path: Path
    concurrency: int
    prompts: int | None
    input_len: float | None
    output_len: float | None
    median_itl_ms: float | None
    mean_tpot_ms: float | None
    mean_ttft_ms: float | None
    model: str | None
    backend: str | None

    @property
    def observable(self) -> str:
        """The best decode figure of the file."""
        itl, tpot = self.median_itl_ms, self.mean_tpot_ms
        if itl is None or (tpot is not None and itl > COALESCING * tpot):
            return "mean_tpot"
        return "median_itl_single_wave" if self.prompts == self.concurrency else "median_itl"


_BEST_FIRST = ("median_itl_single_wave", "median_itl", "mean_tpot")


def document_of(paths: Sequence[Path], meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The artefact of a sweep's result files; ``meta`` is what they do not say, and wins over what they do.

    Raises:
        GapscopeError: a file is no such result, says no concurrency or no decode figure; two say the same of one
            concurrency and length.
    """
    results = [read_result(path) for path in paths]
    length = Counter(r.input_len for r in results).most_common(1)[0][0]
    sweep: dict[int, Result] = {}
    for result in results:
        if result.input_len != length:
            if result.concurrency != 1:
                raise GapscopeError(
                    f"{result.path} has prompts of {result.input_len} tokens, and the sweep of {length}: expected one "
                    "length, except for prompts one at a time."
                )
            continue
        if result.concurrency in sweep:
            raise GapscopeError(
                f"{result.path} and {sweep[result.concurrency].path} both have {result.concurrency} requests at once: "
                "give one of them."
            )
        sweep[result.concurrency] = result
    observable = max((r.observable for r in sweep.values()), key=_BEST_FIRST.index)
    rows = []
    for concurrency, result in sorted(sweep.items()):
        ms = result.mean_tpot_ms if observable == "mean_tpot" else result.median_itl_ms
        if ms is None:
            raise GapscopeError(f"{result.path} has no {_FIGURES[observable]}, which the other files are read for.")
        rows.append({"batch": concurrency, "decode_ms": ms})
    outputs = [r.output_len for r in sweep.values() if r.output_len is not None]
    known: dict[str, Any] = {
        "model": _one(results, "model"),
        "input_len": length,
        "output_len": outputs[0] if outputs else None,
        "decode_observable": observable,
    }
    points = {
        r.input_len: r.mean_ttft_ms
        for r in results
        if r.concurrency == 1 and r.input_len is not None and r.mean_ttft_ms is not None
    }
    if points:
        known["prefill_anchor"] = {"points": [{"input_len": n, "mean_ttft_ms": ms} for n, ms in sorted(points.items())]}
    given = dict(meta or {})
    backend = given.pop("backend", None) or _one(results, "backend")
    return {
        "backend": backend,
        "client": "result files",
        "meta": {key: value for key, value in {**known, **given}.items() if value is not None},
        "sweep": rows,
    }


_FIGURES = {
    "median_itl_single_wave": "median_itl_ms",
    "median_itl": "median_itl_ms",
    "mean_tpot": "mean_tpot_ms",
}


def read_result(path: Path) -> Result:
    """One file.

    Raises:
        GapscopeError: it cannot be read, or is no such result.
    """
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise GapscopeError(f"{path} is larger than {LARGEST_BYTES:,} bytes: expected the summary of a benchmark.")
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise GapscopeError(f"Cannot read {path}: {error}.") from None
    value = _parsed(text, path)
    concurrency = _count(value.get("max_concurrency"))
    done, prompts = _count(value.get("completed")), _count(value.get("num_prompts"))
    if concurrency is None:
        raise GapscopeError(f"{path} does not say max_concurrency: expected a result of vLLM's or SGLang's benchmark.")
    if prompts is not None and done is not None and done < prompts:
        raise GapscopeError(f"{path}: {done} of {prompts} requests were completed; expected a run without failures.")
    result = Result(
        path,
        concurrency,
        prompts or done,
        _mean(value.get("total_input_tokens"), done) or _number(value.get("random_input_len")),
        _mean(value.get("total_output_tokens"), done) or _number(value.get("random_output_len")),
        _number(value.get("median_itl_ms")),
        _number(value.get("mean_tpot_ms")),
        _number(value.get("mean_ttft_ms")),
        _text(value.get("model_id")) or _text((value.get("server_info") or {}).get("model_path")),
        _engine(value),
    )
    if result.median_itl_ms is None and result.mean_tpot_ms is None:
        raise GapscopeError(f"{path} has neither median_itl_ms nor mean_tpot_ms: expected a benchmark of decodes.")
    return result


def _parsed(text: str, path: Path) -> dict[str, Any]:
    last = text.rpartition("\n")[2]
    for candidate in (text, last):
        try:
            value = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    raise GapscopeError(f"{path} is neither a JSON object nor lines of them: expected the summary of a benchmark.")


def _engine(value: Mapping[str, Any]) -> str | None:
    """The engine, where the name of the client's protocol is that of one."""
    if isinstance(value.get("server_info"), Mapping):
        return "sglang"
    word = str(value.get("backend") or "").lower()
    return word if word in ("vllm", "sglang", "atom", "trt", "lmdeploy") else None


def _one(results: Sequence[Result], name: str) -> Any:
    """What all files say that say something.

    Raises:
        GapscopeError: they differ.
    """
    said = {getattr(result, name) for result in results} - {None}
    if len(said) > 1:
        raise GapscopeError(f"The files name several of {name} ({', '.join(sorted(said))}): expected one sweep.")
    return next(iter(said), None)


def _mean(total: Any, count: int | None) -> float | None:
    number = _number(total)
    return None if number is None or not count else round(number / count, 3)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number and value > 0 else None


def _count(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number.is_integer() else None


def _text(value: Any) -> str | None:
    return str(value).strip() or None if value else None
