"""A real server of the dashboard, and sessions as a browser opens them: WebSockets with messages of Streamlit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import ClientConnection, connect

from dashboard import view

WAIT_S = 300.0


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


@dataclass(frozen=True)
class Server:
    """A server that listens: its port and process, and what its start took."""

    port: int
    pid: int
    start_s: float
    start_cpu_s: float


@contextmanager
def served(store: Path) -> Iterator[Server]:
    """`gapscope serve` on a store, from when it answers."""
    port, begun = _free_port(), time.monotonic()
    command = [sys.executable, "-m", "dashboard.cli", "serve", "--port", str(port), "--store", str(store)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _await(port)
        yield Server(port, process.pid, time.monotonic() - begun, cpu_s(process.pid))
    finally:
        process.terminate()
        process.wait(30)


def _free_port() -> int:
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
