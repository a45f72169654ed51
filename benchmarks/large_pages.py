"""Server time and payload of every page on a large store, through each of its controls.

    python -m benchmarks.large_store FOLDER
    python -m benchmarks.large_pages FOLDER [--pages verdict passes] [--candidates 3] [--every]

Streamlit's script runs without a browser, which is all that the server does for one interaction: script, queries,
figures and their JSON. The controls are those of the view table, so a page that comes later is driven as well: several
values of each, looked at for the first time in this process, and once more: what is told of a store whose large runs
are prepared (`gapscope runs --prepare`) is what a reader meets.

What is told first is the first page of a real server, over its WebSocket, from when the server says that it listens;
what it did before, its libraries and its catalogue, is told as its start.

The limits are those of the design: 2 s for the first page, 300 ms for a control, 300 kB for a chart. A look is over its
limit where both its wall and its CPU time are: other programs lengthen only the one, two threads only the other.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from streamlit.testing.v1 import AppTest, element_tree, local_script_runner

from benchmarks.page_latency import PAGES, ROOT, timed
from benchmarks.page_server import Session, cpu_s, served
from dashboard import view
from engine.bundle import list_bundles

FIRST_MS, CONTROL_MS, CHART_BYTES = 2000.0, 300.0, 300_000
VALUES = 3
"""Values of a control that are tried, besides the one it has."""
PAIR = ("ample-large", ("ample-large-predicted", "ample-large-pool", "ample-large-slow"))
"""The measured run and its replays, by their names."""
KNOBS = ("k_lanes", "k_kv_blocks", "k_max_num_seqs", "k_timing", "k_pass_scale", "k_record_events")
"""The knobs that are turned, out of a hundred that cost alike."""
APART = ("m", "r", "ack")
"""Parameters that choose what is looked at instead of how."""


@dataclass
class Payload:
    """Bytes that one run of the script sends: of each chart by its key, and of all."""

    charts: dict[str, int] = field(default_factory=dict)
    total: int = 0

    def take(self, messages: Iterable[Any]) -> None:
        """Count the messages of one run of the script."""
        self.charts, self.total = {}, 0
        for message in messages:
            size = message.ByteSize()
            self.total += size
            if message.HasField("delta") and message.delta.HasField("new_element"):
                element = message.delta.new_element
                kind = element.WhichOneof("type")
                if kind in ("plotly_chart", "dataframe", "arrow_data_frame"):
                    key = re.sub(r"^\$\$ID-[0-9a-f]+-", "", getattr(element, kind).id) or kind
                    self.charts[key] = max(size, self.charts.get(key, 0))


@dataclass(frozen=True)
class Look:
    """One look at a view: wall and CPU time at first and again, in ms, and what was sent."""

    page: str
    control: str
    wall: float
    cpu: float
    again: float
    chart: int
    chart_name: str
    total: int

    def over(self, limit_ms: float) -> list[str]:
        """What of it is over its limit, in words."""
        found = []
        if min(self.wall, self.cpu) > limit_ms:
            found.append("slow")
        if self.chart > CHART_BYTES:
            found.append(f"{self.chart_name} is large")
        return found


class Driver:
    """A session of a server on a store, driven page by page."""

    def __init__(self, store: Path, candidates: int) -> None:
        names = {path.name.rpartition("-")[0]: path.name for path in list_bundles(store)}
        self.pair = (names[PAIR[0]], [names[name] for name in PAIR[1][:candidates]])
        self.payload = Payload()
        parse = element_tree.parse_tree_from_messages

        def counted(messages: list[Any]) -> Any:
            self.payload.take(messages)
            return parse(messages)

        local_script_runner.parse_tree_from_messages = counted  # type: ignore[attr-defined]

    def opened(self) -> AppTest:
        """A new session with the pair in its address, not run yet."""
        app = AppTest.from_file(str(ROOT / "tests" / "pages" / "entry.py"), default_timeout=300)
        app.query_params["m"], app.query_params["r"] = self.pair[0], list(self.pair[1])
        return app

    def look(self, app: AppTest, page: str, control: str) -> Look:
        """Run the script twice: at first, and again."""
        settle(app)
        wall, cpu = timed(app)
        name = max(self.payload.charts, key=lambda key: self.payload.charts[key], default="")
        sent = self.payload.charts.get(name, 0), name, self.payload.total
        settle(app)
        return Look(page, control, wall, cpu, timed(app)[0], *sent)

    def page(self, page: str, values: int) -> list[Look]:
        """A page, opened and then driven through its controls."""
        app = self.opened()
        app.run()
        app.switch_page(str(PAGES / f"{page}.py"))
        looks = [self.look(app, page, "opened")]
        gc.collect()
        gc.freeze()
        for param in view.params_of(page):
            if param.name in APART or (param.owner == view.SHARED and page in ("runs", "ledger")):
                continue
            if param.name.startswith(view.KNOB_PREFIX) and param.name not in KNOBS:
                continue
            for value in tried(app, param, values):
                change = setter(app, param.name)
                if change is None:
                    break
                change(value)
                looks.append(self.look(app, page, f"{param.name}={value}"))
        return looks


def settle(app: AppTest) -> None:
    """Choose the first option where the chosen one is no longer offered: a browser may keep it, this cannot."""
    for element in app.selectbox:
        try:
            _ = element.index
        except ValueError:
            element.select_index(0)


def setter(app: AppTest, key: str) -> Callable[[Any], object] | None:
    """What sets the control of this key; None where the page shows none."""
    for kind in ("selectbox", "button_group", "number_input", "checkbox", "multiselect", "text_input"):
        for element in app.get(kind):
            if getattr(element, "key", None) == key and not element.disabled:
                return element.set_value
    return None


def tried(app: AppTest, param: view.Param, most: int) -> list[Any]:
    """Values to try: other choices of the control, a larger and a smaller number; the one it has comes last."""
    for kind in ("selectbox", "button_group", "multiselect"):
        for element in app.get(kind):
            if getattr(element, "key", None) == param.name:
                return _chosen(element, kind, most)
    for element in app.get("number_input"):
        if element.key == param.name:
            now = element.value or 0
            wanted = [now + element.step, now + 10 * element.step, max(now - element.step, element.min or 0)]
            others = [value for value in dict.fromkeys(wanted) if value != now and value <= (element.max or value)]
            return [*others[:most], now]
    for element in app.get("checkbox"):
        if element.key == param.name:
            return [not element.value, element.value]
    return []


def _chosen(element: Any, kind: str, most: int) -> list[Any]:
    by_words = dict(zip(element.options, _values(element), strict=True))
    now = element.value
    if kind != "multiselect" and now not in by_words.values():
        return list(by_words.values())[:most]
    others = [value for value in by_words.values() if value != now]
    if kind == "multiselect":
        return [[value] for value in others[:most]] + [now]
    return [*others[:most], now]


def _values(element: Any) -> list[Any]:
    """The values behind the words of a control's options."""
    words = {param_words: name for name, param_words in view.PARAMS[element.key].words.items()}
    return [words.get(str(option), option) for option in element.options]


