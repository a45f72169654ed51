"""Memory of a real server under many sessions: does it stay under its limit, and does it leak?

    python -m benchmarks.large_store FOLDER
    python -m benchmarks.page_memory FOLDER [--sessions 10] [--rounds 3]

`gapscope serve` runs on the store. Sessions are what a browser opens: one WebSocket each, with Streamlit's own
messages, so the server cannot tell the difference; what a browser would draw is read and thrown away. A round is 200
interactions of all sessions together: they go from page to page, and change population, phase, estimator and window on
each. The rounds are equal, so what the last ones add is what nobody frees.
"""

from __future__ import annotations

import argparse
import itertools
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import ClientConnection, connect

from benchmarks.large_pages import PAIR
from dashboard import view
from engine.bundle import list_bundles

INTERACTIONS = 200
LIMIT_MIB = 2048
WAIT_S = 300.0
CHANGES = (
    ("pop", "root conversations"),
    ("est", "nearest rank"),
    ("win", "observed span"),
    ("phase", "all phases"),
    ("pop", "all requests"),
    ("est", "linear"),
    ("win", "fixed window"),
    ("phase", "profile"),
)
"""Controls of the bar on top with what is chosen in them, one after the other."""


class Session:
    """One browser's connection: what it shows, and what its user has set."""

    def __init__(self, port: int, query: str) -> None:
        self.query, self.page_hash, self.name = query, "", ""
        self.ids: dict[str, str] = {}
        self.set: dict[str, str] = {}
        self.pages: dict[str, str] = {}
        self.received = 0
        self.errors: list[str] = []
        self.socket: ClientConnection = connect(
            f"ws://127.0.0.1:{port}/_stcore/stream",
            origin=f"http://127.0.0.1:{port}",  # type: ignore[arg-type]
            subprotocols=["streamlit"],  # type: ignore[list-item]
            max_size=None,
            open_timeout=60,
            legacy=True,
        )
        self.run()

    def run(self) -> None:
        """Have the script run, and read until it has finished."""
        message = BackMsg()
        message.rerun_script.query_string = self.query
        message.rerun_script.page_script_hash = self.page_hash
        message.rerun_script.page_name = self.name
        for key, value in self.set.items():
            if key in self.ids:
                state = message.rerun_script.widget_states.widgets.add()
                state.id, state.string_value = self.ids[key], value
        self.socket.send(message.SerializeToString())
        while True:
            data = self.socket.recv(timeout=WAIT_S)
            assert isinstance(data, bytes)
            self.received += len(data)
            answer = ForwardMsg.FromString(data)
            kind = answer.WhichOneof("type")
            if kind == "delta":
                self._take(answer.delta)
            elif kind == "navigation":
                self.pages = {page.url_pathname: page.page_script_hash for page in answer.navigation.app_pages}
            elif kind == "script_finished" and answer.script_finished != ForwardMsg.FINISHED_EARLY_FOR_RERUN:
                return

    def _take(self, delta: Any) -> None:
        if not delta.HasField("new_element"):
            return
        kind = delta.new_element.WhichOneof("type")
        if kind == "exception":
            self.errors.append(delta.new_element.exception.message)
        if kind == "selectbox":
            self.ids[delta.new_element.selectbox.id.rpartition("-")[2]] = delta.new_element.selectbox.id

    def open(self, page: str) -> None:
        """Choose a page of the menu."""
        self.name = "" if page == view.DEFAULT_PAGE else page
        self.page_hash = self.pages[self.name]
        self.run()

    def change(self, key: str, words: str) -> None:
        """Choose in a control."""
        self.set[key] = words
        self.run()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def resident_mib(pid: int) -> float:
    """Memory that a process holds, files that it has mapped included."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one_round(sessions: list[Session], pid: int, pages: list[str]) -> list[float]:
    """200 interactions by all sessions at once; memory after each tenth of them."""
    each = INTERACTIONS // len(sessions)

    def drive(number: int) -> list[float]:
        session, seen = sessions[number], []
        changes = itertools.cycle(CHANGES)
        for step in range(each):
            if step % 2 == 0:
                session.open(pages[(number + step // 2) % len(pages)])
            else:
                session.change(*next(changes))
            seen.append(resident_mib(pid))
        return seen

    with ThreadPoolExecutor(len(sessions)) as pool:
        found = list(pool.map(drive, range(len(sessions))))
    return [max(seen[step] for seen in found) for step in range(each)]


def main() -> int:
    """Print memory over time; 1 where it is over its limit or grows from the second round to the last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pages", nargs="*", default=list(view.PAGES), choices=list(view.PAGES))
    arguments = parser.parse_args()
    names = {path.name.rpartition("-")[0]: path.name for path in list_bundles(arguments.folder)}
    query = urlencode([("m", names[PAIR[0]]), ("r", names[PAIR[1][0]])])
    port = free_port()
    command = [sys.executable, "-m", "dashboard.cli", "serve", "--port", str(port), "--store", str(arguments.folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _await(port)
        print(f"server alone: {resident_mib(server.pid):,.0f} MiB")
        with ThreadPoolExecutor(arguments.sessions) as pool:
            sessions = list(pool.map(lambda _: Session(port, query), range(arguments.sessions)))
        print(f"{arguments.sessions} sessions opened: {resident_mib(server.pid):,.0f} MiB", flush=True)
        ends, most = [], 0.0
        for number in range(1, arguments.rounds + 1):
            begun, used = time.monotonic(), cpu_s(server.pid)
            seen = one_round(sessions, server.pid, arguments.pages)
            ends.append(seen[-1])
            most = max(most, *seen)
            over_time = " ".join(f"{mib:.0f}" for mib in seen)
            took, spent = time.monotonic() - begun, cpu_s(server.pid) - used
            print(f"round {number}, {INTERACTIONS} interactions in {took:.0f} s, CPU {spent:.0f} s:", flush=True)
            print(f"    MiB {over_time}", flush=True)
        errors = {error for session in sessions for error in session.errors}
        for session in sessions:
            session.socket.close()
        received = sum(session.received for session in sessions) / 1e6
        growth = ends[-1] - ends[1] if len(ends) > 2 else 0.0
        print(f"{most:,.0f} MiB at most (limit {LIMIT_MIB:,}); {growth:+.0f} MiB from the second round to the last;")
        print(
            f"{received:.0f} MB received; {len(errors)} kinds of exceptions{': ' + '; '.join(errors) if errors else ''}"
        )
        return int(most > LIMIT_MIB or growth > 0.05 * most or bool(errors))
    finally:
        server.terminate()
        server.wait(30)


def _await(port: int) -> None:
    """Wait until the server answers."""
    until = time.monotonic() + 120
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 5):
                return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
