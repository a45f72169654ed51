"""A real server on the sample runs, a real Chromium, and what to say where there is none."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from driving import chosen, go, opened

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS = [
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]
REQUIRED = os.environ.get("GAPSCOPE_REQUIRE_BROWSER") == "1"


def chromium() -> str | None:
    """Debian's Chromium; Playwright brings no browser of its own."""
    for name in ("chromium", "chromium-headless-shell"):
        if found := shutil.which(name):
            return found
    return None


def absent(what: str) -> None:
    words = f"{what}: the browser tests need Debian's chromium and Playwright (scripts/browser.sh)."
    if REQUIRED:
        pytest.fail(words, pytrace=False)
    pytest.skip(words)


@pytest.fixture(scope="session")
def installed() -> None:
    """Skip, or fail where CI demands a browser, before anything is prepared."""
    if chromium() is None:
        absent("No chromium on this machine")
    if find_spec("playwright") is None:
        absent("Playwright is not installed")


@pytest.fixture(scope="session")
def runs(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for new runs, with a real replay of a sample."""
    folder = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "engine.cli", "replay", "--like", "ample8", "--fit", "fpm_sweep"]
    command += ["--fit", "ample8:warmup", "--title", "ample8 blind", "--store", "sample_runs", "--store", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def server(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The dashboard as `gapscope serve` starts it; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    environment = {**os.environ, "GAPSCOPE_STORE": os.pathsep.join([str(ROOT / "sample_runs"), str(runs)])}
    command = [sys.executable, "-m", "dashboard.cli", "serve", f"--port={port}"]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=sink, stderr=sink)
    try:
        deadline = time.monotonic() + 120
        while True:
            assert process.poll() is None, f"the server ended early:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"the server did not answer:\n{log.read_text()}"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2):
                    break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)
    assert "Traceback" not in log.read_text(), log.read_text()[-4000:]


@pytest.fixture(scope="module")
def browser(installed: None) -> Iterator[object]:
    """A Chromium for the tests of a file: a thread can hold one Playwright, and while it does, no other test of the
    process can run an event loop."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def pair(browser: object, server: str) -> tuple[str, str]:
    """The pair that opens first: the sample and its replay."""
    with opened(browser, server) as page:
        go(page, f"{server}/percentiles")  # the first page of a fresh server, and not the default one
        measured = chosen(page, "m")
        (replay,) = re.findall(r"[a-z0-9_-]+-[0-9a-f]{12}", page.locator(".st-key-r").inner_text())
    assert measured.startswith("ample8-")
    return measured, replay
