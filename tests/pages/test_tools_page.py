"""The Cross-tool page in the states that its runs can be in."""

from __future__ import annotations

import json
from pathlib import Path

import synthetic
from conftest import Open, run_id
from streamlit.testing.v1 import AppTest
from tool_runs import all_failed, durations, none_in_profile, summary


def words(app: AppTest) -> str:
    kinds = ("markdown", "caption", "info", "warning", "error")
    return "\n".join(element.value for kind in kinds for element in app.get(kind)).replace("\\", "")


def charts(app: AppTest) -> list[dict]:
    return [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]


def tables(app: AppTest) -> list:
    return [table.value for table in app.dataframe]


def test_the_pair_bar_is_what_stands_here_first(opened: Open, paired: Path) -> None:
    app = opened(paired, "tools")
    assert not app.exception
    assert not app.error
    chosen = app.session_state["tools"]
    assert chosen == [run_id(paired, "ample8"), run_id(paired, "ample8-replay")]
    said = words(app)
    assert "**blind prediction**" in said
    assert "B: gapscope replay" in said
    assert "n 31" not in said or charts(app)


def test_an_absent_run_is_named_and_the_others_go_on(opened: Open, paired: Path) -> None:
    runs = [run_id(paired, "ample8"), "ample8-0123456789ab"]
    app = opened(paired, "tools", tools=runs)
    assert not app.exception
    (error,) = app.error
    assert "run ample8 with content digest 0123456789ab" in error.value.replace("\\", "")
    assert charts(app)


def test_nothing_chosen_asks_for_runs(opened: Open, paired: Path) -> None:
    app = opened(paired, "tools", tools=[""])
    assert not app.exception
    assert "Choose runs above" in words(app)


def test_a_role_chunk_rule_is_refused_with_its_remedy(opened: Open, tmp_path: Path) -> None:
    synthetic.write(tmp_path, "measured", "ample8")
    bench = durations(tmp_path)
    app = opened(tmp_path, "tools", tools=[run_id(tmp_path, "ample8"), bench])
    assert not app.exception
    said = words(app)
    assert "B takes the first chunk of any kind for the first token" in said
    numbers = next(table for table in tables(app) if "beside" in table and "metric" in table)
    (ttft,) = numbers[(numbers["metric"] == "TTFT") & (numbers["run"] == "B")]["beside"]
    assert ttft.startswith("not comparable: The first token is ")
    for table in tables(app):
        if "beside" in table:
            assert table["beside"].str.len().min() > 0
            assert set(table[table["run"] == "A"]["beside"].str.split(";").str[0]) >= {
                "the others stand beside this one"
            }
    (rate,) = rates_of(app, "B")
    assert rate.startswith("can stand beside A")
    assert "--save-detailed" in ttft
    assert "B is not drawn: The first token is " in said


def rates_of(app: AppTest, run: str) -> list[str]:
    rates = next(table for table in tables(app) if "beside" in table and "rate" in table)
    return list(rates[(rates["rate"] == "Requests") & (rates["run"] == run)]["beside"])


def test_a_summary_stands_alone(opened: Open, tmp_path: Path) -> None:
    runs = [durations(tmp_path), summary(tmp_path)]
    app = opened(tmp_path, "tools", tools=runs)
    assert not app.exception
    assert not app.error
    assert "B has no rows" in words(app)
    own = next(table for table in tables(app) if "told" in table)
    assert list(own[own["run"] == "B"]["told"]) == [61.0, 1.25]
    assert own[own["run"] == "B"]["ours"].isna().all()
    assert own[own["run"] == "B"]["difference"].isna().all()
    (ours,) = own[(own["run"] == "A") & (own["metric"] == "TTFT")]["ours"]
    assert ours == 62.5  # 50, 55, 60, 65, 70 and 75 ms


def test_only_summaries(opened: Open, tmp_path: Path) -> None:
    only = summary(tmp_path)
    app = opened(tmp_path, "tools")
    assert not app.exception
    assert not app.error
    assert app.session_state["tools"] == [only]
    assert "None of these runs has rows of requests in this phase" in words(app)


def test_runs_without_a_success_in_the_phase(opened: Open, tmp_path: Path) -> None:
    app = opened(tmp_path, "tools", tools=[all_failed(tmp_path), none_in_profile(tmp_path)])
    assert not app.exception
    assert not app.error
    said = words(app)
    assert "requests sent are A 4, B 1" in said
    assert "None of these runs has a value of any of these metrics" in said


def test_matched_populations_are_taken_whole(opened: Open, paired: Path) -> None:
    app = opened(paired, "tools", pop="matched source-turns")
    assert not app.exception
    said = words(app)
    assert "No request is joined across tools: matched populations are taken whole here." in said
    assert "population: every request, dispatched in profile" in said


def test_eight_runs_have_eight_letters(opened: Open, tmp_path: Path) -> None:
    runs = [synthetic.write(tmp_path, "measured", f"run{k}", speed=1 + k / 10) for k in range(8)]
    app = opened(tmp_path, "tools", tools=[run_id(tmp_path, f"run{k}") for k in range(8)])
    assert not app.exception
    assert len(runs) == 8
    bars, curves = charts(app)
    assert len(bars["data"]) == 8
    assert [trace["name"][:2] for trace in curves["data"]] == [f"{letter}:" for letter in "ABCDEFGH"]
