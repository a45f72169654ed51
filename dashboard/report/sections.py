"""The sections of a report, in the order in which a review asks: verdict, sameness, work, numbers, mechanism."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dashboard.charts import style
from dashboard.charts.answer import Answer
from dashboard.charts.cache import cache
from dashboard.charts.comparison import cohort, identity, number_table, verdict, waterfall
from dashboard.charts.passes import pass_gap, passes
from dashboard.charts.percentiles import distribution
from dashboard.charts.requests import boundaries
from dashboard.charts.timing import coverage
from dashboard.compare import LABELS, Row
from dashboard.compare.decomposition import Decomposition
from dashboard.compare.sameness import lines
from dashboard.frame import Frame, Side
from dashboard.metrics import headline_numbers, metric
from dashboard.report.contents import Made, Maker, Report, Section, silent
from dashboard.sharing.comment import verdict as one_line
from dashboard.store import Store
from dashboard.view import PAGES
from engine.errors import GapscopeError

CURVES = ("ttft", "tpot", "e2e")
"""Metrics whose distributions a report shows as curves and tables."""
TAIL = 90.0
REPORTED = ("verdict", "identity", "cohort", "percentiles", "passes", "coverage", "cache_events", "boundaries")
"""Pages that a report shows the main part of."""


def sections(store: Store, report: Report) -> Iterator[Section]:
    """Every section; the last says what the others could not show."""
    made = []
    for name, title, page, build in _BUILDERS:
        section = Section(name, title, page=page)
        try:
            build(section, store, report)
        except GapscopeError as error:
            section.words.append(f"The rest of this section is not in this report. {error}")
        made.append(section)
        yield section
    yield _limits(report, made)


def _verdict(section: Section, store: Store, report: Report) -> None:
    for side, found in report.comparisons:
        who = f"{side.role.name} {side.run_id}: " if len(report.comparisons) > 1 else ""
        if side.regime and not report.frame.acknowledged:
            section.words.append(f"{who}{one_line(report.frame, store, side)}")
            continue
        section.words += [who + sentence for sentence in found.claim]
        section.words += [f"{who}Warning: {warning.text}" for warning in found.warnings]
    maker, pairs = Maker(report.frame, section), report.comparisons
    names = headline_numbers(report.frame.window)
    headline = [(side, [one.row(name) for name in names]) for side, one in pairs]
    n = cohort.successes(report.frame, store)
    if report.frame.like_for_like:
        maker.add(
            "gaps",
            "Gap of the headline numbers, %",
            lambda frame: (
                number_table.table(frame, store, headline, n),
                verdict.gaps(frame, pairs, names),
                style.noise_note(frame.measured.role.name),
            ),
        )
    maker.add("consistency", "Requests in flight by Little's law", verdict.consistency, pairs)


def _contract(section: Section, store: Store, report: Report) -> None:
    if not report.comparisons[0][1].gates:
        section.words.append("No acceptance contract was given, so nothing here passes or fails.")
        return
    for side, found in report.comparisons:
        held = sum(result.verdict == "pass" for result in found.gates)
        section.words.append(f"{side.role.name} {side.run_id}: {held} of {len(found.gates)} gates hold.")
    Maker(report.frame, section).add("gates", "Gates", lambda frame: verdict.gate_table(report.comparisons), whole=True)


def _identity(section: Section, store: Store, report: Report) -> None:
    frame = report.frame
    for side in frame.replays:
        regime = ", ".join(diff.label for diff in side.regime) or "none"
        section.words.append(
            f"{side.role.name} {side.run_id}, {LABELS[side.label]}: {side.differing} fields differ, of the regime: "
            f"{regime}; {side.unknown} are unknown on a side or on both."
        )
    maker = Maker(frame, section)
    found = lines(frame.measured.bundle, [side.bundle for side in frame.replays])
    for state, title, empty in (
        ("differs", "Fields that differ", "No field that is known on both sides differs."),
        ("unknown", "Fields that a side does not know: neither a match nor a mismatch", "Every field is known."),
        ("same", "Fields that are equal on all sides", "No field is known to be equal."),
    ):
        held = [line for line in found if line.state == state]
        maker.add(
            state,
            title,
            identity.fields,
            held,
            empty,
            whole=True,
        )
    if identity.memory(frame)[1]:
        maker.add("memory", "Memory by component", lambda frame: identity.memory(frame)[0])
    else:
        section.words.append("Memory by component is not recorded on any side.")


def _cohort(section: Section, store: Store, report: Report) -> None:
    rows, problems = cohort.ledger(report.frame, store)
    section.words += [f"The ledger does not balance. {problem}" for problem in problems] or [
        "Every ledger balances: attempted = ok + error + rejected + canceled + in flight."
    ]
    maker, n = Maker(report.frame, section), cohort.successes(report.frame, store)
    maker.add("ledger", "What became of every request, by phase of its dispatch", lambda frame: rows, whole=True)
    maker.add("in-flight", "Requests over time", cohort.over_time, store)
    maker.add("sizes", "Rates and requests in flight", cohort.sizes, store, n)
    for side in report.frame.replays:
        lone = cohort.one_sided(report.frame, store, side.run_id)
        section.words.append(f"{side.role.name}: {cohort.shared(report.frame, store, side, lone)}")


def _numbers(section: Section, store: Store, report: Report) -> None:
    frame, found, n = report.frame, report.comparisons, cohort.successes(report.frame, store)
    maker = Maker(frame, section)
    every = [(side, one.rows) for side, one in found]
    maker.add("all", "Number by number", number_table.table, store, every, n, whole=True)
    for side, one in found:
        if side.regime and not frame.acknowledged:
            continue
        for parts in one.decompositions:
            if not parts.parts:
                section.words.append(f"{parts.label}, {side.role.name}: {parts.note}")
                continue
            mean = one.row(f"{parts.metric}.mean")
            maker.add(
                f"parts-{parts.metric}-{side.role.name.replace(' ', '-')}",
                f"What the gap of the mean {parts.label} is made of, ms: {frame.measured.role.name} and "
                f"{side.role.name}",
                _parts,
                side,
                parts,
                mean,
                sides=(frame.measured, side),
            )


def _parts(frame: Frame, side: Side, parts: Decomposition, mean: Row) -> Made:
    return (*waterfall.waterfall(frame, side, parts, mean), parts.note)


def _percentiles(section: Section, store: Store, report: Report) -> None:
    maker = Maker(report.frame, section)
    for name in CURVES:
        chosen = metric(name)
        found = distribution.samples(report.frame, store, chosen)
        maker.add(
            f"curve-{name}",
            f"{chosen.label} ({chosen.unit}): share of requests at or below",
            distribution.curve,
            store,
            chosen,
            found,
            "ecdf",
            True,
        )
        maker.add(
            f"table-{name}",
            f"{chosen.label} ({chosen.unit}), percentile by percentile",
            distribution.table,
            store,
            chosen,
            found,
        )


def _passes(section: Section, store: Store, report: Report) -> None:
    maker = Maker(report.frame, section)
    maker.add("classes", "Passes and their time, by class", passes.classes, store)
    for side in report.frame.replays[:1]:
        pair = (report.frame.measured, side)
        maker.add(
            "gap",
            "What each class makes of the gap in pass time, s",
            pass_gap.gap,
            store,
            side,
            sides=pair,
        )
        maker.add(
            "geometry",
            "Error of the mean pass at equal geometry, %",
            passes.geometry,
            store,
            side,
            sides=pair,
        )


def _coverage(section: Section, store: Store, report: Report) -> None:
    replays = [side for side in report.frame.replays if side.bundle.kind == "replay"]
    if not replays:
        section.words.append("Coverage is about the timing of a replay: none of these runs is one.")
    maker = Maker(report.frame, section)
    for side in replays:
        pair, name = (report.frame.measured, side), side.role.name
        key = name.replace(" ", "-")
        maker.add(
            f"shares-{key}",
            f"Where the pass times of the {name} come from",
            coverage.shares,
            store,
            side,
            sides=pair,
        )
        maker.add(
            f"outside-{key}",
            f"Distinct queries of the {name} outside the measured domain, most modelled time first",
            _cells_outside,
            store,
            side,
            sides=pair,
        )
        maker.add(
            f"touched-{key}",
            f"Requests of the {name} in passes from outside the domain",
            _touched_by,
            store,
            side,
            sides=pair,
        )


def _cells_outside(_frame: Frame, store: Store, side: Side) -> Answer:
    return coverage.cells_outside(store, side)


def _touched_by(_frame: Frame, store: Store, side: Side) -> Made:
    answer, words = coverage.touched_by(store, side)
    return answer, None, words


def _cache(section: Section, store: Store, report: Report) -> None:
    maker, n = Maker(report.frame, section), cohort.successes(report.frame, store)
    maker.add("hit-ratio", "Token hit ratio", cache.hit_ratio, store, n)
    maker.add("numbers", "Reuse, preemptions and latency", cache.numbers, store, n)
    maker.add("blocks", "Blocks computed and reused", cache.recompute_totals, store)
    maker.add("pool", "KV pool over time", cache.pool, store)


def _boundaries(section: Section, store: Store, report: Report) -> None:
    frame = report.frame
    found = boundaries.boundaries(frame, store, "e2e")
    tail = found.tail(TAIL, frame.estimator)
    for index, side in enumerate(frame.replays, 1):
        if side.regime and not frame.acknowledged:
            continue
        for words, choose in (("In the mean,", found.complete), (f"In the tail from p{TAIL:g} on,", tail)):
            section.words.append(boundaries.verdict(found, index, choose, words, side.called))
    section.words += boundaries.said(frame, found)
    both = [("mean", found.complete), (f"from p{TAIL:g} on", tail)]
    Maker(frame, section).add(
        "stages",
        "Stages of a request: mean of all, and of those with the largest E2E, ms",
        boundaries.stacked,
        found,
        both,
    )


def _limits(report: Report, made: list[Section]) -> Section:
    section = Section("limits", "Limits: what was not shown")
    for side, found in report.comparisons:
        kept = ("Not shown", "Not comparable")
        section.words += [f"{side.role.name}: {one}" for one in found.claim if one.startswith(kept)]
    section.words += _checks(report.frame)
    section.words += silent(made)
    more = [title for name, title in PAGES.items() if name not in (*REPORTED, "runs", "report")]
    section.words.append(
        f"Only on the pages: {', '.join(more)}, single requests and passes, and every other choice of their controls."
    )
    return section


def _checks(frame: Frame) -> Iterator[str]:
    for side in frame.sides:
        for check in side.bundle.qualification:
            if check.verdict == "fail":
                yield f"{side.role.name} {side.run_id} failed the check {check.check}: {check.detail}"


Build = Callable[[Section, Store, Report], None]
_BUILDERS: tuple[tuple[str, str, str, Build], ...] = (
    ("verdict", "Verdict", "verdict", _verdict),
    ("contract", "Acceptance contract", "verdict", _contract),
    ("identity", "Identity", "identity", _identity),
    ("cohort", "Cohort", "cohort", _cohort),
    ("numbers", "Numbers", "verdict", _numbers),
    ("percentiles", "Percentiles", "percentiles", _percentiles),
    ("passes", "Passes", "passes", _passes),
    ("coverage", "Coverage", "coverage", _coverage),
    ("cache", "Cache", "cache_events", _cache),
    ("boundaries", "Boundaries", "boundaries", _boundaries),
)
"""Name, title, page that shows more, and who fills it."""
