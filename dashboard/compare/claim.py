"""The bounded claim: what a comparison shows, and what it does not, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dashboard.compare.gates import GateResult
from dashboard.compare.rows import ALIKE, NEARLY, Row, judged, nearly_equal, places
from dashboard.metrics import Population
from dashboard.queries.identity import IdentityDiff, said_differing

_LABELS = {
    "blind_prediction": "A blind prediction: at its sealing the measured run was neither held nor fitted on.",
    "diagnostic": "A diagnostic replay: it takes something from a measurement or covers a part, and predicts nothing.",
    "post_result_exploratory": "Exploratory: the result could have been known when the replay was made.",
    "measured_repeat": "Two runs of one experiment: their gap is run-to-run variation, not an error of a model.",
    "replay_pair": "Two replays: their gap says what the change between them does, nothing about a measurement.",
    "same_run": "A run against itself: every gap is zero and shows nothing.",
}
SWAPPED = (
    "The sides are swapped: the reference is a replay, the run compared with it a recording. A gap is the recording "
    "over the replay, so its sign is the other one of a model's error."
)


def claim(
    rows: Sequence[Row],
    gates: Sequence[GateResult],
    label: str,
    population: Population,
    successes: tuple[int, int],
    diff: IdentityDiff,
    failed: Sequence[str] = (),
    kinds: tuple[str, str] = ("measured", "replay"),
) -> list[str]:
    """Sentences, the first of them the label. A passed mean never claims a tail.

    ``successes`` are those of ``population`` on either side: what the gaps rest on. ``failed`` names the checks that a
    run of two measured ones failed; ``kinds`` are those of the two runs, which say what the sides are called.
    """
    known = {str(row.key): row for row in rows}
    sentences = [_two_measurements(diff, failed) if label == "measured_pair" else _LABELS[label]]
    alike = places(*kinds) == ALIKE
    if alike and kinds[0] != kinds[1]:
        sentences.append(SWAPPED)
    first, second = (
        ("successes of the reference", "of the run compared with it") if alike else ("measured", "replayed successes")
    )
    sentences.append(
        f"Over {successes[0]} {first} and {successes[1]} {second} ({population.words}), "
        f"{_gaps(known, ('ttft.mean', 'tpot.mean', 'e2e.mean', 'request_rate'))}."
    )
    compared = [row for row in rows if row.state != "not comparable"]
    sentences.append(_counted(compared, label, "reference" if alike else "measured side"))
    if gates:
        failed = [result.gate.text for result in gates if result.verdict == "fail"]
        named = f"; {'this does' if len(failed) == 1 else 'these do'} not: {', '.join(failed)}." if failed else "."
        sentences.append(gates_hold(gates) + named)
    else:
        sentences.append("No acceptance contract was given, so nothing here passes or fails.")
    missing: dict[str, list[str]] = {}
    for row in rows:
        if row.state == "not comparable":
            names = missing.setdefault(row.reason.rstrip("."), [])
            names += [row.key.label] if row.key.label not in names else []
    not_shown = [f"{', '.join(names)} ({reason})" for reason, names in missing.items()]
    known_worse = [row for row in rows if row.state in ("better", "worse") and row.noise]
    tails = [str(row.key) for row in known_worse if row.key.statistic in ("p95", "p99")]
    if tails:
        sentences.append(f"Not shown: agreement in the tail; outside the noise are {', '.join(tails)}.")
    left_open: dict[str, list[str]] = {}
    for row in rows:
        if row.state == "open":
            left_open.setdefault(judged(row), []).append(str(row.key))
    sentences += [f"Not shown: a difference in {', '.join(names)} ({why})." for why, names in left_open.items()]
    if not_shown:
        sentences.append(f"Not comparable: {'; '.join(not_shown)}.")
    if diff.unknown:
        sentences.append(
            f"Of the identity fields {diff.unknown} are unknown on a side or both, {said_differing(diff.rows)}: "
            "the claim holds for the recorded deployment only."
        )
    return sentences


def brief(sentences: Sequence[str]) -> str:
    """The claim in one line: what the gaps rest on and are, what is inside the noise, gates, and what is not shown.

    ``sentences`` are those of :func:`claim`. The label stands beside it, and the identity with its counts.
    """
    kept = re.compile(r"Over |Not shown: |\d+ of \d+ gates? |.* compared numbers are ")
    return " ".join(one for one in sentences if kept.match(one))


def gates_hold(gates: Sequence[GateResult]) -> str:
    """How many gates of a contract hold."""
    held, one = sum(result.verdict == "pass" for result in gates), len(gates) == 1
    return f"{held} of {len(gates)} gate{'' if one else 's'} hold{'s' if one else ''}"


def _counted(compared: Sequence[Row], label: str, first: str) -> str:
    """How many of the numbers are inside the noise, and of how many that cannot be said."""
    if label == "measured_repeat":
        return f"None of {len(compared)} compared numbers are judged: a repeat of the measured run is what noise is."
    inside = sum(row.state in ("~", "same") for row in compared)
    unjudged = sum(row.noise is None and row.state not in ("same", "open") for row in compared)
    left_open = sum(row.state == "open" for row in compared)
    outside = len(compared) - inside - unjudged - left_open
    parts = [f"{inside} of {len(compared)} compared numbers are equal or inside the noise of the {first}"]
    if outside:
        parts.append(f"{outside} {'is' if outside == 1 else 'are'} outside of it")
    if left_open:
        parts.append(f"{left_open} beyond too few repeats are not shown to differ")
    if unjudged:
        parts.append(f"for {unjudged} the noise is unknown")
    return "; ".join(parts) + "."


def _two_measurements(diff: IdentityDiff, failed: Sequence[str]) -> str:
    """What two measured runs show that are no repeats: run-to-run variation and whatever else differs, named."""
    rules = [row.label for row in diff.rows if row.group == "definitions" and row.state == "differs"]
    one_sided = diff.count("unknown_left", "unknown_right")
    named = f", among them definitions: {', '.join(rules)}" if rules else ""
    parts = []
    if diff.differing:
        parts.append(f"differing identity fields ({diff.differing}{named})")
    if one_sided:
        parts.append(f"fields known of one run only ({one_sided})")
    if failed:
        parts.append(f"failed checks ({', '.join(failed)})")
    return (
        "Two measurements that are no repeats of one experiment: their gap is no error of a model, and mixes "
        f"run-to-run variation with {', '.join(parts)}."
    )


def _gaps(known: dict[str, Row], names: Sequence[str]) -> str:
    parts = []
    for name in names:
        row = known.get(name) or next((r for key, r in known.items() if key.startswith(name + ".")), None)
        if row is not None and row.gap is not None:
            shown = NEARLY if nearly_equal(row) else f"{row.gap:+.1%}"
            parts.append(f"{row.key.words} {shown}{_mark(row)}")
    return "gaps are " + ", ".join(parts) if parts else "no gap is defined"


def _mark(row: Row) -> str:
    """What stands behind a gap in a sentence; nothing where it is outside the noise."""
    if row.state in ("same", "repeat"):
        return ""
    if row.noise is None:
        return " (noise unknown)"
    return {"~": " (inside the noise)", "open": f" ({judged(row)})"}.get(row.state, "")
