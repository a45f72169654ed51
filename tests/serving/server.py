"""A real server as ``gapscope serve`` starts it, and requests to it byte by byte."""

from __future__ import annotations

import base64
import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.stores import PROJECT


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Server:
    port: int
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """One request; names of headers are written with _ for -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            sent = {"host": self.host} | {name.replace("_", "-"): value for name, value in headers.items()}
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                connection.putheader(name, value)
            if body is not None and "content-length" not in sent and "transfer-encoding" not in sent:
                connection.putheader("content-length", str(len(body)))
            connection.endheaders()
            if body:
                connection.send(body)
            reply = connection.getresponse()
            return Answer(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def socket_status(self, **headers: str) -> int:
        """What the handshake of a WebSocket is answered with."""
        return self.handshake(**headers)[0]

    def handshake(self, **headers: str) -> tuple[int, socket.socket]:
        sent = {
            "host": self.host,
            "upgrade": "websocket",
            "connection": "Upgrade",
            "sec-websocket-version": "13",
            "sec-websocket-key": base64.b64encode(os.urandom(16)).decode(),
            "sec-websocket-protocol": "streamlit",
        } | headers
        lines = ["GET /_stcore/stream HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
        opened = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        opened.sendall("\r\n".join(lines).encode())
        head = b""
        while b"\r\n\r\n" not in head:
            part = opened.recv(1)
            if not part:
                break
            head += part
        return int(head.split(b" ", 2)[1]), opened


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def serving(
    folder: Path,
    *arguments: str,
    stores: str = "",
    environment: Mapping[str, str] | None = None,
    before: Callable[[int], None] = lambda port: None,
) -> Iterator[Server]:
    """``gapscope serve`` with these arguments, until the block ends; ``before`` it starts it is told its port."""
    port = free_port()
    before(port)
    log = folder / "server.log"
    command = [sys.executable, "-m", "dashboard.cli", "serve", "--port", str(port), *arguments]
    stores = stores or str(PROJECT / "sample_runs")
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            cwd=PROJECT,
            env={**os.environ, "GAPSCOPE_STORE": stores, **(environment or {})},
            stdout=sink,
            stderr=sink,
        )
    server = Server(port, log, process)
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None, f"the server ended early:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"the server did not answer:\n{log.read_text()}"
            try:
                if server.ask("GET", "/_stcore/health").status == 200:
                    break
            except OSError:
                time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait(timeout=30)
