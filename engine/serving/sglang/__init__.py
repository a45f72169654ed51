"""SGLang's scheduler and radix cache."""

from __future__ import annotations

from engine.serving.sglang.server import SglangServer

__all__ = ["SglangServer"]
