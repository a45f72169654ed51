"""Options that say which requests a number is about, how percentiles are read off, and what must hold."""

from __future__ import annotations

import argparse


def add_scope(parser: argparse.ArgumentParser) -> None:
    """Add ``--population``, ``--estimator``, ``--window`` and ``--gate``."""
    from dashboard.metrics import PHASES, SUBSETS, Estimator, Window

    parser.add_argument(
        "--population",
        default="profile",
        metavar="PHASE[.SUBSET]",
        help=f"phase of dispatch ({', '.join(PHASES)}) and subset ({', '.join(SUBSETS)}); default profile.complete",
    )
    parser.add_argument("--estimator", choices=[e.value for e in Estimator], default="linear", help="of percentiles")
    parser.add_argument("--window", choices=[w.value for w in Window], default="fixed", help="of rates")
    parser.add_argument("--gate", action="append", default=[], metavar="GATE", help="a bound that must hold; repeat")
