"""The command ``deployment``: what lies on a GPU, predicted and as an engine logged it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli.presets import folders_of, model_of, table
from engine.cli.shared import Commands, add_command, store_options
from engine.errors import GapscopeError

if TYPE_CHECKING:
    from engine.deployment import Deployment, MemoryLedger
    from engine.deployment.log_comparison import ComparedRow, LogComparison


def add_deployment(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "deployment",
        "say what a model takes on a GPU, and compare that with an engine's own log",
        "MODEL and PART are presets (`gapscope model list`, `gapscope part list`); MODEL may also be a Hugging Face\n"
        "config.json.\n\n"
        "  gapscope deployment memory llama-3.1-8b h100-sxm --context 32768\n"
        "  gapscope deployment memory glm-5.2 mi355x --tp 8 --kv-dtype fp8 --weight-dtype mxfp4\n"
        "  gapscope deployment compare-log llama-3.1-8b h100-sxm vllm.log",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    memory = actions.add_parser(
        "memory",
        help="weights, activations and graphs on one GPU, and how much KV the rest holds",
        parents=[store_options()],
    )
    compare = actions.add_parser(
        "compare-log",
        help="the same beside what vLLM or SGLang logged when it started, component by component",
        description="Each component is predicted from what the log says of its neighbours, so that one error is\n"
        "not counted twice. The share of memory, the context and the token budget are the log's where it has them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[store_options()],
    )
    for action in (memory, compare):
        action.add_argument("model", metavar="MODEL")
        action.add_argument("part", metavar="PART")
    compare.add_argument("log", type=Path, metavar="LOG", help="the engine's log; - reads it from standard input")
    for action in (memory, compare):
        _add_options(action)
    memory.add_argument("--engine", choices=("vllm", "sglang"), default="vllm", help="default: vllm")
    compare.add_argument(
        "--tolerance", type=float, default=0.05, metavar="SHARE", help="within which a row agrees (default: 0.05)"
    )
    memory.set_defaults(run=_memory)
    compare.set_defaults(run=_compare)


def _add_options(parser: argparse.ArgumentParser) -> None:
    for name, what in (
        ("tp", "GPUs of a pipeline stage"),
        ("pp", "pipeline stages"),
        ("ep", "groups of a stage's GPUs that hold different experts"),
        ("attention-dp", "attention data parallel ranks among a stage's GPUs"),
        ("dcp", "GPUs that share the KV of one sequence"),
    ):
        parser.add_argument(f"--{name}", type=_count, default=1, metavar="N", help=f"{what} (default: 1)")
    for name, what in (
        ("weight-dtype", "bf16, fp8, mxfp4, ... (default: as the checkpoint is published)"),
        ("expert-dtype", "of the experts (default: as published, or as --weight-dtype)"),
    ):
        parser.add_argument(f"--{name}", metavar="DTYPE", help=what)
    parser.add_argument("--kv-dtype", metavar="DTYPE", default="bf16", help="default: bf16")
    parser.add_argument(
        "--memory-fraction", type=float, metavar="SHARE", help="of HBM for the engine (default: 0.9, or the log's)"
    )
    parser.add_argument(
        "--token-budget", type=_count, default=8192, metavar="N", help="most new tokens of a pass (default: 8192)"
    )
    parser.add_argument("--block-size", type=_count, default=16, metavar="N", help="tokens per KV block (default: 16)")
    parser.add_argument("--context", type=_count, metavar="N", help="tokens per sequence (default: the model's most)")
    parser.add_argument("--graphs-gib", type=float, metavar="GIB", help="what captured graphs take (default: unknown)")
    parser.add_argument("--hbm-gib", type=float, metavar="GIB", help="capacity (default: the part's)")
    parser.add_argument("--mtp", action="store_true", help="MTP layers are loaded")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 10**9:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to 1,000,000,000")
    return value


def _deployment(arguments: argparse.Namespace) -> Deployment:
    from engine.deployment import Deployment, dtype_bytes, load_part

    folders = folders_of(arguments)
    model = model_of(arguments.model, folders)
    for name in filter(None, (arguments.weight_dtype, arguments.expert_dtype, arguments.kv_dtype)):
        dtype_bytes(name)
    own = arguments.weight_dtype is None
    return Deployment(
        model=model,
        part=load_part(arguments.part, folders),
        tp=arguments.tp,
        pp=arguments.pp,
        ep=arguments.ep,
        attention_dp=arguments.attention_dp,
        dcp=arguments.dcp,
        weight_dtype=arguments.weight_dtype or model.weight_dtype,
        expert_dtype=arguments.expert_dtype or (model.expert_dtype if own else None),
        kv_dtype=arguments.kv_dtype,
    )


def _how(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "token_budget": arguments.token_budget,
        "block_size": arguments.block_size,
        "context": arguments.context,
        "graphs_gib": arguments.graphs_gib,
        "hbm_gib": arguments.hbm_gib,
        "with_mtp": arguments.mtp,
    }


# -- memory ----------------------------------------------------------------------------------------------------


def _memory(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from engine.deployment import memory_ledger

    deployment = _deployment(arguments)
    fraction = 0.9 if arguments.memory_fraction is None else arguments.memory_fraction
    ledger = memory_ledger(deployment, memory_fraction=fraction, engine=arguments.engine, **_how(arguments))
    if arguments.format == "json":
        print(json.dumps(asdict(ledger), indent=2))
    else:
        print(_ledger_text(deployment, ledger, fraction, arguments.engine))
    return 0


def _ledger_text(deployment: Deployment, ledger: MemoryLedger, fraction: float, engine: str) -> str:
    gib = float(1 << 30)

    def row(name: str, amount: float | None, note: str = "") -> tuple[str, str, str]:
        return name, "unknown" if amount is None else f"{amount / gib:,.2f}", note

    experts = deployment.expert_dtype or deployment.weight_dtype
    rows = [
        (f"{deployment.model.name} on {deployment.part.name}, one of {deployment.gpus} GPUs", "GiB", ""),
        row("HBM", ledger.hbm_bytes),
        row("usable", ledger.usable_bytes, f"{fraction:g} of it"),
    ]
    for name, amount in ledger.weights.items():
        rows.append(row(f"  {name.replace('_', ' ')}", amount, experts if name == "experts" else ""))
    inside = engine == "vllm"
    aside = "" if inside else "outside the usable share"
    rows += [
        row("weights", ledger.weight_bytes, deployment.weight_dtype),
        row("activations", ledger.activation_bytes, aside),
        row("graphs", ledger.graphs_bytes, aside or ("nothing set aside" if ledger.graphs_bytes is None else "")),
        row("KV pool", ledger.kv_pool_bytes, "" if ledger.kv_pool_bytes > 0 else "does not fit"),
    ]
    kv = ledger.kv
    lines = [table(rows, left=1, last=1), "", f"KV per token   {kv.per_token:,.0f} bytes ({deployment.kv_dtype})"]
    parts = {"attention": kv.attention, "window": kv.window, "index keys": kv.index}
    if sum(map(bool, parts.values())) > 1:
        lines[-1] += ": " + ", ".join(f"{name} {amount:,.0f}" for name, amount in parts.items() if amount)
    if kv.window:
        lines.append(f"windows        the last {kv.window_tokens:,} tokens of a sequence")
    if kv.state:
        lines.append(f"linear state   {kv.state:,.0f} bytes per sequence")
    ranks = deployment.attention_dp
    lines += [
        f"blocks         {ledger.blocks:,} of {ledger.block_size} tokens, {ledger.kv_tokens:,} tokens",
        f"concurrency    {ledger.max_concurrency:,} sequences of {ledger.context:,} tokens"
        + (f" over {ranks} ranks" if ranks > 1 else "")
        + f" ({int(100 * ledger.sequences) / 100:,.2f} fit{' each' if ranks > 1 else ''})",
    ]
    return "\n".join(lines)


# -- compare-log -----------------------------------------------------------------------------------------------


def _compare(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from engine.deployment.engine_log import read_memory_log
    from engine.deployment.log_comparison import compare_log

    deployment = _deployment(arguments)
    log = read_memory_log(_lines(arguments.log))
    found = compare_log(
        deployment,
        log,
        tolerance=arguments.tolerance,
        memory_fraction=arguments.memory_fraction,
        **_how(arguments),
    )
    if arguments.format == "json":
        rows = [asdict(row) | {"difference": row.difference, "share": row.share} for row in found.rows]
        print(json.dumps(asdict(found) | {"rows": rows}, indent=2))
    else:
        print(_comparison_text(found))
    return 0


def _lines(path: Path) -> Iterator[str]:
    """The lines of a log.

    Raises:
        GapscopeError: it cannot be read.
    """
    if str(path) == "-":
        yield from sys.stdin
        return
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file
    except OSError as error:
        raise GapscopeError(f"{path} cannot be read: {error.strerror or error}.") from error


def _comparison_text(found: LogComparison) -> str:
    rows: list[tuple[str, ...]] = [
        ("component", "predicted", "logged", "difference", "", "state", "predicted from the log's")
    ]
    rows += [_cells(row) for row in found.rows]
    lines = [table(rows, left=1, last=2)]
    for name, (least, most) in found.ranges.items():
        taken = "least" if name == "kv_pool_gib" else "most"
        called = name.removesuffix("_gib").replace("_", " ").replace("kv", "KV")
        lines.append(f"The processes log {called} from {least:g} to {most:g}: the {taken} is compared.")
    engine = {"vllm": "vLLM", "sglang": "SGLang"}[found.engine]
    lines.append(f"{found.lines - found.unused:,} of {found.lines:,} lines were used, as {engine} writes them.")
    return "\n".join(lines)


def _cells(row: ComparedRow) -> tuple[str, ...]:
    def amount(value: float | None, sign: str = "") -> str:
        if value is None:
            return "-"
        return f"{value:{sign},.2f}" if row.unit in ("GiB", "") else f"{value:{sign},.0f}"

    share = "" if row.share is None else f"{100 * row.share:+.1f} %"
    name = f"{row.component}, {row.unit}" if row.unit in ("GiB", "bytes") else row.component
    cells = (name, amount(row.predicted), amount(row.logged), amount(row.difference, "+"), share, row.state)
    return (*cells, ", ".join(row.given))
