"""What is looked at: one table of view parameters, and the link that restores a view.

:mod:`params` is one parameter, :mod:`table` all of them, :mod:`pages` the pages that have them, :mod:`link` a view and
its permalink, :mod:`versions` what links of each version leave out.
"""

from dashboard.view.link import View, from_link, from_query, saved_view, turn_key, upgrade
from dashboard.view.pages import DEFAULT_PAGE, PAGES, REPLAYING, SECTIONS
from dashboard.view.params import SHARED, Param
from dashboard.view.table import (
    CANDIDATES,
    KNOB_PREFIX,
    MAX_REPLAYS,
    PARAMS,
    PRESET_NAME,
    RUN_STATES,
    SOURCE_NAME,
    params_of,
)
from dashboard.view.versions import DEFAULTS, UPGRADERS, VERSION
from engine.bundle.manifest import RUN_ID

__all__ = [
    "CANDIDATES",
    "DEFAULTS",
    "DEFAULT_PAGE",
    "KNOB_PREFIX",
    "MAX_REPLAYS",
    "PAGES",
    "PARAMS",
    "PRESET_NAME",
    "REPLAYING",
    "RUN_ID",
    "RUN_STATES",
    "SECTIONS",
    "SHARED",
    "SOURCE_NAME",
    "UPGRADERS",
    "VERSION",
    "Param",
    "View",
    "from_link",
    "from_query",
    "params_of",
    "saved_view",
    "turn_key",
    "upgrade",
]
