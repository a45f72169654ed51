"""What a part can move and compute in a nanosecond, and the time of one matrix product.

A product takes the longer of two times: that of its bytes at the share of the memory rate that kernels reach, and that
of its arithmetic at the share of the peak.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.deployment import Part, dtype_bytes
from engine.timing.analytic.amounts import Amount, larger

VALUE_BYTES = 2.0
"""Of an activation between kernels."""
WEIGHT_ONLY = frozenset({"int4"})
"""Formats that weights are kept in while products are computed in bf16."""


@dataclass(frozen=True, slots=True)
class Format:
    """What weights of a format cost: bytes of a weight and of an input, TFLOPS of their products and the share reached.

    A share is that of products alone. One over a whole model, such as a utilisation of model FLOPs, holds the time of
    everything between them too, which is priced by itself here.
    """

    weight_bytes: float
    input_bytes: float
    tflops: float
    share: float


def format_of(dtype: str, part: Part) -> Format:
    """The format on a part; one that it has no arithmetic for is computed in bf16.

    Raises:
        GapscopeError: no such format.
    """
    size = dtype_bytes(dtype)
    rate: float | None = part.bf16_tflops if size == VALUE_BYTES else None
    bf16 = part.bf16_share or part.compute_share
    share = bf16 if size == VALUE_BYTES else part.compute_share
    if size > VALUE_BYTES:
        return Format(size, size, part.bf16_tflops / 2, bf16)
    if size == 1.0:
        rate, share = part.fp8_tflops, part.fp8_share or share
    elif size < 1.0 and dtype not in WEIGHT_ONLY:
        rate = part.fp4_tflops
    return Format(size, size, rate, share) if rate else Format(size, VALUE_BYTES, part.bf16_tflops, bf16)


class Rates:
    """Of one part, in bytes and operations per nanosecond, as kernels reach them."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.stream = part.hbm_tb_s * 1e3 * part.bandwidth_share
        self.elementwise = part.hbm_tb_s * 1e3 * part.elementwise_share
        self.bf16 = part.bf16_tflops * 1e3 * part.compute_share
        """Of kernels besides matrix products."""

    def products(self, form: Format) -> float:
        """Operations per nanosecond of large matrix products."""
        return form.tflops * 1e3 * form.share

    def of(self, dtype: str) -> Format:
        """The format on this part."""
        return format_of(dtype, self.part)


class Gemm:
    """``count`` products of m rows of ``k`` values with weights k x n: nanoseconds by m."""

    def __init__(self, rates: Rates, k: float, n: float, form: Format, count: float = 1.0) -> None:
        self._row = count * (k * form.input_bytes + n * VALUE_BYTES) / rates.stream
        self._weights = count * k * n * form.weight_bytes / rates.stream
        self._arithmetic = count * 2.0 * k * n / rates.products(form)

    def __call__(self, m: Amount) -> Amount:
        """Nanoseconds for ``m`` rows."""
        return larger(self._row * m + self._weights, self._arithmetic * m)


def total(gemms: tuple[Gemm, ...], m: Amount) -> Amount:
    """Nanoseconds of products one after the other, all of ``m`` rows."""
    time: Amount = 0.0
    for gemm in gemms:
        time = time + gemm(m)
    return time
