"""Identity: are these two runs the same experiment?"""

import streamlit as st

from dashboard import widgets
from dashboard.charts import identity
from dashboard.charts.draw import draw

frame = widgets.frame("identity")
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
