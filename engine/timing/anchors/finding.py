"""One refusal or warning of an anchor as a value, so that a page can show all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """One refusal or warning: a code for programs, a sentence for people, and the figures in it."""

    code: str
    sentence: str
    figures: Mapping[str, Any] = field(default_factory=dict)
