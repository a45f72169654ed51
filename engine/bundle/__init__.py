"""The run bundle: the one format that measured runs and replays share (docs/bundle.md)."""

from engine.bundle.label import LABELS, make_label, replay_lineage
from engine.bundle.ledger import ledger_of, ledger_problems
from engine.bundle.manifest import Check, Phase
from engine.bundle.reader import Bundle, find_bundle, list_bundles, measured_runs, open_bundle
from engine.bundle.spool import Spool, spooled
from engine.bundle.staging import clean_stale, working_folder
from engine.bundle.writer import BundleWriter, checked_slug, slugify

__all__ = [
    "LABELS",
    "Bundle",
    "BundleWriter",
    "Check",
    "Phase",
    "Spool",
    "checked_slug",
    "clean_stale",
    "find_bundle",
    "ledger_of",
    "ledger_problems",
    "list_bundles",
    "make_label",
    "measured_runs",
    "open_bundle",
    "replay_lineage",
    "slugify",
    "spooled",
    "working_folder",
]
