"""The command ``anchor``: make anchors of measurements, list them, and say which apply to a run and why."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli.presets import table
from engine.cli.shared import Commands, add_command, add_fit_options, fit_sources, sound_run, store_options, stores_of
from engine.errors import GapscopeError

if TYPE_CHECKING:
    from engine.timing.anchors import Acceptance, Anchor, AxisRow, Finding

UNKNOWN = "unknown"


def add_anchor(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "anchor",
        "keep measured curves of an engine, and say where they apply",
        "An anchor is a decode sweep and prompts that were measured, and the regime that they were measured in. It is\n"
        "used inside that regime alone. Anchors lie in the folder anchors of a store.\n\n"
        "  gapscope anchor build fpm_sweep --name toy\n"
        "  gapscope anchor import c1.json c8.json c64.json --name llama-h100 --set gpu_arch=h100-sxm --set tp=4\n"
        "  gapscope anchor check ample8\n"
        "  gapscope replay --like ample8 --anchor toy",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = actions.add_parser("build", help="from recorded passes of runs and sweeps", parents=[store_options()])
    build.add_argument("source", nargs="+", metavar="RUN[:PHASE,...]", help="passes to make it of")
    add_fit_options(build)
    read = actions.add_parser(
        "import",
        help="from an anchor as a file, or from the result files of a load generator",
        parents=[store_options()],
    )
    read.add_argument("file", nargs="+", type=Path, metavar="FILE", help="an anchor, or one result per concurrency")
    read.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="what result files do not say (a key of meta)"
    )
    for action, run in ((build, _build), (read, _import)):
        place = action.add_mutually_exclusive_group(required=True)
        place.add_argument("--name", help="its name in the last store")
        place.add_argument("--out", type=Path, metavar="FILE", help="a file instead of a store")
        action.set_defaults(run=run)
    listed = actions.add_parser("list", help="one line each", parents=[store_options()])
    listed.set_defaults(run=_list)
    check = actions.add_parser(
        "check",
        help="what of each anchor applies to a run, and why",
        description="Exit code 1: no anchor applies.",
        parents=[store_options()],
    )
    check.add_argument("target", metavar="RUN", help="the run whose deployment is meant")
    check.add_argument("--anchor", metavar="NAME", help="this anchor alone")
    check.add_argument("--allow", default="", metavar="AXIS,...", help="axes that may differ (knob anchor_allow)")
    check.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    check.set_defaults(run=_check)


def _build(arguments: argparse.Namespace) -> int:
    from engine.timing.anchors.build import document_of

    sources = fit_sources(arguments.source, stores_of(arguments))
    return _keep(document_of(sources, force=arguments.force), arguments)


def _import(arguments: argparse.Namespace) -> int:
    from engine.jsonl import read_object
    from engine.timing.anchors.client_results import document_of

    given = _given(arguments.set)
    files: list[Path] = arguments.file
    if len(files) == 1 and _holds_sweep(files[0]):
        if given:
            raise GapscopeError(f"{files[0]} is an anchor, which says all of itself: leave out --set.")
        return _keep(read_object(files[0]), arguments)
    return _keep(document_of(files, given), arguments)


def _holds_sweep(path: Path) -> bool:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and ("sweep" in value or "meta" in value)


def _given(texts: Iterable[str]) -> dict[str, Any]:
    """Keys of meta with their values: JSON where it is some, else text."""
    given: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise GapscopeError(f"--set {text}: expected KEY=VALUE, for example --set gpu_arch=h100-sxm.")
        try:
            given[key.strip()] = json.loads(value)
        except ValueError:
            given[key.strip()] = value.strip()
    return given


def _keep(document: Mapping[str, Any], arguments: argparse.Namespace) -> int:
    from engine.timing.anchors import keep, read_anchor
    from engine.timing.anchors.keys import slips
    from engine.timing.anchors.store import write

    anchor = read_anchor(document, arguments.name or arguments.out.stem)
    if arguments.name:
        path = keep(document, stores_of(arguments)[-1], arguments.name)
    else:
        path = arguments.out
        write(document, path)
    print(path)
    print(_said(anchor), file=sys.stderr)
    for where, key, meant in slips(anchor.document):
        print(f"Key {key} of {where} is not read: is {meant} meant?", file=sys.stderr)
    return 0


def _said(anchor: Anchor) -> str:
    batches = [point.batch for point in anchor.sweep]
    several = f"batches {batches[0]:,} to {batches[-1]:,}" if len(batches) > 1 else f"batch {batches[0]:,}"
    probe = anchor.prefill
    prompts = "no prompts" if probe is None else f"{len(probe.points)} prompts of up to {probe.longest:,.0f} tokens"
    seen = {
        "pass": "passes of the engine; the host's time between them stands apart",
        "median_itl_single_wave": "median times between tokens of single waves",
        "median_itl": "median times between tokens of a refilling loop",
        "mean_tpot": "mean times per output token, which hold waits for prompts",
    }
    return f"decode of {several} ({seen[anchor.observable]}); {prompts}"


def _list(arguments: argparse.Namespace) -> int:
    from engine.timing.anchors import index

    rows: list[tuple[str, ...]] = [("anchor", "model", "engine", "part", "weights", "KV", "tp", "batches", "regime")]
    seen = set()
    for store in stores_of(arguments):
        for entry in index(store):
            if entry.name in seen:
                continue
            seen.add(entry.name)
            axes = (entry.axes[axis] or UNKNOWN for axis in ("model", "engine", "part", "weight_dtype", "kv_dtype"))
            batches = f"{entry.batches[0]:,} to {entry.batches[-1]:,}"
            rows.append((entry.name, *axes, str(entry.tp or UNKNOWN), batches, entry.signature))
    _say_unsound(arguments)
    if len(rows) == 1:
        print("No anchor yet: `gapscope anchor build` and `gapscope anchor import` make them.", file=sys.stderr)
        return 0
    print(table(rows, left=6, last=2))
    return 0


def _say_unsound(arguments: argparse.Namespace) -> None:
    from engine.timing.anchors.store import unsound

    for store in stores_of(arguments):
        for wrong in unsound(store):
            print(wrong, file=sys.stderr)


def _check(arguments: argparse.Namespace) -> int:
    from engine.timing.anchors import load, names, ranked
    from engine.timing.anchors.selection import target_of
    from engine.timing.anchors.source import allowed_of

    stores = stores_of(arguments)
    run = sound_run(stores, arguments.target)
    allow = allowed_of(arguments.allow)
    if not arguments.anchor:
        _say_unsound(arguments)
    if not arguments.anchor and not names(stores):
        raise GapscopeError("The stores hold no anchor: make one with `gapscope anchor build` or `anchor import`.")
    found = ranked(stores, target_of(run), allow, load(arguments.anchor, stores) if arguments.anchor else None)
    if arguments.format == "json":
        print(json.dumps([{"anchor": one.anchor.name, **one.acceptance.to_json()} for one in found], indent=1))
    else:
        print("\n\n".join(_verdict(one.anchor, one.acceptance) for one in found))
    return 0 if any(one.acceptance.accepted for one in found) else 1


def _verdict(anchor: Anchor, verdict: Acceptance) -> str:
    head = f"{anchor.name}: does not apply"
    if verdict.accepted:
        parts = "decode and prefill apply" if verdict.prefill_accepted else "decode applies, prefill does not"
        head = f"{anchor.name}: {parts}"
    lines = [f"{head} (distance {verdict.distance}, confidence {verdict.confidence}, reach {verdict.reach})"]
    lines.append(_rows(verdict.rows))
    for title, findings in (
        ("refused", verdict.refusals),
        ("prefill refused", verdict.prefill_refusals),
        ("packed prompts refused", verdict.packed_refusals),
        ("note", _others(verdict)),
    ):
        lines += [f"  {title}: {finding.sentence}" for finding in findings]
    return "\n".join(lines)


def _others(verdict: Acceptance) -> Sequence[Finding]:
    packed = {finding.code for finding in verdict.packed_refusals}
    return [finding for finding in verdict.warnings if finding.code not in packed]


def _rows(rows: Sequence[AxisRow]) -> str:
    cells: list[tuple[str, ...]] = [("", "anchor", "target", "", "")]
    for row in rows:
        state = "differs, allowed" if row.allowed else row.state
        cells.append((row.label, row.anchor or UNKNOWN, row.target or UNKNOWN, state, row.rule))
    return "\n".join("  " + line for line in table(cells, left=5).split("\n"))
