"""The identity dialog: what differs and what is unknown, of all candidates in one table."""

from __future__ import annotations

from pathlib import Path

from small_runs import identity, request, write

from dashboard.charts.panel.open_fields import open_fields
from dashboard.metrics import HEADLINE, Estimator, Window
from dashboard.sides import frame_of
from dashboard.store import Store

ONE = [request("r")]
PART = "Hardware: GPU part (or processor)"


def test_open_identity_fields_of_all_candidates_stand_in_one_table(tmp_path: Path) -> None:
    m = write(tmp_path, "m", ONE)
    near = write(tmp_path, "near", ONE, kind="replay", record=identity(hardware__part="GPU"))
    far = write(tmp_path, "far", ONE, kind="replay", record=identity(client__lanes=4))
    frame = frame_of(Store([tmp_path]), m, [near, far], HEADLINE, Estimator.LINEAR, Window.FIXED)
    table = open_fields(frame)
    assert table.column_names == ["field", "regime", "measured", "replay", "candidate 2"]
    rows = {row["field"]: row for row in table.to_pylist()}
    assert list(rows)[:2] == [PART, "Client: lanes"] or list(rows)[:2] == [
        "Client: lanes",
        PART,
    ]
    part, lanes = rows[PART], rows["Client: lanes"]
    assert (part["regime"], part["measured"], part["replay"], part["candidate 2"]) == (
        "yes",
        "CPU",
        "differs: GPU",
        "CPU",
    )
    assert (lanes["regime"], lanes["measured"], lanes["replay"], lanes["candidate 2"]) == ("", "2", "2", "differs: 4")
    unknown = [row for name, row in rows.items() if name not in (PART, "Client: lanes")]
    assert unknown
    assert all(row["measured"] == "unknown" or "unknown" in (row["replay"], row["candidate 2"]) for row in unknown)
