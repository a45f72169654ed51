"""Identity: are these runs the same experiment?"""

import streamlit as st

from dashboard import widgets
from dashboard.charts.comparison import identity
from dashboard.charts.draw import draw
from dashboard.charts.timing import timing_regime
from dashboard.compare.sameness import by_weight, lines
from dashboard.compare.timing_regime import timing_regime as regime_of

frame, store = widgets.frame("identity"), widgets.store()
if not frame.replays:
    st.info("Choose a replay in the bar above to see its identity beside the measured run's.")
    st.stop()

everything = by_weight(lines(frame.measured.bundle, [side.bundle for side in frame.replays]))
with st.container(gap="xsmall"):
    for sentence in identity.verdicts(frame, everything):
        st.markdown(sentence)
    st.caption(
        "Launch arguments and other fields that hold several settings are counted, and shown, setting by setting."
    )
with st.container(horizontal=True, vertical_alignment="bottom"):
    every = widgets.control("only") == "all"
    words = widgets.control("id_find", width=260, placeholder="field or value").lower().split()
shown = {
    state: [line for line in everything if line.state == state and line.holds(words)]
    for state in ("differs", "unknown", "same", "not applicable")
}
draw(
    frame,
    "identity",
    "Fields that differ",
    identity.fields(frame, shown["differs"], "No field that is known on both sides differs."),
    note="One column per run; a value that differs from that of the first says so. The source stands at the end.",
    height=460,
)
for state, key, title, note, opened in (
    (
        "unknown",
        "unknown",
        "Settings that a side does not know",
        "Neither a match nor a mismatch. With several candidates one that does not know it is enough.",
        True,
    ),
    ("same", "equal", "Settings that are equal on all sides", "", every),
):
    fold = st.expander(
        f"{len(shown[state]):,} {title[0].lower()}{title[1:]}",
        expanded=opened,
        key=f"fold-{key}-{every}",
        on_change="rerun",
    )
    if fold.open:
        with fold:
            draw(frame, key, title, identity.fields(frame, shown[state]), note=note, height=380)
if ruled_out := len(shown["not applicable"]):
    st.caption(f"{ruled_out:,} more settings do not apply to any candidate.")

rows, recorded = identity.memory(frame)
if recorded:
    draw(frame, "memory", "Memory by component", rows)
else:
    st.info("Memory by component is not recorded on either side: weights, KV, activations and graphs stay unknown.")

regimes = [
    (side, regime_of(store, side.bundle, frame.measured.bundle))
    for side in frame.replays
    if side.bundle.kind == "replay"
]
for alike, found in timing_regime.together(regimes):
    side, sides = alike[0], (frame.measured, *alike)
    called = " and ".join(one.called for one in alike)
    if found is None:
        st.info(f"The record of {called} says nothing of its timing, so its regime is unknown.")
        continue
    rows, note = timing_regime.axes(found, side)
    if len(alike) > 1:
        note += f" The same holds of what {' and '.join(one.run_id for one in alike[1:])} stands for."
    draw(
        frame,
        f"axes-{side.role.name}",
        f"Regime of the timing of {called}: {found.kind}",
        rows,
        note=note,
        sides=sides,
    )
    draw(
        frame,
        f"parts-{side.role.name}",
        f"What of the timing of {called} applies",
        timing_regime.parts(found),
        sides=sides,
    )
    draw(
        frame,
        f"changes-{side.role.name}",
        f"Levels, corrections and transport in the timing of {called}",
        timing_regime.changes(found),
        sides=sides,
    )
