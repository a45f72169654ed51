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
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

from benchmarks.large_pages import PAIR
from benchmarks.page_server import Session, cpu_s, resident_mib, served
from dashboard import view
from engine.bundle import list_bundles

INTERACTIONS = 200
LIMIT_MIB = 2048
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
    with served(arguments.folder) as server:
        print(f"server alone: {resident_mib(server.pid):,.0f} MiB")
        with ThreadPoolExecutor(arguments.sessions) as pool:
            sessions = list(pool.map(lambda _: Session(server.port, query), range(arguments.sessions)))
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


if __name__ == "__main__":
    sys.exit(main())
