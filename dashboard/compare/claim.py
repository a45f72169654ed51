"""The bounded claim: what a comparison shows, and what it does not, in words."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.compare.gates import GateResult
from dashboard.compare.rows import NEARLY, Row, nearly_equal
from dashboard.metrics import Population
from dashboard.queries.identity import IdentityDiff

_LABELS = {
    "blind_prediction": "A blind prediction: at its sealing the measured run was neither held nor fitted on.",
    "diagnostic": "A diagnostic replay: it takes something from a measurement or covers a part, and predicts nothing.",
    "post_result_exploratory": "Exploratory: the result could have been known when the replay was made.",
    "measured_repeat": "Two runs of one experiment: their gap is run-to-run variation, not an error of a model.",
    "replay_pair": "Two replays: their gap says what the change between them does, nothing about a measurement.",
    "same_run": "A run against itself: every gap is zero and shows nothing.",
}
PLACES = dict.fromkeys(
    ("measured_repeat", "measured_pair", "replay_pair", "same_run"), ("reference", "compared with it")
)
"""What the two sides are called where they are not a recording and a replay; the columns keep their names."""


def claim(
    rows: Sequence[Row],
    gates: Sequence[GateResult],
    label: str,
    population: Population,
    successes: tuple[int, int],
    diff: IdentityDiff,
    failed: Sequence[str] = (),
) -> list[str]:
    """Sentences, the first of them the label. A passed mean never claims a tail.

    ``successes`` are those of ``population`` on either side: what the gaps rest on. ``failed`` names the checks that a
    run of two measured ones failed.
    """
    known = {str(row.key): row for row in rows}
    sentences = [_two_measurements(diff, failed) if label == "measured_pair" else _LABELS[label]]
    first, second = (
        ("successes of the reference", "of the run compared with it")
        if label in PLACES
        else ("measured", "replayed successes")
    )
    sentences.append(
        f"Over {successes[0]} {first} and {successes[1]} {second} ({population.words}), "
        f"{_gaps(known, ('ttft.mean', 'tpot.mean', 'e2e.mean', 'request_rate'))}."
    )
    compared = [row for row in rows if row.state != "not comparable"]
    inside = [row for row in compared if row.state in ("~", "same")]
    unjudged = [row for row in compared if row.noise is None and row.state != "same"]
    sentences.append(
        f"{len(inside)} of {len(compared)} compared numbers are equal or inside the noise of the measured side"
        + (f"; for {len(unjudged)} the noise is unknown." if unjudged else ".")
    )
    if gates:
        failed = [result.gate.text for result in gates if result.verdict == "fail"]
        sentences.append(
            f"Of {len(gates)} gates {len(gates) - len(failed)} hold"
            + (f"; these do not: {', '.join(failed)}." if failed else ".")
        )
    else:
        sentences.append("No acceptance contract was given, so nothing here passes or fails.")
    missing: dict[str, list[str]] = {}
    for row in rows:
        if row.state == "not comparable":
            names = missing.setdefault(row.reason.rstrip("."), [])
            names += [row.key.label] if row.key.label not in names else []
    not_shown = [f"{', '.join(names)} ({reason})" for reason, names in missing.items()]
    tails = [str(row.key) for row in rows if row.key.statistic in ("p95", "p99") and row.state in ("better", "worse")]
    if tails:
        sentences.append(f"Not shown: agreement in the tail; outside the noise are {', '.join(tails)}.")
    if not_shown:
        sentences.append(f"Not comparable: {'; '.join(not_shown)}.")
    if diff.unknown:
        sentences.append(
            f"{diff.unknown} identity fields are unknown on a side or both and {diff.differing} differ: "
            "the claim holds for the recorded deployment only."
        )
    return sentences


def brief(sentences: Sequence[str]) -> str:
    """The claim in one line: what the gaps rest on and are, what is inside the noise, gates, and what is not shown.

    ``sentences`` are those of :func:`claim`. The label stands beside it, and the identity with its counts.
    """
    kept = ("Over ", "Of ", "Not shown: ")
    return " ".join(one for one in sentences if one.startswith(kept) or " compared numbers are " in one)


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
            mark = " ~" if row.state == "~" else "" if row.noise or row.state == "same" else " (noise unknown)"
            shown = NEARLY if nearly_equal(row) else f"{row.gap:+.1%}"
            parts.append(f"{row.key.label} {row.key.statistic.replace('_', ' ')} {shown}{mark}")
    return "gaps are " + ", ".join(parts) if parts else "no gap is defined"
