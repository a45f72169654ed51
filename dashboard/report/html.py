"""A report as one HTML file: it opens from disk without a network, in light and dark, and prints.

Everything that a run says is escaped; figures travel as JSON. The page forbids itself to load anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa

from dashboard.charts.answer import Answer, Column
from dashboard.charts.panel.embedded import figure_json, jsonable, library, script_json
from dashboard.charts.panel.image import plain_strip
from dashboard.frame import Side, is_whole, strip_lines
from dashboard.render.comparison import comparison_json
from dashboard.report.contents import Part, Report, Section
from dashboard.sharing.plain import shown

HERE = Path(__file__).parent
ROWS = 100
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"
)


def as_html(report: Report) -> str:
    """The whole page, under 6 MB for a pair with up to four candidates."""
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>gapscope: {escape(report.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>",
        '<a class="skip" href="#main">Skip to the report</a>',
        *_contents(report),
        '<main id="main">',
        f"<h1>{escape(report.title)}</h1>",
        _strip(report, Part("", "", Answer(pa.table({})))),
        *(line for section in report.sections for line in _section(report, section)),
        *_again(report),
        "</main>",
        *_data(report),
        f"<script>{library()}</script>\n<script>\n{script}</script>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def _contents(report: Report) -> Iterator[str]:
    yield '<nav aria-label="Contents">\n<ol>'
    for section in report.sections:
        yield f'<li><a href="#{section.name}">{escape(section.title)}</a></li>'
    yield '<li><a href="#again">Again</a></li>\n</ol>\n</nav>'


def _section(report: Report, section: Section) -> Iterator[str]:
    yield f'<section id="{section.name}" aria-labelledby="h-{section.name}">'
    yield f'<h2 id="h-{section.name}">{escape(section.title)}</h2>'
    if section.words:
        yield "<ul>" + "".join(f"<li>{escape(words)}</li>" for words in section.words) + "</ul>"
    for part in section.parts:
        yield from _part(report, part)
    yield "</section>"


def _part(report: Report, part: Part) -> Iterator[str]:
    answer = part.answer
    yield f'<figure id="{escape(part.key)}">\n<figcaption>{escape(part.title)}</figcaption>'
    if part.note:
        yield f"<p>{escape(part.note)}</p>"
    if answer.not_recorded or not answer.rows.num_rows:
        yield f'<p class="silent">{escape(answer.not_recorded or answer.empty)}</p>'
    else:
        rows = _table(part)
        if part.figures:
            label = escape(f"{part.title}. The rows are in the table below.")
            height = part.figures[0]["layout"].get("height", 340)
            yield f'<div class="chart" role="img" aria-label="{label}" style="height:{height:.0f}px">'
            yield f'<script type="application/json">{figure_json(*part.figures)}</script></div>'
        if part.figures or answer.rows.num_rows > 40:
            yield f"<details><summary>Rows ({answer.rows.num_rows:,})</summary>{rows}</details>"
        else:
            yield rows
    for words in (answer.partly, "The answer itself was cut at its limit." if answer.truncated else ""):
        if words:
            yield f'<p class="silent">{escape(words)}</p>'
    if answer.definition:
        yield f"<details><summary>How this was computed</summary><p>{escape(answer.definition)}</p></details>"
    yield f"{_strip(report, part)}\n</figure>"


def _table(part: Part) -> str:
    """The rows; a cell with a number carries it with 12 digits as well."""
    answer = part.answer
    columns = answer.shown or [Column(name, name) for name in answer.rows.column_names]
    held = answer.rows if part.whole else answer.rows.slice(0, ROWS)
    head = "".join(f'<th scope="col"{_right(one)}{_width(one)}>{escape(one.label)}</th>' for one in columns)
    body = "".join(
        "<tr>" + "".join(_cell(row.get(one.name), one) for one in columns) + "</tr>" for row in held.to_pylist()
    )
    cut = answer.rows.num_rows - held.num_rows
    more = f"<p>{held.num_rows:,} of {answer.rows.num_rows:,} rows.</p>" if cut else ""
    label = escape(part.title)
    return (
        f'<div class="rows" tabindex="0" role="region" aria-label="{label}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{more}"
    )


def _right(column: Column) -> str:
    return ' class="number"' if column.format else ""


def _width(column: Column) -> str:
    """Room for columns of words, which would become narrow and high beside many others."""
    return f' style="min-width:{min(column.width, 300)}px"' if column.width and column.width > 120 else ""


def _cell(value: Any, column: Column) -> str:
    exact = jsonable(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    data = "" if exact is None else f' data-value="{exact!r}"'
    return f"<td{_right(column)}{data}>{escape(shown(value, column))}</td>"


def _strip(report: Report, part: Part) -> str:
    lines = plain_strip(strip_lines(report.frame, part.answer.n, part.sides, whole=is_whole(part.title)))
    sides: list[Side | None] = [*(part.sides or report.frame.sides), None]
    said = []
    for side, line in zip(sides, lines, strict=True):
        colours = f' style="--light:{side.role.light};--dark:{side.role.dark}"' if side else ""
        said.append(f"<li{colours}>{escape(line)}</li>")
    return f'<ul class="strip">{"".join(said)}</ul>'


def _again(report: Report) -> Iterator[str]:
    yield '<section id="again" aria-labelledby="h-again">\n<h2 id="h-again">Again</h2>'
    yield "<p>This command writes the report again, on any machine whose store holds these runs:</p>"
    yield f"<pre><code>{escape(report.command)}</code></pre>"
    yield "<p>This link, below the address of a gapscope, opens the verdict on the pair:</p>"
    yield f"<pre><code>{escape(report.link)}</code></pre>\n</section>"


def _data(report: Report) -> Iterator[str]:
    """Every comparison as ``gapscope compare --format json`` gives it, for whoever wants to compute on."""
    for side, found in report.comparisons:
        if report.frame.acknowledged or not side.regime:
            data = script_json(jsonable(comparison_json(found)))
            yield f'<script type="application/json" class="comparison" id="comparison-{side.run_id}">{data}</script>'
