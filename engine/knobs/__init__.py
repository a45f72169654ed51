"""Every setting of a replay, once. The command line and the what-if page read this table."""

from engine.knobs.knob import Knob
from engine.knobs.resolve import defaults, resolve
from engine.knobs.table import BY_NAME, DEPLOYMENT, GROUPS, HOST_TERMS, KNOBS, OF_PREFILL, OTHERS_ONLY, SGLANG_ONLY

__all__ = [
    "BY_NAME",
    "DEPLOYMENT",
    "GROUPS",
    "HOST_TERMS",
    "KNOBS",
    "OF_PREFILL",
    "OTHERS_ONLY",
    "SGLANG_ONLY",
    "Knob",
    "defaults",
    "resolve",
]
