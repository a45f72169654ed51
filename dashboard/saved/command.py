"""``gapscope views``: the saved views from the command line."""

from __future__ import annotations

import argparse
from typing import Any

from engine.cli import main as engine_cli

EXAMPLES = """\
examples:
  gapscope views save "/percentiles?v=2&m=...&r=...&metric=TPOT" --name "TPOT tail" --note "the tail is 9 % low"
  gapscope views rename "TPOT tail" "TPOT tail, first draft"
  gapscope views list --format markdown
"""


def add_views(commands: Any) -> None:
    """Add the command to an argparse sub-command group."""
    parser = commands.add_parser(
        "views",
        help="saved views: list, save, rename, delete",
        description="Links with a name and a note, kept beside the runs of the last store. A view is named by its name "
        "or its id. Rows are only ever added to views.jsonl; a deleted view is no longer listed.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    stores = engine_cli.store_options()

    def action(name: str, words: str, run: Any) -> argparse.ArgumentParser:
        found: argparse.ArgumentParser = actions.add_parser(
            name, help=words, description=words.capitalize() + ".", parents=[stores]
        )
        found.set_defaults(run=run)
        return found

    listing = action("list", "every saved view, with its runs and whether the stores hold them", run_list)
    listing.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    saving = action("save", "keep the view of a link", run_save)
    saving.add_argument("link", help="the permalink of a view, as Link on a page shows it")
    saving.add_argument("--name", required=True)
    saving.add_argument("--note", default="")
    renaming = action("rename", "give a view another name or note", run_rename)
    renaming.add_argument("view", help="name or id")
    renaming.add_argument("name", help="the new name")
    renaming.add_argument("--note", help="the new note; without it the note stays")
    deleting = action("delete", "take a view off the list", run_delete)
    deleting.add_argument("view", help="name or id")


def run_save(arguments: argparse.Namespace) -> int:
    """Keep a view; prints its id and name."""
    from dashboard.saved.book import save

    made = save(engine_cli.stores_of(arguments), arguments.link, arguments.name, arguments.note)
    print(made.id, made.name)
    return 0


def run_rename(arguments: argparse.Namespace) -> int:
    """Rename a view; prints its id and name."""
    from dashboard.saved.book import rename

    made = rename(engine_cli.stores_of(arguments), arguments.view, arguments.name, arguments.note)
    print(made.id, made.name)
    return 0


def run_delete(arguments: argparse.Namespace) -> int:
    """Delete a view; prints its id and name."""
    from dashboard.saved.book import delete

    gone = delete(engine_cli.stores_of(arguments), arguments.view)
    print(gone.id, gone.name)
    return 0


def run_list(arguments: argparse.Namespace) -> int:
    """Every saved view of the stores."""
    from dashboard.catalogue import Catalogue
    from dashboard.saved.book import read
    from dashboard.saved.text import views_text

    stores = engine_cli.stores_of(arguments)
    held = {entry.run_id for entry in Catalogue(stores).entries() if entry.state == "ok"}
    print(views_text(read(stores), held, arguments.format))
    return 0
