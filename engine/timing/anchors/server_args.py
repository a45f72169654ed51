"""Facts that the command line of a server states; dashes and underscores are alike, values follow ``=`` or a space."""

from __future__ import annotations

import shlex

_CACHE_OFF = ("no-enable-prefix-caching", "disable-prefix-caching", "disable-radix-cache")
_CACHE_ON = "enable-prefix-caching"
_DP_ON = ("enable-dp-attention", "enable-dp-attn")
_DP_SIZES = ("dp-size", "attention-dp-size", "data-parallel-size")
_EAGER = ("enforce-eager", "disable-cuda-graph")


def flags_of(text: str | None) -> dict[str, str | None] | None:
    """Each flag with its value (None: it has none); None where there is no command line."""
    if not text or not text.strip():
        return None
    try:
        words = shlex.split(text)
    except ValueError:  # an open quote: the words are still there
        words = text.split()
    flags: dict[str, str | None] = {}
    for at, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        follows = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("--") else None
        flags[name.replace("_", "-").lower()] = value if equals else follows
    return flags


def prefix_caching(text: str | None) -> bool | None:
    """Whether the prefix cache was on; None where the command line does not say."""
    flags = flags_of(text) or {}
    if any(name in flags for name in _CACHE_OFF):
        return False
    return True if _CACHE_ON in flags else None


def attention_dp(text: str | None, tp: int) -> int | None:
    """Attention data-parallel ranks. Silence means off, as it is asked for on every engine; no command line: None."""
    flags = flags_of(text)
    if flags is None:
        return None
    if "disable-dp-attention" in flags:
        return 1
    if any(name in flags for name in _DP_ON):
        return next((size for name in _DP_SIZES if (size := _count(flags.get(name)))), tp)
    return _count(flags.get("data-parallel-size")) or 1


def eager(text: str | None) -> bool | None:
    """Whether graphs were switched off; None where there is no command line."""
    flags = flags_of(text)
    return None if flags is None else any(name in flags for name in _EAGER)


def _count(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdecimal() and int(value) > 0 else None
