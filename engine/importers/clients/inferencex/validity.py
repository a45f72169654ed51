"""What an InferenceX result says twice, and whether it says the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engine.bundle import Check
from engine.importers.clients.inferencex.header import gpus
from engine.importers.clients.plausible import statistics_ordered, units_plausible
from engine.importers.clients.values import count, dig, mapping, truth
from engine.intake.rows import number

ROUNDING = 1e-5
"""Results are rounded to five decimals."""
_CLOSE = 0.005


def common_checks(rows: list[dict[str, Any]], output_tokens: float | None) -> Iterator[Check]:
    """Checks of any summary: order of its statistics, units."""
    yield statistics_ordered(row for row in rows if row["name"] not in ("intvty", "full_response_intvty"))
    stated = {(row["name"], row["statistic"]): row["value"] for row in rows if row["scope"] == "run"}

    def mean(*names: str) -> float | None:
        return next((stated[n, w] for n in names for w in ("mean", "p50") if (n, w) in stated), None)

    yield units_plausible(mean("e2el", "ttlt"), mean("ttft"), output_tokens, "figures taken as seconds")


def fixed_checks(point: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[Check]:
    """Checks of a result of fixed lengths."""
    osl = number(point.get("osl"))
    yield from common_checks(rows, osl)
    yield _interactivity(point)
    yield _per_gpu_sum(point)


def _interactivity(point: dict[str, Any]) -> Check:
    """intvty = 1 / tpot, where both are stated."""
    wrong, asked = [], 0
    for key, value in point.items():
        tpot = number(point.get(key.removesuffix("_intvty") + "_tpot")) if key.endswith("_intvty") else None
        rate = number(value)
        if tpot is None or rate is None or tpot <= 0:
            continue
        asked += 1
        if abs(rate * tpot - 1) > _CLOSE:
            wrong.append(f"{key} {rate:.6g} where 1 / {tpot:.6g} s is {1 / tpot:.6g}")
    if not asked:
        return Check("interactivity", "unknown", "no interactivity is stated beside a TPOT")
    verdict = "fail" if wrong else "pass"
    return Check("interactivity", verdict, "; ".join(wrong[:3]) or f"{asked} values of intvty are 1 / TPOT in seconds")


def _per_gpu_sum(point: dict[str, Any]) -> Check:
    """Total = input + output, each over its own GPUs."""
    rates = [number(point.get(f"{side}tput_per_gpu")) for side in ("", "input_", "output_")]
    total_gpus = gpus(point)
    if None in rates or not total_gpus:
        return Check("per_gpu_rates", "unknown", "the three rates per GPU or the number of GPUs are not stated")
    shares = [count(point.get("num_prefill_gpu")) or total_gpus, count(point.get("num_decode_gpu")) or total_gpus]
    total, given, made = (rate or 0.0 for rate in rates)
    expected = (given * shares[0] + made * shares[1]) / total_gpus
    agrees = abs(total - expected) <= _CLOSE * max(abs(total), abs(expected))
    detail = (
        f"{total:.6g} tok/s/GPU in all; input {given:.6g} over {shares[0]} GPUs and output {made:.6g} over "
        f"{shares[1]} make {expected:.6g} over {total_gpus}"
    )
    return Check("per_gpu_rates", "pass" if agrees else "fail", detail)


def agentic_checks(point: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[Check]:
    """Checks of an AgentX result."""
    metrics = mapping(point.get("request_metrics"))
    yield from common_checks(rows, number(dig(metrics, "tokens", "output_actual", "mean")))
    accounting = mapping(point.get("request_accounting"))
    yield _accounting(accounting, point)
    yield _dropped(accounting)
    yield _copy(mapping(metrics.get("latency")))
    yield _rates(mapping(metrics.get("throughput")), gpus(point))
    present = truth(dig(point, "server_metrics", "present"))
    if present is not None:
        detail = "the server's own figures were recorded" if present else "no figures of the server were recorded"
        yield Check("server_metrics_present", "pass" if present else "unknown", detail)


def _accounting(accounting: Mapping[str, Any], point: dict[str, Any]) -> Check:
    """Every record is profiled or dropped, and every drop is a warm-up or an error."""
    keys = ("records_total", "records_profiled", "records_dropped_total", "records_warmup_dropped")
    total, profiled, dropped, warmup = (count(accounting.get(key)) for key in keys)
    errors = count(accounting.get("records_error_dropped"))
    if total is None or profiled is None or dropped is None or warmup is None or errors is None:
        return Check("records_accounted", "unknown", "request_accounting does not state all five counts")
    problems = []
    if profiled + dropped != total:
        problems.append(f"{profiled} profiled and {dropped} dropped of {total} records")
    if warmup + errors != dropped:
        problems.append(f"{warmup} warm-up and {errors} errors of {dropped} dropped")
    successful = count(point.get("num_requests_successful"))
    if successful is not None and successful != profiled:
        problems.append(f"{successful} successful requests where {profiled} records were profiled")
    if problems:
        return Check("records_accounted", "fail", "; ".join(problems))
    detail = f"{total} records: {profiled} profiled, {warmup} of the warm-up, {errors} errors"
    return Check("records_accounted", "pass", detail)


def _dropped(accounting: Mapping[str, Any]) -> Check:
    errors = count(accounting.get("records_error_dropped"))
    if errors is None:
        return Check("errors_dropped", "unknown", "the number of dropped errors is not stated")
    if not errors:
        return Check("errors_dropped", "pass", "no request was dropped as an error")
    kinds = mapping(accounting.get("error_categories"))
    named = ", ".join(f"{name}: {number_}" for name, number_ in list(kinds.items())[:4]) or "no categories are stated"
    return Check("errors_dropped", "fail", f"{errors} requests failed and are in no figure ({named})")


def _copy(latency: Mapping[str, Any]) -> Check:
    """tpot is written as a copy of itl."""
    tpot, itl = mapping(latency.get("tpot")), mapping(latency.get("itl"))
    pairs = [(key, number(tpot[key]), number(itl[key])) for key in tpot if key in itl]
    known = [(key, a, b) for key, a, b in pairs if a is not None and b is not None]
    if not known:
        return Check("tpot_is_itl", "unknown", "tpot and itl are not both stated")
    apart = [f"{key} {a:.6g} and {b:.6g}" for key, a, b in known if abs(a - b) > ROUNDING]
    if apart:
        return Check("tpot_is_itl", "fail", f"tpot and itl were the same so far, and differ: {'; '.join(apart[:3])}")
    return Check("tpot_is_itl", "pass", "tpot is a copy of itl, which is AIPerf's inter token latency")


def _rates(block: Mapping[str, Any], number_of_gpus: int | None) -> Check:
    """Rates per GPU times GPUs are the rates, and input + output = total."""
    rates = {side: number(dig(block, side, "tokens_per_second")) for side in ("input", "output", "total")}
    problems, asked = [], 0
    given, made, total = rates["input"], rates["output"], rates["total"]
    if given is not None and made is not None and total is not None:
        asked += 1
        if abs(given + made - total) > _CLOSE * abs(total) + ROUNDING:
            problems.append(f"input {given:.6g} + output {made:.6g} are not the total {total:.6g} tok/s")
    for side, rate in rates.items():
        per_gpu = number(dig(block, "per_gpu", f"{side}_tput_tps"))
        if rate is None or per_gpu is None or not number_of_gpus:
            continue
        asked += 1
        if abs(per_gpu * number_of_gpus - rate) > _CLOSE * abs(rate) + ROUNDING * number_of_gpus:
            problems.append(f"{side}: {per_gpu:.6g} tok/s/GPU on {number_of_gpus} GPUs are not {rate:.6g} tok/s")
    if not asked:
        return Check("per_gpu_rates", "unknown", "no rates are stated that could be compared")
    return Check("per_gpu_rates", "fail" if problems else "pass", "; ".join(problems) or f"{asked} relations hold")