def told(looks: list[Look]) -> list[str]:
    """The rows of one page: its summary, and every look that is over a limit."""
    opened, controls = looks[0], looks[1:] or looks
    wall, cpu = ([getattr(one, name) for one in controls] for name in ("wall", "cpu"))
    chart = max(looks, key=lambda one: one.chart)
    row = (
        f"| {opened.page} | {opened.wall:.0f} | {opened.cpu:.0f} | {len(controls)} | {np.median(wall):.0f} | "
        f"{np.percentile(wall, 95):.0f} | {np.median(cpu):.0f} | {np.percentile(cpu, 95):.0f} | "
        f"{np.median([one.again for one in controls]):.0f} | {chart.chart / 1000:.0f} | "
        f"{max(one.total for one in looks) / 1000:.0f} |"
    )
    limits = [FIRST_MS] + [CONTROL_MS] * (len(looks) - 1)
    over = [(one, one.over(limit)) for one, limit in zip(looks, limits, strict=True)]
    return [row] + [
        f"    over the limit: {one.page} {one.control}: wall {one.wall:.0f}, CPU {one.cpu:.0f} ms, {', '.join(why)}"
        for one, why in over
        if why
    ]


HEADER = """| page | opened, ms | CPU | looks | p50, ms | p95 | CPU p50 | CPU p95 | again | chart, kB | page, kB |
|---|---|---|---|---|---|---|---|---|---|---|"""


def main() -> int:
    """Print a row per page; 1 where a limit is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pages", nargs="*", default=list(view.PAGES), choices=list(view.PAGES))
    parser.add_argument("--candidates", type=int, default=1, choices=range(4))
    parser.add_argument("--values", type=int, default=VALUES, help="values of each control that are tried")
    parser.add_argument("--every", action="store_true", help="print every look")
    arguments = parser.parse_args()
    os.environ["GAPSCOPE_STORE"] = str(arguments.folder)
    driver, over = Driver(arguments.folder, arguments.candidates), 0
    with served(arguments.folder) as server:
        begun, used = time.perf_counter(), cpu_s(server.pid)
        failed = Session(
            server.port, urlencode([("m", driver.pair[0]), *(("r", one) for one in driver.pair[1])])
        ).errors
        wall, cpu = 1000 * (time.perf_counter() - begun), 1000 * (cpu_s(server.pid) - used)
        print(f"Start of the server: {server.start_s:.1f} s, CPU {server.start_cpu_s:.1f} s.")
        print(f"First page of the server: {wall:.0f} ms, CPU {cpu:.0f} ms (limit {FIRST_MS:.0f}). {' '.join(failed)}")
        over += bool(failed) or min(wall, cpu) > FIRST_MS
    driver.opened().run()  # imports, and the catalogue of this process
    print(f"\n{HEADER}")
    for page in arguments.pages:
        try:
            looks = driver.page(page, arguments.values)
        except RuntimeError as error:
            print(f"| {page} | failed: {error} |", flush=True)
            over += 1
            continue
        lines = told(looks)
        print("\n".join(lines), flush=True)
        over += len(lines) - 1
        if arguments.every:
            for one in looks:
                print(
                    f"    {one.control:<40}{one.wall:>8.0f}{one.cpu:>8.0f}{one.again:>8.0f}  {one.chart_name}",
                    flush=True,
                )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\n{over} looks over a limit; {peak:,.0f} MiB resident at most.")
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())
