"""What a verification of drafts takes, from an anchor that was measured with drafts or without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import GapscopeError
from engine.timing.acceptance import acceptance_length
from engine.timing.anchors.artefact import Anchor
from engine.timing.anchors.regime import of_anchor


@dataclass(frozen=True, slots=True)
class Verify:
    """How a step that verifies ``width`` tokens per request comes from a measured one.

    ``tokens`` multiplies figures that are times per output token; ``scaled`` says whether a plain step is made a
    verification by the formula; ``drafting`` is what drafts take, in plain steps.
    """

    width: int = 1
    tokens: float = 1.0
    scaled: bool = False
    drafting: float = 0.0

    @property
    def measured_width(self) -> int:
        """Tokens per request of the steps that were measured."""
        return 1 if self.scaled else self.width


def verify_of(anchor: Anchor, knobs: Mapping[str, Any]) -> Verify:
    """How verifications come from what was measured.

    An anchor that was measured with drafts has times per output token, of which a verification takes as many as it
    yields; its drafting is in them. A plain one is scaled by the formula, and what drafts cost is added.

    Raises:
        GapscopeError: how many tokens its verifications yielded is not known.
    """
    drafts = knobs["spec_tokens"]
    if not drafts:
        return Verify()
    speculated = (of_anchor(anchor)["speculation"] or "off") != "off"
    if not speculated:
        return Verify(1 + drafts, scaled=True, drafting=knobs["spec_draft_cost"] * drafts)
    if anchor.observable == "pass":
        return Verify(1 + drafts)
    length = anchor.meta.get("speculative_acceptance_length") or asked_length(knobs)
    if not length:
        raise GapscopeError(
            f"Anchor {anchor.name} has times per output token, measured with drafts: how many tokens a verification "
            "yields is needed (spec_acceptance or spec_mean_length)."
        )
    return Verify(1 + drafts, tokens=float(length))


def asked_length(knobs: Mapping[str, Any]) -> float:
    """Mean tokens of a verification, by the knobs; 0 where they say nothing."""
    if knobs["spec_mean_length"]:
        return float(knobs["spec_mean_length"])
    rates = [float(rate) for rate in str(knobs["spec_acceptance"]).split(",") if rate.strip()]
    if not rates:
        return 0.0
    return acceptance_length(rates * knobs["spec_tokens"] if len(rates) == 1 else rates)
