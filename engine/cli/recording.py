"""``gapscope record``: a real server under a workload, recorded as a run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli.recording_listen import add_listen
from engine.cli.shared import Commands, add_command, add_trace_options, read_as, say_checks, store_options, stores_of
from engine.cli.terminal import ProgressBar
from engine.errors import GapscopeError

if TYPE_CHECKING:
    from engine.recording.plan import Plan

_SHORT = {
    "lanes": ("lanes", 1.0),
    "duration": ("duration_s", 1.0),
    "warmup": ("warmup_s", 1.0),
    "grace": ("grace_s", 1.0),
    "stagger": ("lane_stagger_ms", 1000.0),
}
"""Options that are short for a knob, and the factor between their units."""
_NO_CLIENT = ("dispatch_lag_ms", "request_latency_ms", "response_latency_ms")
"""Knobs that stand for what a real client and a real way have by themselves."""


def add_record(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "record",
        "play a workload against a real server and keep what happened as a run",
        "The client plays by the rules of a replay: lanes, think times, joins, cuts, phases, grace. With --rows (the\n"
        "folder that the recording scheduler writes; docs/recording.md), the passes of the server lie under its\n"
        "requests. Without, the run has requests only, and the files of the recording are kept for\n"
        "`gapscope record join`. Prints the run's id. Ctrl-C ends the load: what was recorded is kept and marked\n"
        "as cut short; before the profile, nothing is written.\n\n"
        "  gapscope record --url http://127.0.0.1:8000 --trace trace.jsonl --lanes 8 --warmup 20 --duration 150\n"
        "  gapscope record --url http://127.0.0.1:8000 --trace trace.jsonl --lanes 8 --duration 150 \\\n"
        "      --rows rows/ --kv-events tcp://127.0.0.1:5557 --name tight\n"
        "  gapscope record --url http://10.0.0.7:8000 --trace weka/ --set cut=span --set prime=true --duration 600\n"
        "  gapscope record check tight                                # parity of the scheduler, at once\n"
        "  gapscope record join runs/recordings/tight --rows rows/ --trace trace.jsonl    # the server's rows, later\n"
        "  gapscope record sweep --url http://127.0.0.1:8000 --rows rows/",
        parents=[store_options()],
    )
    _server_options(parser)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="the workload, in any format of docs/traces.md")
    add_trace_options(parser)
    parser.add_argument("--lanes", type=float, metavar="N", help="short for --set lanes=N")
    parser.add_argument("--duration", type=float, metavar="S", help="length of the profile (default: the whole trace)")
    parser.add_argument("--warmup", type=float, metavar="S", help="warm-up before it")
    parser.add_argument("--grace", type=float, metavar="S", help="how long what is in flight may go on after it")
    parser.add_argument("--stagger", type=float, metavar="S", help="lane l starts l times this after the start")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a client knob (`gapscope replay --help`)"
    )
    parser.add_argument("--chat", action="store_true", help="ask for chats: words in place of token ids, lengths about")
    parser.add_argument("--raw", type=Path, metavar="FOLDER", help="keep the files of the recording there")
    parser.add_argument("--keep-cache", action="store_true", help="do not reset the server's prefix cache before")
    several: Any = {"action": "append", "default": [], "metavar": "ENDPOINT"}
    parser.add_argument("--kv-events", **several, help="where the engine publishes KV events (ZMQ); once per rank")
    parser.add_argument("--kv-replay", metavar="ENDPOINT", help="where it sends missed KV events again")
    parser.add_argument("--fpm", **several, help="where a Dynamo worker publishes its passes (ZMQ); once per rank")
    parser.add_argument(
        "--bind", action="store_true", help="bind these addresses: the engine connects where its own has no wildcard"
    )
    parser.set_defaults(run=_record)
    actions = parser.add_subparsers(title="more", dest="action", metavar="ACTION")
    _add_join(actions)
    _add_sweep(actions)
    _add_check(actions)
    add_listen(actions)


def _server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="the server, as http://127.0.0.1:8000")
    parser.add_argument("--model", help="which of its models (default: the only one)")
    parser.add_argument("--rows", type=Path, metavar="FOLDER", help="where its recording scheduler writes")
    parser.add_argument("--name", default="recording", help="what the run is called")
    parser.add_argument("--title", help="what people read")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="how long nothing may come")
    parser.add_argument(
        "--token-ids", default="256:8000", metavar="FROM:BELOW", help="made up token ids lie there (default: 256:8000)"
    )


def _needs_extra() -> None:
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise GapscopeError(
            "Recording needs aiohttp: install gapscope with the extra `record` (pip install 'gapscope[record]')."
        ) from None


def _record(arguments: argparse.Namespace) -> int:
    _needs_extra()
    from engine.recording.recording import RecordingBroken, record

    plan, bar = _plan(arguments), ProgressBar(arguments.name)
    store = stores_of(arguments)[-1]
    try:
        recorded = record(plan, store, bar.show)
    except RecordingBroken as error:
        bar.clear()
        print(f"gapscope: {error}", file=sys.stderr)
        return 1
    finally:
        bar.clear()
    print(recorded.run_id)
    _said(store, recorded.run_id, recorded.remarks)
    if recorded.raw is not None:
        print(f"files of the recording: {recorded.raw}", file=sys.stderr)
    return 1 if recorded.broken else 0


def _said(store: Path, run_id: str, remarks: list[str]) -> None:
    from engine.bundle import open_bundle

    say_checks(open_bundle(store / run_id))
    for remark in remarks:
        print(f"  {remark}", file=sys.stderr)


def _plan(arguments: argparse.Namespace) -> Plan:
    from engine.recording.listeners import Published
    from engine.recording.plan import Plan

    for name in ("url", "trace"):
        if getattr(arguments, name) is None:
            raise GapscopeError(f"gapscope record needs --{name} (or an action: join, sweep, check, listen).")
    low, below = _token_ids(arguments.token_ids)
    _check_timeout(arguments.timeout)
    return Plan(
        url=arguments.url,
        trace=arguments.trace,
        knobs=_knobs(arguments),
        name=arguments.name,
        model=arguments.model,
        title=arguments.title,
        chat=arguments.chat,
        read_as=read_as(arguments),
        rows=arguments.rows,
        published=Published(tuple(arguments.kv_events), tuple(arguments.fpm), arguments.kv_replay, arguments.bind),
        raw=arguments.raw,
        timeout_s=arguments.timeout,
        ids_from=low,
        ids_below=below,
        keep_cache=arguments.keep_cache,
    )


def _knobs(arguments: argparse.Namespace) -> dict[str, Any]:
    """Complete client settings.

    Raises:
        GapscopeError: a setting that is unknown, out of range, or none of a client.
    """
    from engine import knobs as knob_table

    changes: dict[str, Any] = {}
    for text in arguments.set:
        name, given, value = text.partition("=")
        if not given:
            raise GapscopeError(f"--set {text}: expected KEY=VALUE.")
        knob = knob_table.BY_NAME.get(name)
        if knob is not None and (knob.group not in ("client", "phases") or name in _NO_CLIENT):
            raise GapscopeError(f"--set {name}: the server is real, so only settings of the client can be given.")
        changes[name] = value
    for option, (name, factor) in _SHORT.items():
        value = getattr(arguments, option)
        if value is not None:
            changes[name] = value * factor
    return knob_table.resolve(changes)


def _check_timeout(seconds: float) -> None:
    if not 0 < seconds < 1e6:
        raise GapscopeError(f"--timeout {seconds:g}: expected seconds above 0.")


def _token_ids(text: str) -> tuple[int, int]:
    low, _, below = text.partition(":")
    if not (low.isdecimal() and below.isdecimal() and int(low) < int(below) <= 1 << 32):
        raise GapscopeError(f"--token-ids {text}: expected two numbers as 256:8000, the first below the second.")
    return int(low), int(below)


# -- join ------------------------------------------------------------------------------------------------------


def _add_join(actions: Commands) -> None:
    parser = add_command(
        actions,
        "join",
        "lay a server's rows under the files of a recording",
        "For rows that were written on another machine, or fetched later: FOLDER is what `gapscope record` kept. The\n"
        "clocks are aligned by the requests that both sides know. Prints the id of the new run.\n\n"
        "  gapscope record join runs/recordings/tight --rows rows/ --trace trace.jsonl",
        parents=[store_options()],
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the files of the recording")
    parser.add_argument("--rows", type=Path, required=True, metavar="FOLDER", help="what the recording scheduler wrote")
    parser.add_argument("--events", type=Path, metavar="FILE", help="what `gapscope record listen` wrote of KV events")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="the workload (default: looked for beside)")
    parser.add_argument("--title", help="what people read")
    parser.set_defaults(run=_join)


def _join(arguments: argparse.Namespace) -> int:
    from engine.recording.join import join

    store = stores_of(arguments)[-1]
    run_id = join(arguments.folder, arguments.rows, store, arguments.trace, arguments.events, arguments.title)
    print(run_id)
    _said(store, run_id, [])
    return 0


# -- sweep -----------------------------------------------------------------------------------------------------


def _add_sweep(actions: Commands) -> None:
    parser = add_command(
        actions,
        "sweep",
        "drive a server into known shapes of passes, to fit pass times on",
        "Prompts alone (prefill), requests decoding together (decode), and both (mixed), over the sizes that the\n"
        "server allows, again and again until --repeats or --max-minutes is reached. Prints the run's id.\n\n"
        "  gapscope record sweep --url http://127.0.0.1:8000 --rows rows/ --name sweep\n"
        "  gapscope replay --like tight --fit sweep --fit tight:warmup",
        parents=[store_options()],
    )
    _server_options(parser)
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="how often each shape is run (default: 3)")
    parser.add_argument("--max-minutes", type=float, default=10.0, metavar="M", help="then it ends (default: 10)")
    parser.add_argument("--max-context", type=int, metavar="TOKENS", help="no longer contexts (default: the model's)")
    parser.set_defaults(run=_sweep, name="sweep")


def _sweep(arguments: argparse.Namespace) -> int:
    _needs_extra()
    from engine.recording.sweep import SweepPlan, sweep

    for name in ("url", "rows"):
        if getattr(arguments, name) is None:
            raise GapscopeError(f"gapscope record sweep needs --{name}.")
    low, below = _token_ids(arguments.token_ids)
    _check_timeout(arguments.timeout)
    plan = SweepPlan(
        arguments.url,
        arguments.rows,
        arguments.name,
        arguments.model,
        arguments.title,
        arguments.timeout,
        low,
        below,
        arguments.repeats,
        arguments.max_minutes,
        arguments.max_context,
    )
    store, bar = stores_of(arguments)[-1], ProgressBar(arguments.name)
    try:
        run_id = sweep(plan, store, bar.show)
    finally:
        bar.clear()
    print(run_id)
    _said(store, run_id, [])
    return 0


# -- check -----------------------------------------------------------------------------------------------------


def _add_check(actions: Commands) -> None:
    parser = add_command(
        actions,
        "check",
        "check a recording: what it says of itself, and parity of the scheduler",
        "Every failed check of the run, then each recorded batch and each stored and removed block against both cores\n"
        "(`gapscope parity`), with the first that differs. Exit code 1: a core differs from the recording, or the\n"
        "recording is not whole or contradicts itself.\n\n"
        "  gapscope record check tight",
        parents=[store_options()],
    )
    parser.add_argument("name", metavar="RUN", help="a recorded run with passes")
    parser.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    from engine.cli.shared import sound_run
    from engine.recording.check import COMPARED, check, contradictions

    bundle = sound_run(stores_of(arguments), arguments.name)
    say_checks(bundle, ["rows_complete"])
    exact = True
    for result in check(bundle):
        print(result.describe())
        exact &= result.exact
    print(COMPARED)
    contradicting = contradictions(bundle)
    if contradicting:
        print("the recording is not whole, or contradicts itself:")
    for failed in contradicting:
        print(f"  {failed.check}: {failed.detail}")
    return 0 if exact and not contradicting else 1
