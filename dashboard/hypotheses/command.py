"""``gapscope hypothesis``: the ledger of hypotheses from the command line, with the rules of the page."""

from __future__ import annotations

import argparse
from typing import Any

from dashboard.hypotheses.rules import LAYERS, STATUSES
from engine.cli import main as engine_cli

EXAMPLES = """\
examples:
  gapscope hypothesis open "Mixed passes are priced too low" \\
      --prediction "with measured pass durations the TTFT gap closes; if it stays, this is wrong" --layer timing
  gapscope hypothesis evidence h3f9c01ab "/ladder?v=2&m=...&r=..." --note "rung 3 to 4 holds most of the gap"
  gapscope hypothesis support h3f9c01ab --residual "a tenth of the tail"
  gapscope hypothesis retract h3f9c01ab "the gap stays with measured durations"
  gapscope hypothesis list --status open
"""


def add_hypothesis(commands: Any) -> None:
    """Add the command to an argparse sub-command group."""
    parser = commands.add_parser(
        "hypothesis",
        help="the ledger of hypotheses: open, add evidence, support, retract, list",
        description="Hypotheses on what is wrong with a replay. A row per event is appended beside the runs of the "
        "last store; nothing is rewritten.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    stores = engine_cli.store_options()

    def action(name: str, event: str, words: str) -> argparse.ArgumentParser:
        found: argparse.ArgumentParser = actions.add_parser(
            name, help=words, description=words.capitalize() + ".", parents=[stores]
        )
        found.set_defaults(run=run_record, event=event)
        if event != "opened":
            found.add_argument("ref", metavar="ID", help="the hypothesis, or a unique beginning of its id")
        return found

    opened = action("open", "opened", "state a hypothesis")
    opened.add_argument("statement", help="what is claimed")
    opened.add_argument("--prediction", required=True, help="what will be seen, and would not be if it were wrong")
    evidence = action("evidence", "evidence", "add a saved view as evidence")
    evidence.add_argument("link", help="the permalink of a view, as Link on a page shows it")
    evidence.add_argument("--note", dest="text", default="", help="what it shows")
    supported = action("support", "supported", "say that the evidence supports it")
    supported.add_argument("--note", dest="text", default="", help="how")
    retracted = action("retract", "retracted", "take it back; it stays listed")
    retracted.add_argument("text", metavar="REASON", help="why")
    reopened = action("reopen", "reopened", "open a supported or retracted one again")
    reopened.add_argument("text", metavar="REASON", help="why")
    for each in (opened, supported, retracted):
        each.add_argument("--layer", choices=tuple(LAYERS), default="", help="what the difference is attributed to")
        each.add_argument("--residual", default="", help="what stays unexplained")

    listing = actions.add_parser("list", help="every hypothesis with its events", parents=[stores])
    listing.add_argument("--status", choices=("all", *STATUSES), default="all")
    listing.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    listing.set_defaults(run=run_list)


def run_record(arguments: argparse.Namespace) -> int:
    """One event; prints the hypothesis and its status."""
    from dashboard.hypotheses.book import record

    names = ("statement", "prediction", "text", "link", "layer", "residual")
    said = {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}
    found = record(engine_cli.stores_of(arguments), arguments.event, getattr(arguments, "ref", ""), **said)
    print(found.id, found.status)
    return 0


def run_list(arguments: argparse.Namespace) -> int:
    """Every hypothesis of the stores."""
    from dashboard.hypotheses.book import read
    from dashboard.hypotheses.text import book_text

    print(book_text(read(engine_cli.stores_of(arguments)), arguments.status, arguments.format))
    return 0
