"""One function draws a chart or a table together with its identity strip and its four answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from dashboard.charts.answer import Answer, Column
from dashboard.charts.figures import Figure, blank
from dashboard.charts.panel import how
from dashboard.charts.panel.checked import Checked
from dashboard.charts.panel.image import FORMATS, captioned, image_options, plain_strip
from dashboard.charts.panel.log_axis import NOT_ON_LOG, points_left_out
from dashboard.charts.panel.open_fields import open_fields
from dashboard.charts.panel.reading import reading
from dashboard.charts.panel.spoken import spoken
from dashboard.charts.panel.tables import column_config
from dashboard.frame import Frame, Side, escape, header, is_whole, strip_lines
from dashboard.queries.identity import said_differing
from dashboard.sharing.comment import Drawn, Shown
from dashboard.sharing.files import about, as_csv, as_parquet

CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"]}
SHOWN_ROWS = 500
PANEL_WIDTH = 720


def draw(
    frame: Frame,
    key: str,
    title: str,
    answer: Answer,
    figure: Figure | None = None,
    *,
    note: str = "",
    sides: tuple[Side, ...] | None = None,
    height: int | None = None,
    on_select: Any = None,
    selection: str = "points",
) -> Any:
    """Draw a chart (or, without a figure, its rows as a table), its strip and its answers.

    Args:
        frame: the runs and the population that the strip names.
        key: unique on the page; also the accessible anchor of tests.
        title: what is shown, with its unit.
        answer: the rows behind it.
        figure: the chart; None draws the rows.
        note: one sentence under the title.
        sides: the runs that this chart is about, where not all of the frame.
        height: of a table, in pixels.
        on_select: a callback that a click in the chart, or on a row, calls.
        selection: what can be selected in a chart.

    Returns:
        The selection of the chart or the table, where one was asked for.
    """
    selected = None
    answer = replace(answer, columns=[replace(one, label=header(frame, one.label)) for one in answer.columns])
    drawn = Drawn(frame, key, title, answer, note, sides)
    if shown := st.session_state.get("_shown"):
        shown.tell(drawn)
    with st.container(border=True, key=f"chart-{key}", gap="xsmall"):
        st.html(f'<div class="anchor" id="{drawn.anchor}"></div>')
        words = [reading(_page(), key), answer.definition]
        st.markdown(f"**{escape(title)}**", help=escape(" ".join(one for one in words if one)) or None)
        if said := how.chips(sides or frame.sides, title):
            st.markdown(f":small[{' '.join(said)}]")
        if note:
            st.caption(escape(note))
        if answer.not_recorded:
            st.info(escape(answer.not_recorded), icon=":material/info:")
        elif answer.rows.num_rows == 0 or (figure is not None and blank(figure)):
            st.info(answer.empty, icon=":material/info:")
        elif figure is not None:
            figure = shown_only(figure, sides or frame.sides, frame.hidden)
            options: dict[str, Any] = {"on_select": on_select, "selection_mode": selection} if on_select else {}
            selected = st.plotly_chart(
                Checked(figure),
                key=f"plot-{key}",
                config=CONFIG | {"toImageButtonOptions": image_options(key, _image(), sides or frame.sides)},
                alt=spoken(frame, title, figure, sides),
                **options,
            )
            if NOT_ON_LOG not in note and (dropped := points_left_out(figure)):
                st.caption(escape(dropped))
        else:
            selected = table(answer, key, height=height, on_select=on_select, alt=spoken(frame, title, None, sides))
        if figure is not None and (silent := empty_sides(frame, answer, sides)):
            st.info(silent, icon=":material/info:")
        if figure is not None and (left_out := _left_out(figure, sides or frame.sides)):
            st.caption(f"Not drawn: {escape(', '.join(left_out))}. *Lines* in the bar brings it back.")
        if answer.partly:
            st.info(escape(answer.partly), icon=":material/info:")
        if answer.truncated:
            st.warning(f"The answer was cut at {answer.rows.num_rows:,} rows: choose a smaller population or window.")
        _strip(drawn, figure)
    return selected


def shown_only(figure: Figure, sides: Sequence[Side], hidden: frozenset[str]) -> Figure:
    """The figure without what it draws of the ``hidden`` runs: their names stay in the legend, greyed.

    A legend of runs takes no clicks: what they hide would be in no link.
    """
    names = tuple(side.name for side in sides)
    absent = tuple(side.name for side in sides if side.run_id in hidden)
    traces = figure["data"]
    named = [str(trace.get("name") or "") for trace in traces if trace.get("showlegend", True)]
    of_runs = bool(names) and all(name.startswith(names) for name in named if name)
    legend = {**figure["layout"].get("legend", {}), "itemclick": False, "itemdoubleclick": False}
    if absent:
        traces = [
            {**trace, "visible": "legendonly"} if str(trace.get("name") or "").startswith(absent) else trace
            for trace in traces
        ]
    return {**figure, "data": traces, "layout": {**figure["layout"], "legend": legend} if of_runs else figure["layout"]}


def _left_out(figure: Figure, sides: Sequence[Side]) -> list[str]:
    """The places of the runs of which the figure hides something: one that is a row of bars is not hidden."""
    names = [str(trace.get("name") or "") for trace in figure["data"] if trace.get("visible") == "legendonly"]
    return [side.place for side in sides if any(name.startswith(side.name) for name in names)]


def table(
    answer: Answer,
    key: str,
    *,
    height: int | None = None,
    on_select: Any = None,
    alt: str = "",
    columns: Sequence[Column] | None = None,
) -> Any:
    """The rows as a table with units in its headers; at most 500 rows travel, and it says so."""
    columns = answer.shown if columns is None else columns
    rows = answer.rows.slice(0, SHOWN_ROWS)
    options: dict[str, Any] = {"on_select": on_select, "selection_mode": "single-row"} if on_select else {}
    shown = st.dataframe(
        rows,
        key=f"table-{key}",
        hide_index=True,
        placeholder="–",
        height="auto" if height is None or 36 * (rows.num_rows + 1) < height else height,
        column_order=[column.name for column in columns] or None,
        column_config=column_config(columns),
        alt=alt or None,
        **options,
    )
    if answer.rows.num_rows > SHOWN_ROWS:
        st.caption(f"The first {SHOWN_ROWS} of {answer.rows.num_rows:,} rows; the downloads hold all of them.")
    return shown


def empty_sides(frame: Frame, answer: Answer, sides: tuple[Side, ...] | None = None) -> str:
    """A sentence on the sides of a chart that hold nothing where others do; empty where none is like that."""
    shown = sides or frame.sides
    called = [side.role.name for side in shown]
    silent = [
        name if called.count(name) == 1 else f"{name} {escape(side.run_id)}"
        for side, name in zip(shown, called, strict=True)
        if answer.n.get(side.run_id) == 0
    ]
    if not silent or not answer.rows.num_rows:
        return ""
    return f"Nothing of {' and '.join(silent)} is in this chart: n is 0 for this population and phase."


def _strip(drawn: Drawn, figure: Figure | None) -> None:
    lines = strip_lines(drawn.frame, drawn.answer.n, drawn.sides, whole=is_whole(drawn.title))
    with st.container(horizontal=True, key=f"strip-{drawn.key}", vertical_alignment="center", gap="small", wrap=False):
        st.markdown("  \n".join(f":small[{line}]" for line in lines), width="stretch")
        with st.container(width="content"):  # as wide as its buttons, however long a line beside it is
            _answers(drawn, lines, figure)


@st.fragment
def _answers(drawn: Drawn, lines: list[str], figure: Figure | None) -> None:
    frame, key, answer = drawn.frame, drawn.key, drawn.answer
    with st.container(horizontal=True, width="content", gap="xsmall", vertical_alignment="center", wrap=False):
        if frame.replays and st.button(
            "Identity",
            key=f"id-{key}",
            type="tertiary",
            icon=":material/fingerprint:",
            help="The identity fields that differ or are unknown",
        ):
            _identity(frame)
        told = st.popover(
            "How",
            key=f"how-{key}",
            type="tertiary",
            on_change="rerun",
            help="How to read this, how it was computed, from what",
        )
        panel = st.popover(
            "Rows",
            key=f"rows-{key}",
            type="tertiary",
            on_change="rerun",
            help="Table, download, SQL, Markdown, image",
        )
    if told.open:
        with told, st.container(width=PANEL_WIDTH):
            how.panel(_page(), drawn)
    if not panel.open:
        return
    pictured = figure is not None and bool(figure["data"]) and answer.rows.num_rows > 0
    with panel, st.container(width=PANEL_WIDTH):
        rows, sql, text, *picture = st.tabs(["Table", "SQL", "Markdown", *(["Image"] if pictured else [])])
        with rows:
            table(answer, f"rows-{key}", height=260, columns=answer.columns)
            _downloads(drawn)
        with sql:
            if answer.definition:
                st.caption(escape(answer.definition))
            st.code(answer.sql or "These rows were read off sorted samples, not selected by SQL.", "sql")
        with text:
            shown: Shown | None = st.session_state.get("_shown")
            st.caption("For a review comment: verdict, link, identity, rows. The icon at its corner copies it.")
            st.code(shown.chart_comment(drawn) if shown else "", "markdown", height=300)
        for tab in picture:
            with tab:
                _picture(drawn, lines, figure or {})


def _downloads(drawn: Drawn) -> None:
    """Exactly the rows, all of them and unrounded."""
    answer, key = drawn.answer, drawn.key
    link = drawn.frame.link  # asked for here: a download is made outside the session
    with st.container(horizontal=True):
        name = f"gapscope-{key}"
        st.download_button(
            "CSV",
            lambda: as_csv(answer.rows, answer.columns),
            f"{name}.csv",
            "text/csv",
            key=f"csv-{key}",
            on_click="ignore",
        )
        st.download_button(
            "Parquet",
            lambda: as_parquet(answer.rows, answer.columns, about(drawn.frame, drawn.title, answer, drawn.sides, link)),
            f"{name}.parquet",
            "application/vnd.apache.parquet",
            key=f"parquet-{key}",
            on_click="ignore",
        )


def _page() -> str:
    """The page that is drawn, by its name in the address bar."""
    return str(st.session_state.get("_page") or "")


def _image() -> str:
    """The format of pictures in this session."""
    return str(st.session_state.get("_image", FORMATS[0]))


def _picture(drawn: Drawn, lines: list[str], figure: Figure) -> None:
    """The chart with its title and strip inside it, as its menu saves it."""
    key = drawn.key

    def prefer() -> None:
        st.session_state["_image"] = st.session_state[f"image-{key}"] or _image()

    with st.container(horizontal=True, vertical_alignment="center"):
        st.segmented_control(
            "Format",
            FORMATS,
            default=_image(),
            required=True,
            format_func=str.upper,
            key=f"image-{key}",
            on_change=prefer,
            label_visibility="collapsed",
        )
        st.caption("Save it with the camera in its menu. The menus of all charts save this format.")
    shown = captioned(figure, drawn.title, plain_strip(lines), PANEL_WIDTH - 30)
    sides = drawn.sides or drawn.frame.sides
    st.plotly_chart(
        Checked(shown),
        key=f"picture-{key}",
        width="content",
        config=CONFIG | {"displayModeBar": True, "toImageButtonOptions": image_options(key, _image(), sides)},
        alt=f"{drawn.title}, with its identity inside the picture",
    )


@st.dialog("Identity", width="large")
def _identity(frame: Frame) -> None:
    """What differs between the runs of the page, and what a side does not know: all candidates beside each other."""
    for side in frame.replays:
        counts = f"{said_differing(side.diffs)}, {side.unknown} unknown"
        st.markdown(f":{side.role.word}[{side.role.glyph} {escape(side.run_id)}] {side.place}: {counts}")
    found = open_fields(frame)
    config = {name: st.column_config.Column(name.capitalize(), pinned=name == "field") for name in found.column_names}
    st.dataframe(found, hide_index=True, column_config=config)
