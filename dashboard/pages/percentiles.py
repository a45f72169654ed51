"""Percentiles."""

import streamlit as st

from dashboard import widgets
from dashboard.charts import figures
from dashboard.charts.draw import Answer, draw
from dashboard.charts.figures import Axis
from dashboard.metrics import metric
from dashboard.samples import sample

frame = widgets.frame("percentiles")
m = metric(widgets.control("metric", flat=False, width=240))
log = widgets.control("pct_x") == "log"
samples = [(s.role, s.name, sample(widgets.store(), s.run_id, m, frame.population_of(s))) for s in frame.sides]
import pyarrow as pa
draw(frame, "ecdf", f"{m.label} ({m.unit}): share of requests at or below", Answer(pa.table({"a":[1]}), n={s.run_id: x[2].n for s,x in zip(frame.sides, samples)}),
     figures.ecdf(samples, Axis(f"{m.label}, {m.unit}", log=log), dark=frame.dark))
