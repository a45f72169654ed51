"""The commands ``part`` and ``model``: what there is to deploy, and where each figure is from."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from engine.cli.shared import Commands, add_command, store_options, stores_of
from engine.errors import GapscopeError

if TYPE_CHECKING:
    from engine.deployment import ModelShape

_Record = TypeVar("_Record")

UNKNOWN = "unknown"
ABSENT = {"experts": "none", "sparse": "none", "linear": "none", "expert_dtype": "as weight_dtype"}
"""What it means that a model does not have these."""


def add_presets(commands: Commands) -> None:
    """Add ``part`` and ``model``."""
    part = add_command(
        commands,
        "part",
        "list the GPUs that passes can be priced for, and show one",
        "Parts are packaged, or yours: presets/parts/NAME.toml in a store.\n\n"
        "  gapscope part list\n  gapscope part show mi355x",
    )
    model = add_command(
        commands,
        "model",
        "list the models that passes can be priced for, and show one",
        "Models are packaged, or yours: presets/models/NAME.toml in a store, or a Hugging Face config.json as\n"
        "presets/models/NAME.json. `show` also reads a config.json where it lies.\n\n"
        "  gapscope model list\n  gapscope model show glm-5.2\n  gapscope model show downloads/config.json",
    )
    for parser, show, table, what in ((part, _show_part, _parts, "NAME"), (model, _show_model, _models, "NAME|FILE")):
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        listed = actions.add_parser("list", help="one line each", parents=[store_options()])
        listed.set_defaults(run=table)
        shown = actions.add_parser("show", help="every figure, and where it is from", parents=[store_options()])
        shown.add_argument("name", metavar=what)
        shown.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
        shown.set_defaults(run=show)


def folders_of(arguments: argparse.Namespace) -> list[Path]:
    """Where the user's presets lie."""
    from engine.deployment import preset_folders

    return preset_folders(stores_of(arguments))


def model_of(name: str, folders: list[Path]) -> ModelShape:
    """The model of a preset, or of a Hugging Face config in a file that ends in .json.

    Raises:
        GapscopeError: there is none of that name, or the file is not such a config.
    """
    from engine.deployment import from_huggingface, load_model
    from engine.jsonl import read_object

    if not name.endswith(".json"):
        return load_model(name, folders)
    path = Path(name)
    return from_huggingface(read_object(path), path.stem if path.stem != "config" else path.absolute().parent.name)


def _parts(arguments: argparse.Namespace) -> int:
    from engine.deployment import load_part, part_names

    folders = folders_of(arguments)
    rows: list[tuple[str, ...]] = [
        ("part", "arch", "bf16", "fp8", "fp4 TFLOPS", "HBM TB/s", "GiB", "link GB/s", "GPUs")
    ]
    for name, part in sound(part_names(folders), lambda name: load_part(name, folders)):
        rates = (part.bf16_tflops, part.fp8_tflops, part.fp4_tflops, part.hbm_tb_s, part.hbm_gib, part.link_gb_s)
        rows.append((name, part.arch, *map(figure, rates), str(part.domain_gpus)))
    print(table(rows, left=2))
    return 0


def _models(arguments: argparse.Namespace) -> int:
    from engine.deployment import load_model, model_names, parameters

    folders = folders_of(arguments)
    rows = [("model", "parameters", "layers", "hidden", "heads", "attention", "experts", "published in")]
    for name, model in sound(model_names(folders), lambda name: load_model(name, folders)):
        size = sum(count for component, count in parameters(model).items() if component != "mtp")
        experts = f"{model.experts.topk} of {model.experts.count:,}" if model.experts else "-"
        formats = model.weight_dtype + (f", experts {model.expert_dtype}" if model.expert_dtype else "")
        rows.append(
            (
                name,
                f"{size / 1e9:,.1f} B",
                str(model.layers),
                f"{model.hidden:,}",
                str(model.attention.heads),
                kind_of(model),
                experts,
                formats,
            )
        )
    print(table(rows, left=1, last=3))
    return 0


def sound(names: Iterable[str], load: Callable[[str], _Record]) -> Iterator[tuple[str, _Record]]:
    """The presets that load; what is wrong with another is said on stderr."""
    for name in names:
        try:
            yield name, load(name)
        except GapscopeError as error:
            print(f"{name}: {error}", file=sys.stderr)


def kind_of(model: ModelShape) -> str:
    """How a model attends, in a few words."""
    words = ["latent" if model.attention.is_latent else f"{model.attention.kv_heads} kv heads"]
    if model.window_layers:
        words.append(f"window on {model.window_layers}")
    if model.linear:
        words.append(f"linear on {model.linear.layers}")
    if model.sparse:
        words.append("schedule" if model.sparse.schedule else f"top {model.sparse.topk:,}")
    return ", ".join(words)


def _show_part(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from engine.deployment import load_part

    return _show(asdict(load_part(arguments.name, folders_of(arguments))), {}, arguments.format, {})


def _show_model(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from engine.deployment import parameters

    model = model_of(arguments.name, folders_of(arguments))
    return _show(asdict(model), {"parameters": parameters(model)}, arguments.format, ABSENT)


def _show(record: dict[str, Any], more: Mapping[str, Mapping[str, int]], form: str, absent: Mapping[str, str]) -> int:
    """Print a record with the source of each figure; ``absent`` says what None means where it is not unknown."""
    if form == "json":
        print(json.dumps(record | dict(more), indent=2))
        return 0
    sources = record.pop("sources")
    rest = sources.get("*", "")
    print(record.pop("name"), end="\n\n")
    flat = {
        name: absent.get(name, UNKNOWN) if value is None else said(value) for name, value in flatten(record).items()
    }
    width, wide = max(map(len, flat)), max(map(len, flat.values()))
    for name, text in flat.items():
        source = sources.get(name) or sources.get(name.partition(".")[0]) or (rest and "[1]")
        print(f"  {name:<{width}}  {text:<{wide}}  {source}".rstrip())
    if rest:
        print(f"\n[1] {rest}")
    for title, counts in more.items():
        print(f"\n{title}")
        for name, count in counts.items():
            print(f"  {name:<{width}}  {count:>19,}")
        total = sum(count for name, count in counts.items() if name != "mtp")
        print(f"  {'together' + (', without mtp' if 'mtp' in counts else ''):<{width}}  {total:>19,}")
    return 0


def flatten(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Figures by dotted name; tables of rates stay one figure."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict) and all(isinstance(key, str) for key in value) and value:
            flat |= flatten(value, f"{before}{name}.")
        else:
            flat[before + name] = value
    return flat


def said(value: Any) -> str:
    """A figure as text."""
    if value == {}:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {rate:g}" for key, rate in value.items())
    if isinstance(value, (list, tuple)):
        return runs(value) if value else "none"
    return f"{value:,}" if isinstance(value, int) else figure(value) if isinstance(value, float) else str(value)


def runs(codes: list[int] | tuple[int, ...]) -> str:
    """How often each code of a schedule comes."""
    return ", ".join(f"{codes.count(code)} x {code}" for code in sorted(set(codes)))


def figure(value: float | None) -> str:
    """A rate or an amount as text; None is unknown."""
    return UNKNOWN if value is None else f"{value:,.6g}".rstrip()


def table(rows: Sequence[tuple[str, ...]], left: int, last: int = 0) -> str:
    """Rows in columns, the first as their heads; ``left`` first and ``last`` last columns are text."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    text = set(range(left)) | set(range(len(widths) - last, len(widths)))
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if column in text else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
