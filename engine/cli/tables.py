"""The command ``table``: published tables of whole forward passes, kept, shown and written."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from engine.cli.presets import table as columns
from engine.cli.shared import Commands, add_command, fit_sources, sound_run, store_options, stores_of
from engine.errors import GapscopeError


def add_table(commands: Commands) -> None:
    """Add ``table``."""
    parser = add_command(
        commands,
        "table",
        "keep, show and write tables of whole forward passes",
        "A table is a pair in the public layout: NAME.parquet with the passes of a deployment, and its sidecar\n"
        "NAME.metadata.json with digest and number of rows. Replays name it: gapscope replay --table NAME.\n\n"
        "  gapscope table keep downloads/fpm_forward_perf.parquet --name h200-vllm\n"
        "  gapscope table show h200-vllm\n"
        "  gapscope table write fpm_sweep --set model_path=local/toyllama --set system=some_part --out own.parquet",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listed = actions.add_parser("list", help="the tables of the store", parents=[store_options()])
    listed.set_defaults(run=_list)
    kept = actions.add_parser("keep", help="check a table and copy it into the store", parents=[store_options()])
    kept.add_argument("file", type=Path)
    kept.add_argument("--name", help="its name there (default: that of the file)")
    kept.set_defaults(run=_keep)
    shown = actions.add_parser("show", help="deployments, domain, what differs from a run", parents=[store_options()])
    shown.add_argument("name", metavar="NAME|FILE")
    shown.add_argument("--like", metavar="RUN", help="the run whose deployment it shall stand for")
    shown.set_defaults(run=_show)
    written = actions.add_parser("write", help="write measured passes as a table", parents=[store_options()])
    written.add_argument("source", nargs="+", metavar="RUN[:PHASE,...]", help="measured passes")
    written.add_argument("--out", type=Path, required=True, metavar="FILE.parquet")
    written.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="what the record does not say; without the model's name (model_path) no table is written",
    )
    written.set_defaults(run=_write)


def _list(arguments: argparse.Namespace) -> int:
    from engine.timing.tables import find_table, read_cells, table_names

    stores = stores_of(arguments)
    rows: list[tuple[str, ...]] = [("table", "deployment", "system", "engine", "prefill", "decode")]
    for name in table_names(stores):
        try:
            cells = read_cells(find_table(name, stores)[0])
        except GapscopeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        for number, cell in enumerate(cells, 1):
            one, said = name if len(cells) == 1 else f"{name}#{number}", cell.identity
            engine = f"{said.get('backend') or '?'} {said.get('backend_version') or ''}".rstrip()
            counts = f"{len(cell.prefill):,}", f"{len(cell.decode):,}"
            rows.append((one, cell.label, str(said.get("system") or "?"), engine, *counts))
    print(columns(rows, left=4))
    return 0


def _keep(arguments: argparse.Namespace) -> int:
    from engine.timing.tables import keep

    print(keep(arguments.file, stores_of(arguments)[-1], arguments.name))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from engine.timing.anchors.target import of_run
    from engine.timing.tables import find_table, read_cells
    from engine.timing.tables.identity import differences, unknown_columns

    stores = stores_of(arguments)
    path, which = find_table(arguments.name, stores)
    target = of_run(sound_run(stores, arguments.like).identity) if arguments.like else None
    for number, cell in enumerate(read_cells(path)):
        if which not in (None, number):
            continue
        print(f"{path.stem}#{number + 1}  {cell.label}\n")
        for name, value in cell.identity.items():
            print(f"  {name:<18}  {value}")
        print(f"  {'unknown':<18}  {', '.join(unknown_columns(cell.identity)) or 'nothing'}")
        for kind in ("prefill", "decode"):
            print(f"  {kind:<18}  {_domain(getattr(cell, kind))}")
        if target is not None:
            found = differences(cell.identity, target)
            print(f"\n  against {arguments.like}: " + ("; ".join(found) if found else "no known difference"))
        print()
    return 0


def _domain(points: tuple[Any, ...]) -> str:
    if not points:
        return "no rows"
    axes = zip(("batch", "new tokens", "KV", "ms"), zip(*points, strict=True), strict=True)
    spans = [f"{name} {min(axis):,} to {max(axis):,}" for name, axis in axes if max(axis)]
    return f"{len(points):,} rows, " + ", ".join(spans)


def _write(arguments: argparse.Namespace) -> int:
    from engine.timing.tables import write_measured
    from engine.timing.tables.identity import unknown_columns

    more: dict[str, Any] = {}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise GapscopeError(f"--set {text}: expected COLUMN=VALUE, for example --set system=b200_sxm.")
        more[name.strip()] = _value(value.strip())
    if arguments.out.suffix != ".parquet":
        raise GapscopeError(f"--out {arguments.out}: expected a name that ends in .parquet.")
    cell = write_measured(arguments.out, fit_sources(arguments.source, stores_of(arguments)), more)
    print(arguments.out)
    print(f"{len(cell.prefill):,} prefill and {len(cell.decode):,} decode rows", file=sys.stderr)
    if unknown := unknown_columns(cell.identity):
        print(f"unknown, hence NULL: {', '.join(unknown)}; --set says them", file=sys.stderr)
    return 0


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.isdigit() else text
