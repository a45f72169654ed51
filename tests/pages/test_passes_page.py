"""The Passes page says what the gap is made of, who was in a cell's passes, and which rank is the slowest."""

from __future__ import annotations

from pathlib import Path

import synthetic
from conftest import Open, run_id
from test_pages import charts, plain, words


def test_the_gap_is_in_words_and_parts(opened: Open, paired: Path) -> None:
    app = opened(paired, "passes")
    assert not app.exception
    # the replay has the same passes, each a tenth longer, and nothing else differs
    assert "(+10.0 % of" in plain(words(app))
    assert "more or fewer passes +0.00 s; passes of another geometry +0.00 s" in plain(words(app))
    parts = next(chart for chart in charts(app) if chart["data"][0].get("name") == "more or fewer passes")
    assert len(parts["data"]) == 3
    assert "No replay of this pair has a timing of its own" in plain(words(app))


def test_who_was_in_the_passes_of_a_cell(opened: Open, paired: Path) -> None:
    # the last context of a conversation is 320 + 96 * 7 = 992 tokens: 2 * log2(992) = 19.9
    app = opened(paired, "passes", cls="decode only", cell="19.1")
    (table,) = [one.value for one in app.dataframe if "who" in one.value.columns]
    assert {"measured", "replay"} == set(table["side"])
    assert {name.split("/")[1] for name in table["who"]} <= {"5", "6", "7"}


def test_a_cell_is_forgotten_with_its_class(opened: Open, paired: Path) -> None:
    app = opened(paired, "passes", cls="decode only", cell="19.1")
    app.get("button_group")[0].set_value("mixed").run()
    assert app.session_state["cell"] == ""
    assert "Passes in the cell" not in words(app)


def test_ranks_in_lockstep(opened: Open, tmp_path: Path) -> None:
    synthetic.write(tmp_path, "measured", "ample8", ranks=2)
    synthetic.write(tmp_path, "replay", "ample8-replay", ranks=2, speed=1.1)
    app = opened(tmp_path, "passes")
    assert not app.exception
    (table,) = [one.value for one in app.dataframe if "slowest_share" in one.value.columns]
    measured = table[table["run"] == run_id(tmp_path, "ample8")].set_index("dp_rank")
    # rank 1 takes 1 ms longer in every step, and rank 0 waits for it
    assert measured["slowest_share"].tolist() == [0.0, 1.0]
    assert measured["waited_ms"].tolist() == [float(measured["steps"][0]), 0.0]
    assert "steps of several ranks" in plain(words(app))
