"""What a rung of the alignment is made of: checks with figures and a bound, its verdict, and what one would need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dashboard.compare.noise import ENOUGH_REPEATS, Noise, open_words, place

Verdict = Literal["pass", "fail", "unknown"]
WORDS: dict[Verdict, str] = {"pass": "passes", "fail": "fails", "unknown": "cannot be judged"}
REPEATS = f"Repeats of the measured run: from {ENOUGH_REPEATS} on they decide alone."
MEASURED, REPLAY, BOTH = "measured", "replay", "both"


@dataclass(frozen=True, slots=True)
class Check:
    """One figure beside what it should be.

    ``side`` is the run that the figures are of; of a check on both, ``expected`` is the measured figure. ``allowed`` is
    how far off it may be, as a share of what is expected, and ``noise`` how far the measured side moves by itself to
    the side on which the figure lies. A check that does not ``decide`` can fail a rung and cannot make it pass.
    """

    name: str
    side: str
    expected: float | str | None
    found: float | str | None
    unit: str
    verdict: Verdict
    why: str = ""
    needed: str = ""
    allowed: float | None = None
    noise: float | None = None
    n: int | None = None
    decides: bool = True

    @property
    def open(self) -> bool:
        """Whether it has its figures and lies beyond too few repeats to be judged."""
        return self.verdict == "unknown" and self.expected is not None and self.found is not None

    @property
    def off(self) -> float | None:
        """found / expected - 1, signed; None where either is unknown or no number, or zero was expected."""
        if isinstance(self.expected, str) or isinstance(self.found, str):
            return None
        return share_off(self.expected, self.found)


@dataclass(frozen=True, slots=True)
class Rung:
    """One rung with its own verdict. ``says`` is a sentence on it, ``needed`` what would let the rest be judged."""

    number: int
    name: str
    question: str
    checks: tuple[Check, ...]
    verdict: Verdict
    says: str
    needed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what a reader must know of the figures

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that fail."""
        return tuple(check for check in self.checks if check.verdict == "fail")


def share_off(expected: float | None, found: float | None) -> float | None:
    """found / expected - 1; None where that is not defined."""
    if expected is None or found is None or not expected or not math.isfinite(expected) or not math.isfinite(found):
        return None
    return found / expected - 1


def held(
    name: str,
    side: str,
    expected: float | None,
    found: float | None,
    unit: str,
    tolerance: float,
    *,
    noise: Noise | None = None,
    why: str = "",
    needed: str = "",
    n: int | None = None,
    decides: bool = True,
) -> Check:
    """A check that passes where the figure is no further off than the tolerance, or inside the noise of the measured
    side. One that is beyond few repeats, and not confirmed by redrawing, cannot be judged."""
    if expected is None or found is None:
        return Check(name, side, expected, found, unit, "unknown", why or "not recorded", needed, tolerance, n=n)
    where, moves = place(noise, found), _moves(noise, expected, found)
    verdict: Verdict = "fail"
    if abs(found - expected) <= tolerance * abs(expected) or where == "inside":
        verdict = "pass"
    elif where == "open" and noise:
        verdict = "unknown"
        said = open_words(noise)
        why = why if said in why else "; ".join(filter(None, (why, said)))
        needed = needed or REPEATS
    allowed = max(tolerance, moves or 0.0)
    return Check(name, side, expected, found, unit, verdict, why, needed, allowed, moves, n, decides)


def _moves(noise: Noise | None, expected: float, found: float) -> float | None:
    """How far the noise reaches to the side on which a figure lies, as a share of what is expected."""
    if noise is None or not expected:
        return None
    return max(0.0, (noise.high - expected if found >= expected else expected - noise.low) / abs(expected))


def by_repeats(expected: float | None, shares: Sequence[float]) -> Noise | None:
    """The noise of a figure of which repeats of the measured run are off by these shares; None without any."""
    if expected is None or not shares:
        return None
    width = max(abs(share) for share in shares) * abs(expected)
    return Noise("repeats", expected - width, expected + width, len(shares))


def between(
    name: str, side: str, low: float, high: float, found: float, unit: str, *, why: str = "", n: int | None = None
) -> Check:
    """A check that passes inside a range; the end that is nearer is what is expected."""
    verdict: Verdict = "pass" if low <= found <= high else "fail"
    return Check(name, side, min(max(found, low), high), found, unit, verdict, why, "", 0.0, None, n)


def unknown(name: str, side: str, why: str, needed: str = "", unit: str = "", n: int | None = None) -> Check:
    """A check without figures."""
    return Check(name, side, None, None, unit, "unknown", why, needed, n=n)


def verdict_of(checks: Sequence[Check]) -> Verdict:
    """Fail where any check fails, pass where one that decides passes and none is open, else unknown."""
    if any(check.verdict == "fail" for check in checks):
        return "fail"
    if any(check.open and check.decides for check in checks):
        return "unknown"
    return "pass" if any(check.verdict == "pass" and check.decides for check in checks) else "unknown"


def counted(checks: Sequence[Check]) -> str:
    """How many checks hold, as a sentence begins."""
    passed, failed = (sum(check.verdict == verdict for check in checks) for verdict in ("pass", "fail"))
    open_ = sum(check.open for check in checks)
    unmade = len(checks) - passed - failed - open_
    words = [f"{passed} of {passed + failed} checks hold"] if passed + failed else ["no check could be made"]
    if open_:
        words.append(f"{open_} beyond too few repeats")
    if unmade and passed + failed:
        words.append(f"{unmade} could not be made")
    return ", ".join(words)


def needs(checks: Sequence[Check]) -> tuple[str, ...]:
    """What would let the checks be made that could not, each once."""
    return tuple(dict.fromkeys(check.needed for check in checks if check.verdict == "unknown" and check.needed))
