"""What pages share on screen: controls, the pair, the frame of a page, links and the address.

Pages call these as ``widgets.control``, ``widgets.frame`` and so on.
"""

from dashboard.widgets.address import (
    base_url,
    current,
    open_link,
    permalink,
    remember_view,
    say_absent,
    say_no_way,
    seen,
)
from dashboard.widgets.controls import control, dark
from dashboard.widgets.frames import (
    candidate,
    frame,
    inside,
    led,
    need_requests,
    pair_roles,
    scope,
    side,
    unusable,
    usable_replays,
)
from dashboard.widgets.links import cohort_link, request_link, turn_chooser, turn_links
from dashboard.widgets.navigation import PAGES_FOLDER, entered, keep_shared, navigation
from dashboard.widgets.pair import (
    choose_candidate,
    choose_measured,
    compare_first,
    follow,
    join_finished,
    new_measured,
    new_pair,
)
from dashboard.widgets.stored import entries, held, look, roots, store

__all__ = [
    "PAGES_FOLDER",
    "base_url",
    "candidate",
    "choose_candidate",
    "choose_measured",
    "cohort_link",
    "compare_first",
    "control",
    "current",
    "dark",
    "entered",
    "entries",
    "follow",
    "frame",
    "held",
    "inside",
    "join_finished",
    "keep_shared",
    "led",
    "look",
    "navigation",
    "need_requests",
    "new_measured",
    "new_pair",
    "open_link",
    "pair_roles",
    "permalink",
    "remember_view",
    "request_link",
    "roots",
    "say_absent",
    "say_no_way",
    "scope",
    "seen",
    "side",
    "store",
    "turn_chooser",
    "turn_links",
    "unusable",
    "usable_replays",
]
