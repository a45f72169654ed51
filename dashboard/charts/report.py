"""What the Report page shows of a report, and the files that it hands out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from dashboard.charts.answer import Answer, Column
from dashboard.compare import LABELS
from dashboard.compare.gates import Gate
from dashboard.frame import Frame
from dashboard.report import Report, as_html, as_markdown, gather
from dashboard.sharing.comment import verdicts
from dashboard.store import Store

ENDINGS = {"HTML": "html", "Markdown": "md"}


def written(store: Store, frame: Frame, gates: Sequence[Gate], form: str) -> str:
    """The file, made when it is asked for; the frame stays as it was when the button was drawn."""
    report = gather(store, replace(frame, link_of=str), gates)
    return as_html(report) if form == "HTML" else as_markdown(report)


def file_name(frame: Frame, form: str) -> str:
    """A name that says which runs are compared."""
    return f"gapscope-{'-'.join(side.run_id for side in frame.sides[:2])}.{ENDINGS[form]}"


def claims(store: Store, frame: Frame, contract: str) -> Answer:
    """The bounded claim on each replay, in one line."""
    told = verdicts(frame, store, contract)
    rows = {
        "run": [side.run_id for side, _ in told],
        "label": [LABELS[side.label] for side, _ in told],
        "claim": [words for _, words in told],
    }
    columns = [Column("run", "Run", pinned=True), Column("label", "Label"), Column("claim", "Claim", width=900)]
    return Answer(pa.table(rows), "", columns, definition="The sentences of the Verdict page, in one line.")


def outline(report: Report) -> Answer:
    """A row per chart and table, with how many rows it holds and why one is empty."""
    rows = [
        {
            "section": section.title,
            "part": part.title,
            "is": "chart and rows" if part.figures else "rows",
            "rows": part.answer.rows.num_rows,
            "silent": part.answer.not_recorded or ("" if part.answer.rows.num_rows else part.answer.empty) or None,
        }
        for section in report.sections
        for part in section.parts
    ]
    columns = [
        Column("section", "Section", width=120),
        Column("part", "Part", pinned=True, width=420),
        Column("is", "Is", width=110),
        Column("rows", "Rows", "%d", width=70),
        Column("silent", "Why it is empty", width=300),
    ]
    kinds = {"rows": pa.int64()}
    table = pa.table(
        {one.name: pa.array([row[one.name] for row in rows], kinds.get(one.name, pa.string())) for one in columns}
    )
    return Answer(
        table, "", columns, definition="Charts and tables are those of the pages, for the runs and options above."
    )
