"""Comparison of a replay with a measured run: numbers of each side, noise, rows with state, gates and the claim."""

from dashboard.compare.comparison import LABELS, Comparison, compare, pair_label
from dashboard.compare.rows import Row, compare_number, judged, judged_change

__all__ = ["LABELS", "Comparison", "Row", "compare", "compare_number", "judged", "judged_change", "pair_label"]
