"""Identity: are these two runs the same experiment?"""

import streamlit as st

from dashboard import widgets
from dashboard.charts import identity, timing_regime
from dashboard.charts.draw import draw
from dashboard.compare.timing_regime import timing_regime as regime_of

frame, store = widgets.frame("identity"), widgets.store()
if not frame.replays:
    st.info("Choose a replay in the bar above to see its identity beside the measured run's.")
    st.stop()

every = widgets.control("only") == "all"
for side in frame.replays:
    st.markdown(
        f":{side.role.word}[{side.role.glyph} {side.role.name}]: **{side.differing}** fields differ, "
        f"**{len(side.regime)}** of them define the regime; **{side.unknown}** are unknown on a side or on both."
    )
draw(
    frame,
    "identity",
    "Identity records side by side",
    identity.diff(frame, every),
    note="Differing and unknown fields come first; the source says where a value was read.",
    height=460,
)
rows, recorded = identity.memory(frame)
if recorded:
    draw(frame, "memory", "Memory by component", rows)
else:
    st.info("Memory by component is not recorded on either side: weights, KV, activations and graphs stay unknown.")

for side in frame.replays:
    if side.bundle.kind != "replay":
        continue
    found = regime_of(store, side.bundle, frame.measured.bundle)
    role, sides = side.role.name, (frame.measured, side)
    if found is None:
        st.info(f"The record of the {role} says nothing of its timing, so its regime is unknown.")
        continue
    rows, words = timing_regime.axes(found, side)
    draw(frame, f"axes-{role}", f"Regime of the timing of the {role}: {found.kind}", rows, note=words, sides=sides)
    draw(
        frame,
        f"parts-{role}",
        f"What of the timing of the {role} applies",
        timing_regime.parts(found),
        sides=sides,
    )
    draw(
        frame,
        f"changes-{role}",
        f"Levels, corrections and transport in the timing of the {role}",
        timing_regime.changes(found),
        sides=sides,
    )
