"""The pages and the sections of the navigation they stand in."""

from __future__ import annotations

DEFAULT_PAGE = "verdict"
REPLAYING = ("what_if", "sweep", "sensitivity")
"""Pages that replay a run with other knobs."""
PAGES: dict[str, str] = {
    "runs": "Runs",
    "verdict": "Verdict",
    "identity": "Identity",
    "source": "Source",
    "cohort": "Cohort",
    "percentiles": "Percentiles",
    "repeats": "Repeats",
    "tools": "Cross-tool",
    "passes": "Passes",
    "timing": "Timing",
    "coverage": "Coverage",
    "cache_events": "Cache events",
    "ladder": "Ladder",
    "alignment": "Alignment",
    "boundaries": "Boundaries",
    "request": "Request",
    "what_if": "What-if",
    "sweep": "Sweep",
    "sensitivity": "Sensitivity",
    "ledger": "Ledger",
    "report": "Report",
}
"""Pages by their name in the address bar."""

SECTIONS: dict[str, tuple[str, ...]] = {
    "Runs": ("runs",),
    "Compare": ("verdict", "identity", "source", "cohort", "percentiles", "repeats", "tools"),
    "Mechanism": ("passes", "timing", "coverage", "cache_events", "boundaries", "request", "ladder", "alignment"),
    "Explore": ("what_if", "sweep", "sensitivity", "ledger"),
    "Share": ("report",),
}
"""Pages by the section that the navigation lists them under."""
