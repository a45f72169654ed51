"""What links of each version leave out, and the steps from one version to the next.

A link of version 2 or later holds only what differs from the defaults of its own version, which are frozen here. Where
a default of the view table changes, the table of a new version says so, and the step to it writes out the old default:

    VERSION = 3
    DEFAULTS[3] = DEFAULTS[2] | {"est": "nearest_rank"}
    UPGRADERS[2] = spelled_out(2)

A new parameter joins the table of the present version, with the default that shows what the page showed before. Steps
and tables stay for ever: links stand in review comments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

VERSION = 2
Query = dict[str, list[str]]
Step = Callable[[Query], Query]

DEFAULTS: dict[int, dict[str, Any]] = {
    2: {
        "pop": "complete",
        "tol": 16,
        "phase": "profile",
        "est": "linear",
        "win": "fixed",
        "ack": False,
        "pin": False,
        "hide": [],
        "find": "",
        "kind": [],
        "run_state": [],
        "run_model": [],
        "run_hw": [],
        "run_engine": [],
        "rungs": False,
        "points": False,
        "gates": "",
        "split": "ttft",
        "only": "open",
        "id_find": "",
        "lanes_from": 0.0,
        "lanes_span": 30.0,
        "metric": "ttft",
        "curve": "ecdf",
        "pct_x": "log",
        "by": "input_tokens",
        "slo": "",
        "hist": "ttft.mean",
        "err": "median",
        "err_cell": "",
        "top": 10,
        "src_find": "",
        "tools_metric": "ttft",
        "tools_fields": "open",
        "cls": "mixed",
        "cell": "",
        "along": "decode_kv_tokens",
        "pass_from": 0.0,
        "pass_span": 20.0,
        "pass_y": "log",
        "tim_with": [],
        "tim_tp": 1,
        "tim_y": "linear",
        "cov": "decode_only",
        "ladder_number": "ttft.mean",
        "ladder_pass": -1,
        "align_tol": 5.0,
        "align_ahead": False,
        "align_part": "",
        "align_model": "",
        "bnd_until": "e2e",
        "bnd_tail": 90.0,
        "bnd_by": "input_tokens",
        "turn_by": "e2e",
        "knob_find": "",
        "swp_with": "",
        "swp_x": "lanes",
        "swp_x_at": "",
        "swp_y": "",
        "swp_y_at": "",
        "swp_number": "ttft.p90",
        "swp_rate": "output_rate",
        "swp_tail": "ttft.p90",
        "sens_number": "ttft.p90",
        "sens_knobs": [],
        "status": "all",
    }
}
"""Version -> what a parameter is where a link of that version does not name it."""


def unchanged(query: Query) -> Query:
    """The step from version 1, whose links name every value."""
    return query


def spelled_out(version: int) -> Step:
    """The step that writes what links of a version leave out, so that a later default cannot change them."""

    def step(query: Query) -> Query:
        return {name: _texts(value) for name, value in DEFAULTS[version].items()} | query

    return step


def _texts(value: Any) -> list[str]:
    if isinstance(value, list):
        return [str(one) for one in value] or [""]
    return [str(value).lower() if isinstance(value, bool) else str(value)]


UPGRADERS: dict[int, Step] = {1: unchanged}
"""Version n -> the step that turns a link of version n into one of version n + 1. A step stays for ever."""
