"""A report as Markdown: the same sections, with tables in place of charts."""

from __future__ import annotations

from dashboard.report.contents import Part, Report
from dashboard.sharing.comment import identities, scope, table_of
from dashboard.sharing.plain import literal

ROWS = 40


def as_markdown(report: Report) -> str:
    """The report; tables are cut at 40 rows and say so, but for those that must be whole."""
    frame = report.frame
    lines = [f"# gapscope: {literal(report.title)}", identities(frame, frame.sides), scope(frame)]
    for section in report.sections:
        lines.append(f"## {literal(section.title)}")
        if section.words:
            lines.append("\n".join(f"- {literal(words)}" for words in section.words))
        for part in section.parts:
            lines += _part(report, part)
    lines += ["## Again", f"    {report.command}", f"Link, below the address of a gapscope: `{report.link}`"]
    return "\n\n".join(lines) + "\n"


def _part(report: Report, part: Part) -> list[str]:
    lines = [f"### {literal(part.title)}"]
    lines += [literal(part.note)] if part.note else []
    lines.append(table_of(part.answer, part.answer.rows.num_rows if part.whole else ROWS))
    sides = part.sides or report.frame.sides
    counts = [(side, part.answer.n[side.run_id]) for side in sides if side.run_id in part.answer.n]
    if counts:
        said = (f"{side.run_id} {'not recorded' if n is None else f'{n:,}'}" for side, n in counts)
        lines.append(f"n: {literal(', '.join(said))}.")
    return lines
