"""Controls made from the view table, and what pages share.

Every control is bound to the address bar under the name of its parameter. The shared ones are drawn by the entry
point, so they keep their values when the page changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import streamlit as st

from dashboard import jobs, pairs, sides, view
from dashboard.catalogue import KIND_WORDS, RunEntry
from dashboard.charts.answer import Answer
from dashboard.charts.style import ROLES, Role
from dashboard.compare import pair_label
from dashboard.frame import Frame, Side, escape, placed, role, roles
from dashboard.metrics import Estimator, Population, Window
from dashboard.store import Store
from dashboard.view import PARAMS, SHARED, View
from engine.errors import GapscopeError
from engine.stores import default_stores as default_roots

NOT_VIEW = ("job", "embed", "embed_options")
"""Parameters of an address that are no part of the view."""
PAGES_FOLDER = Path(__file__).parent / "pages"
_UNKNOWN = object()


def roots() -> list[Path]:
    """The folders that hold runs; new ones go into the last."""
    return default_roots()


@st.cache_resource(show_spinner=False)
def _store(where: tuple[str, ...]) -> Store:
    return Store(where)


def store() -> Store:
    """The store of this server, shared by all its sessions."""
    return _store(tuple(str(root) for root in roots()))


def entries() -> list[RunEntry]:
    """The runs of the store as :func:`look` found them."""
    return list(st.session_state["_entries"])


def held() -> set[str]:
    """Ids of the runs of the store that can be shown."""
    return {entry.run_id for entry in entries() if entry.state == "ok"}


def look() -> None:
    """Look at the store, once per run of the script: each look asks for the state of every file."""
    st.session_state["_entries"] = tuple(store().catalogue())


def dark() -> bool:
    """Whether the dark theme is on."""
    return bool(st.context.theme.type == "dark")


def control(name: str, *, options: Sequence[str] | None = None, default: Any = None, **options_: Any) -> Any:
    """The bound control of a parameter; its value.

    Args:
        name: of the parameter.
        options: choices, where they depend on the data.
        default: where it depends on the data.
        options_: passed on to the widget.
    """
    param = PARAMS[name]
    value = param.default if default is None else default
    if name.startswith(view.KNOB_PREFIX):
        st.session_state.setdefault("_as_base", {})[name] = value
    common: dict[str, Any] = {"key": name, "help": param.help or None, "bind": "query-params"} | options_
    label = common.pop("label", param.label)
    choices = list(options if options is not None else param.choices)
    flat = common.pop("flat", len(choices) <= 4 and options is None)
    if param.type is list:
        return st.multiselect(label, choices, default=list(value), format_func=param.say, **common)
    if choices:
        if flat:
            return st.segmented_control(label, choices, default=value, required=True, format_func=param.say, **common)
        return st.selectbox(
            label, choices, index=choices.index(value) if value in choices else 0, format_func=param.say, **common
        )
    if param.type is bool:
        return st.checkbox(label, value=bool(value), **common)
    if param.type in (int, float):
        low = None if param.low is None else param.type(param.low)
        high = None if param.high is None else param.type(param.high)
        if param.type is float:
            common.setdefault("format", "%.6g")
        return st.number_input(label, min_value=low, max_value=high, value=param.type(value), **common)
    return st.text_input(label, value=value, **common)


def open_link(page: str) -> None:
    """Read the link that opened this session: its version, and values that the controls would not take as they stand.

    Raises:
        GapscopeError: a version that this program does not know.
    """
    if "_opened" in st.session_state:
        return
    query = {name: st.query_params.get_all(name) for name in st.query_params}
    opened = view.from_query(page, query)
    st.session_state["_opened"] = opened
    if "v" in st.query_params:
        del st.query_params["v"]  # the address bar goes on without a version: it leaves out what is the default now
    for name, value in opened.values.items():
        if PARAMS[name].texts(value) != query.get(name):
            st.session_state[name] = value  # another spelling, or an older version of the link
    unused = [pairs.shorten(words, 160) for words in opened.ignored if words.split(":")[0] not in NOT_VIEW]
    if unused:
        st.warning(f"Parts of this link could not be used: {escape('; '.join(unused))}.")


def say_absent(page: str) -> None:
    """Name the runs of the link that opened this page which the store lacks, where no control of the page does."""
    opened: View | None = st.session_state.get("_opened")
    if opened is not None and opened.page != page:
        st.session_state["_opened"] = opened = None  # it was said where the link led to
    for problem in pairs.absent_elsewhere(opened, entries()) if opened else ():
        st.error(escape(problem))


def navigation() -> Any:
    """Declare the pages; the one that is asked for. Without icons: those of pages are fetched from a CDN.

    The default page lives at the root and its own name leads to it as well. The sidebar lists the one of the two that
    the address names, so that the page one is on is marked.
    """
    named = urlsplit(st.context.url or "").path.rpartition("/")[2] == view.DEFAULT_PAGE
    listed, other = (
        _page(view.DEFAULT_PAGE, default, visibility="visible" if default is not named else "hidden")
        for default in (not named, named)
    )
    pages: dict[str, list[Any]] = {
        section: [listed if name == view.DEFAULT_PAGE else _page(name, False) for name in names]
        for section, names in view.SECTIONS.items()
    }
    pages["Runs"].append(other)
    return st.navigation(pages)


def _page(name: str, default: bool, **options: Any) -> Any:
    path = PAGES_FOLDER / f"{name}.py"
    where = "start" if default else name
    return st.Page(path, title=view.PAGES[name], url_path=where, default=default, **options)


def entered() -> None:
    """Go through the entry point first.

    A folder called pages beside the entry point makes Streamlit run a page without it, once in the life of a server,
    until a navigation was declared.
    """
    if "_page" not in st.session_state:
        navigation()
        st.rerun()


def keep_shared(page: str) -> None:
    """Give every shared value, and those that both pages use, to the address bar again when the page changed."""
    before = st.session_state.get("_page")
    if before not in (None, page):
        for param in PARAMS.values():
            users = (param.owner, *param.also)
            both = param.owner == SHARED or (before in users and page in users)
            if both and param.name in st.session_state:
                st.session_state[param.name] = st.session_state[param.name]
    st.session_state["_page"] = page


def new_measured() -> None:
    """Another measured run brings its own replay, unless the candidates are to be kept."""
    measured = st.session_state["m"]
    kept = [one for one in st.session_state.get("r") or () if one != measured] if st.session_state.get("_keep") else []
    st.session_state["r"] = kept or pairs.default_replays(store(), measured, entries())
    st.session_state["ack"] = False


def new_pair() -> None:
    """An acknowledgement is about one pair only."""
    st.session_state["ack"] = False


def choose_candidate(run_id: str) -> None:
    """Put a run into the pair bar as a candidate, as the last one where all places are taken; never beside itself."""
    if run_id == st.session_state.get("m"):
        return
    replays = [one for one in st.session_state.get("r") or () if one != run_id]
    st.session_state["r"] = [*replays[: view.MAX_REPLAYS - 1], run_id]
    st.session_state["ack"] = False


def compare_first(run_id: str) -> None:
    """Put a run into the first place of the replays, where every table compares with it; the others move down."""
    if run_id == st.session_state.get("m"):
        return
    replays = [one for one in st.session_state.get("r") or () if one != run_id]
    st.session_state["r"] = [run_id, *replays][: view.MAX_REPLAYS]
    st.session_state["ack"] = False


def follow(job_id: str) -> None:
    """Let the run of a job join the pair bar when it is there, after a reload as well; several jobs one by one."""
    asked = [one for one in st.session_state.get("_jobs") or () if one != job_id]
    st.session_state["_jobs"] = st.query_params["job"] = [*asked, job_id]


def join_finished() -> bool:
    """The runs of followed jobs join the pair bar once done. True: in the next run of the script, ask for it."""
    asked = st.session_state.get("_jobs") or st.query_params.get_all("job")
    found = [job for job in (jobs.find(roots()[-1], job_id) for job_id in asked) if job]
    ended = [job for job in found if job.final]
    if ended and "_page" not in st.session_state:  # the link still has to seed the pair bar
        return True
    st.session_state["_jobs"] = left = [job.id for job in found if not job.final]
    if ended and left:
        st.query_params["job"] = left
    elif ended and "job" in st.query_params:
        del st.query_params["job"]
    for job in ended:
        if job.run_id and job.run_id not in (st.session_state.get("r") or ()):
            choose_candidate(job.run_id)
            st.toast(f"{escape(job.title)} joined the pair as a candidate.")
    return False


def cohort_link() -> None:
    """A link to the Cohort page, which lists the requests that did not succeed."""
    st.page_link(
        PAGES_FOLDER / "cohort.py",
        label="Outcomes",
        icon=":material/checklist:",
        help="Cohort: the requests that did not succeed, one by one",
    )


def request_link(turn: str, label: str = "") -> None:
    """A link to the Request page with a source-turn (``view.turn_key``) chosen; the pair bar stays as it is."""
    st.page_link(
        PAGES_FOLDER / "request.py",
        label=escape(label or turn),
        icon=":material/timeline:",
        query_params={"turn": turn},
        help="This source-turn on both sides",
    )


def turn_links(selection: Any, shown: Answer) -> None:
    """Links to the Request page for the selected rows of a table that has a column ``turn``."""
    if not selection or "turn" not in shown.rows.column_names:
        return
    with st.container(horizontal=True, gap="small"):
        for row in selection["selection"]["rows"]:
            if row < shown.rows.num_rows and (turn := shown.rows.column("turn")[row].as_py()):
                request_link(turn, f"Open {turn} on the Request page")


def turn_chooser(key: str, turns: Sequence[str]) -> Callable[[], None]:
    """A callback for a click on a row of the table drawn under ``key``: choose the source-turn of that row."""

    def choose() -> None:
        rows = st.session_state[f"table-{key}"]["selection"]["rows"]
        if rows and rows[0] < len(turns):
            st.session_state["turn"] = turns[rows[0]]

    return choose


def choose_measured(run_id: str) -> None:
    """Make a run the measured side; beside a pinned baseline it is one more candidate."""
    if st.session_state.get("pin"):
        choose_candidate(run_id)
        return
    st.session_state["m"] = run_id
    new_measured()


def current(page: str) -> View:
    """The view on screen: what the controls of this page hold.

    A knob that is as its run to start from has it is left out: the view names that run by its content.
    """
    as_base = st.session_state.get("_as_base", {})
    values = {
        param.name: st.session_state[param.name]
        for param in view.params_of(page)
        if param.name in st.session_state and st.session_state[param.name] is not None
    }
    return View(page, {name: value for name, value in values.items() if value != as_base.get(name, _UNKNOWN)})


def remember_view(page: str) -> None:
    """Keep the view on screen for the ledger, which offers it as evidence after the page changed."""
    if page != "ledger" and st.session_state.get("m"):
        st.session_state["_seen"] = current(page)


def seen() -> View | None:
    """The view that was looked at before the ledger, else the verdict on the pair above; None without runs."""
    found: View | None = st.session_state.get("_seen")
    if found is None and st.session_state.get("m"):
        return View(
            view.DEFAULT_PAGE,
            {name: value for name, value in current("runs").values.items() if PARAMS[name].owner == SHARED},
        )
    return found


def permalink(page: str) -> str:
    """The link that restores the view on screen."""
    return current(page).link(base_url())


def base_url() -> str:
    """Scheme, host and port of this server as the browser names it; empty where nobody asks from a browser."""
    parts = urlsplit(st.context.url or "")
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""


def frame(page: str) -> Frame:
    """What the charts of this page are about: replays that are absent or altered are named and left out.

    Stops the page, with a sentence, where there is nothing to show.
    """
    entered()
    found = entries()
    if not pairs.comparable(found):
        st.info(
            "There are no runs to compare in this store yet. Import a recording on the Runs page, or write one with "
            "`gapscope import` or `gapscope replay`."
        )
        st.stop()
    chosen = [st.session_state["m"], *(st.session_state.get("r") or ())]
    for own, run_id in zip(ROLES, chosen, strict=False):
        if problem := unusable(run_id, found):
            st.error(f":{own.word}[{own.glyph} {own.name}]: {escape(problem)}")
    if unusable(chosen[0], found):
        st.stop()
    if chosen[0] in chosen[1:]:
        st.warning(f"{escape(chosen[0])} stands on both sides, and a run against itself shows nothing: choose another.")
    return _frame(page, chosen[0], usable_replays(chosen, found))


def scope() -> tuple[Population, Estimator, Window]:
    """Population, estimator and window of rates as the bar has them; the default of a control that is not there."""
    names = ("phase", "pop", "tol", "est", "win")
    state = {name: st.session_state.get(name, PARAMS[name].default) for name in names}
    population = Population(state["phase"], state["pop"], int(state["tol"]))
    return population, Estimator(state["est"]), Window(state["win"])


def candidate(shown: Frame, name: str) -> Side:
    """The candidate that a chart of one pair is about: by the control of ``name`` where there are several."""
    if len(shown.replays) == 1:
        return shown.replays[0]
    by_role = {ROLES[at].name: one for at, one in _places(shown)}
    if st.session_state.get(name) not in (None, *by_role):
        st.session_state[name] = next(iter(by_role))  # that candidate left the bar
    return by_role[control(name, options=list(by_role), default=next(iter(by_role)), width=150)]


def led(shown: Frame, name: str) -> Frame:
    """The frame with the chosen candidate in front: what compares one pair compares that one."""
    if len(shown.replays) < 2:
        return shown
    first = candidate(shown, name)
    return replace(shown, replays=(first, *(side for side in shown.replays if side is not first)))


def _places(shown: Frame) -> list[tuple[int, Side]]:
    """The replays with their places in the pair bar: absent ones leave theirs empty."""
    chosen = list(st.session_state.get("r") or ())
    return [(1 + chosen.index(one.run_id), one) for one in shown.replays]


def need_requests(shown: Frame) -> None:
    """Stop the page, with a sentence, where a run of it has none: a sweep, or a summary without rows."""
    for side in shown.sides:
        if "requests" not in store().tables(side.run_id):
            st.info(
                f"Run {escape(side.run_id)} has no requests, it is a {KIND_WORDS[side.bundle.kind]}: choose a "
                "recording or a replay. What its files say is on the Source page."
            )
            st.stop()


def unusable(run_id: str, found: Sequence[RunEntry]) -> str | None:
    """Why a run cannot be shown: absent, or altered, which may come to light only when its bytes are read."""
    if said := pairs.absence(run_id, found):
        return said
    try:
        store().bundle(run_id)
    except GapscopeError as error:
        return str(error)
    return None


def usable_replays(chosen: Sequence[str], found: Sequence[RunEntry]) -> list[tuple[Role, str]]:
    """The replays that can be shown, each in the role of its place in the pair bar."""
    return [(role(at), run_id) for at, run_id in enumerate(chosen[1:]) if not unusable(run_id, found)]


def pair_roles(chosen: Sequence[str]) -> tuple[Role, ...]:
    """The roles of the pair bar, as :func:`frame` gives them."""
    found = entries()
    if unusable(chosen[0], found):
        return ROLES
    return roles([pair_label(store(), chosen[0], run_id) for _, run_id in usable_replays(chosen, found)])


def _frame(page: str, first: str, others: Sequence[tuple[Role, str]]) -> Frame:
    measured = Side(ROLES[0], store().bundle(first))
    measured, replays = placed(measured, [side(first, run_id, own) for own, run_id in others])
    population, estimator, window = scope()
    return Frame(
        measured,
        replays,
        population,
        estimator,
        window,
        bool(st.session_state.get("ack", False)),
        dark(),
        partial(permalink, page),
        bool(st.session_state.get("pin", False)),
    )


def side(measured: str, run_id: str, own: Role) -> Side:
    """A run seen from the measured run."""
    return sides.side_of(store(), measured, run_id, own)


def inside(run_id: str) -> float | None:
    """Share of modelled time that the timing model answered from inside its measured domain."""
    return sides.inside(store(), run_id)
