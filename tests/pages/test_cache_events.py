"""The page of cache events in the states that a store can be in."""

from __future__ import annotations

from pathlib import Path

import synthetic
from conftest import Open, run_id
from streamlit.testing.v1 import AppTest
from test_pages import charts, plain, words

from engine.stores import PROJECT

SAMPLES = PROJECT / "sample_runs"
REQUESTS = ("requests", "passes", "admissions", "chunks")


def table(app: AppTest, column: str) -> list[dict[str, object]]:
    """The rows of the only table that has this column."""
    (found,) = [one.value for one in app.dataframe if column in one.value]
    return found.to_dict("records")


def test_a_sample_pair_says_why_reuse_differs(opened: Open) -> None:
    pair = {"m": run_id(SAMPLES, "tight8"), "r": run_id(SAMPLES, "tight8-predicted")}
    app = opened(SAMPLES, "cache_events", **pair)
    assert not app.exception
    assert not app.error
    said = plain(words(app))
    assert "338 of 508 shared source-turns reuse the same number of tokens." in said
    assert "Less reuse in the measured run: the first missing block was evicted before in 93 (36,224 tokens)." in said
    first = table(app, "why")[0]
    assert (first["turn"], first["less"], first["change_tokens"]) == ("s0031/2", "measured", 1376)
    assert first["why"] == "block 0: evicted before, 0.22 s earlier, by s0018/7 (only allocation)"
    states = {(row["metric"], row["statistic"]): row["state"] for row in table(app, "statistic")}
    # 63.0 % against 61.8 %: the only repeat differs by 0.4 points, lanes drawn again by more
    assert states["Token hit ratio", "tokens"] == "beyond one repeat, inside redrawing"
    uses = {row["use"]: row["of"] for row in table(app, "use")}
    assert uses["computed for the first time"] == "all blocks computed"
    assert uses["reused, computed once"] == "all blocks reused"
    assert said.count("n 508") >= 4  # both sides under the chart of changes, and under the table of reasons
    assert states["TTFT", "p90"].startswith("~")
    stored = [row["blocks"] for row in table(app, "joined_by") if row["kind"] == "store" and row["side"] == "measured"]
    assert stored == [8703]
    assert app.selectbox(key="conv").options[0] == "s0084"  # seven of its eight turns differ
    app.selectbox(key="conv").set_value("s0045").run()
    assert not app.exception
    assert "Blocks of the prompts of s0045" in plain(words(app))


def test_the_rows_of_a_chart_hold_all_of_its_panels(opened: Open) -> None:
    pair = {"m": run_id(SAMPLES, "tight8"), "r": run_id(SAMPLES, "tight8-predicted")}
    drawn = opened(SAMPLES, "cache_events", **pair).session_state["_shown"].drawn

    def total(key: str, panel: str, column: str, **where: str) -> float:
        rows = [row for row in drawn[key].answer.rows.to_pylist() if row["panel"] == panel]
        return sum(row[column] or 0 for row in rows if all(row[name] == value for name, value in where.items()))

    for side in ("measured", "replay"):
        for kind in ("hit", "store", "evict", "preempt"):
            own = {"side": side, "kind": kind}
            assert total("events", "over time", "blocks", **own) == total("events", "whole capture", "blocks", **own)
            assert total("events", "over time", "events", **own) == total("events", "whole capture", "events", **own)
        # what was dispatched before the profile is over time, and not in the population of the turns
        assert total("hit-ratio", "over time", "requests", side=side) > total(
            "hit-ratio", "by turn", "requests", side=side
        )
        assert total("recompute", "preemptions over time", "events", side=side) == total(
            "events", "whole capture", "events", side=side, kind="preempt"
        )
    assert total("recompute", "over time", "computed_blocks", side="measured") == 8703


def test_equal_reuse_is_said(opened: Open) -> None:
    pair = {"m": run_id(SAMPLES, "ample8"), "r": run_id(SAMPLES, "ample8-predicted")}
    said = plain(words(opened(SAMPLES, "cache_events", **pair)))
    assert "635 of 635 shared source-turns reuse the same number of tokens." in said
    assert "Every shared source-turn reuses the same number of tokens on both sides." in said


def test_a_side_without_cache_events(opened: Open, tmp_path: Path) -> None:
    synthetic.write(tmp_path, "measured", "ample8")
    synthetic.write(tmp_path, "replay", "silent", speed=1.1, tables=REQUESTS)
    for measured, replay in (("ample8", "silent"), ("silent", "ample8")):
        app = opened(tmp_path, "cache_events", m=run_id(tmp_path, measured), r=run_id(tmp_path, replay))
        assert not app.exception
        assert not app.error
        assert charts(app)
        assert "n not recorded" in words(app)
        side = "measured" if measured == "ample8" else "compared with it"
        assert {row["side"] for row in table(app, "joined_by")} == {side}


def test_no_side_with_cache_events(opened: Open, tmp_path: Path) -> None:
    synthetic.write(tmp_path, "measured", "ample8", tables=REQUESTS)
    synthetic.write(tmp_path, "replay", "silent", speed=1.1, tables=REQUESTS)
    app = opened(tmp_path, "cache_events")
    assert not app.exception
    assert "has no table kv_events" in plain(words(app).replace("\\", "")).replace("\\_", "_")


def test_prompts_without_block_hashes_are_said(opened: Open, paired: Path) -> None:
    app = opened(paired, "cache_events")
    assert "the runs do not say which blocks the prompts have" in words(app)


def test_a_measured_run_alone_still_has_its_blocks(opened: Open) -> None:
    app = opened(SAMPLES, "cache_events", m=run_id(SAMPLES, "tight8"), r="")
    assert not app.exception
    assert {row["side"] for row in table(app, "copy")} == {"measured"}


def test_a_sweep_has_no_requests_to_reuse_anything(opened: Open) -> None:
    app = opened(SAMPLES, "cache_events", m=run_id(SAMPLES, "fpm_sweep"))
    assert not app.exception
    assert app.error or "ot recorded" in words(app)
