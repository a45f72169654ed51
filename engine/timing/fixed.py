"""The ``fixed`` source: a pass costs what four constants say. For tests and control-flow studies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from engine.bundle.schema import RESOLUTIONS
from engine.timing.contract import PassQueries, PassTimes


def build(knobs: Mapping[str, Any], model: Mapping[str, Any] | None = None) -> FixedTiming:
    """The source from the ``fixed_*`` knobs; a model is not looked at."""
    return FixedTiming(knobs, between_ns=max(0, round(float(knobs["between_passes_ms"]) * 1e6)))


class FixedTiming:
    """pass = base + per new prompt token + per decoding request + per KV token read, times a scale.

    The constants are the ``fixed_*`` knobs. No answer rests on a measurement, so every one is *analytic*.
    """

    def __init__(self, knobs: Mapping[str, Any], between_ns: int = 0) -> None:
        scale = float(knobs["pass_scale"])
        self.between_ns = between_ns
        self._base = float(knobs["fixed_pass_us"]) * 1e3 * scale
        self._token = float(knobs["fixed_prefill_token_us"]) * 1e3 * scale
        self._request = float(knobs["fixed_decode_request_us"]) * 1e3 * scale
        self._kv = float(knobs["fixed_kv_token_ns"]) * scale
        self._base_ns = int(self._base + 0.5)
        self._constants = {k: v for k, v in knobs.items() if k.startswith("fixed_") or k == "pass_scale"}

    def pass_ns(
        self,
        prefill_requests: int,
        new_tokens: int,
        prefill_kv_tokens: int,
        decode_requests: int,
        decode_kv_tokens: int,
    ) -> int:
        """Duration of one pass in nanoseconds, at least 1."""
        prefill = int(self._token * new_tokens + self._kv * prefill_kv_tokens + 0.5)
        decode = int(self._request * decode_requests + self._kv * decode_kv_tokens + 0.5)
        return self._base_ns + prefill + decode or 1

    def decode_run(
        self, decode_requests: int, contexts: Iterable[int], now_ns: int, until_ns: int
    ) -> tuple[list[int], list[int], int]:
        """See :class:`DecodeRuns`."""
        starts: list[int] = []
        durations: list[int] = []
        requests, kv, base, between = self._request * decode_requests, self._kv, self._base_ns, self.between_ns
        for context in contexts:
            duration = base + int(requests + kv * context + 0.5) or 1
            starts.append(now_ns)
            durations.append(duration)
            now_ns += duration + between
            if now_ns >= until_ns:
                break
        return starts, durations, now_ns

    def explain(self, queries: PassQueries) -> PassTimes:
        """The same answers for whole arrays."""
        n = len(queries)
        prefill = np.floor(self._token * queries.new_tokens + self._kv * queries.prefill_kv_tokens + 0.5)
        decode = np.floor(self._request * queries.decode_requests + self._kv * queries.decode_kv_tokens + 0.5)
        prefill_ns, decode_ns = prefill.astype(np.int64), decode.astype(np.int64)
        overhead = np.full(n, self._base_ns, dtype=np.int64)
        overhead[prefill_ns + decode_ns + overhead == 0] = 1
        return PassTimes(
            prefill_ns=prefill_ns,
            decode_ns=decode_ns,
            overhead_ns=overhead,
            resolution=np.full(n, RESOLUTIONS.index("analytic"), dtype=np.int8),
            source=np.zeros(n, dtype=np.int8),
            sources=("fixed",),
            sites=np.zeros(n, dtype=np.int32),
            site_names=("constants",),
        )

    def describe(self) -> dict[str, Any]:
        """The constants (JSON-ready)."""
        return {"kind": "fixed", "constants": self._constants, "between_ns": self.between_ns}
