"""A run beside its repeats: differences by hand, what holds them, and what keeps a near-repeat from being one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import MS, S, identity, request, write

from dashboard.charts.comparison.repeats import near_table
from dashboard.compare.comparison import pair_label
from dashboard.compare.noise import Noise
from dashboard.compare.numbers import Key, Number
from dashboard.compare.repeats import Standing, headline_keys, repeat_rows, standings
from dashboard.metrics import Estimator, Population, Window
from dashboard.queries.identity import near_repeats, repeats, same_recording
from dashboard.store import Store
from engine.bundle import Check

CHOICE = (Population(), Estimator.LINEAR, Window.FIXED)


def rows(ttft_ms: list[float], count: int = 0) -> list[dict[str, Any]]:
    """Requests on two lanes by turns, half a second apart, with these TTFTs."""
    found = []
    for k, value in enumerate(ttft_ms * max(count, 1)):
        at = k * S // 8
        first = at + round(value * MS)
        found.append(request(f"r{k}", at=at, lane=k % 2, first_visible_ns=first, last_visible_ns=first + 80 * MS))
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, two repeats of it (one near, one far), two runs that are none, and a replay."""
    folder = tmp_path_factory.mktemp("runs")
    write(folder, "run", rows([90, 110], 10))
    write(folder, "near", rows([92, 110], 10), record=identity(hardware__load=[7]))
    write(folder, "far", rows([130, 150], 10))
    write(folder, "seats", rows([90, 110], 10), record=identity(scheduler__max_num_seqs=8, client__lanes=3))
    write(folder, "part", rows([90, 110], 10), record=identity(hardware__part="H200"))
    write(folder, "replay", rows([100, 140], 10), kind="replay")
    return folder


def ids(root: Path) -> dict[str, str]:
    return {path.name.rpartition("-")[0]: path.name for path in root.iterdir()}


def test_differences_are_signed_and_of_unrounded_values(root: Path) -> None:
    run = ids(root)
    store = Store([root])
    found = {str(row.key): row for row in repeat_rows(store, run["run"], run["near"], *CHOICE)}
    mean = found["ttft.mean"]
    assert (mean.measured.value, mean.replay.value) == (100.0, 101.0)
    assert mean.gap == pytest.approx(0.01)
    assert found["ttft.p50"].gap == pytest.approx(0.01)  # between 90 and 110, between 92 and 110
    assert found["tpot.mean"].state == "same"
    assert list(found) == [str(key) for key in headline_keys(Window.FIXED)]


def test_the_noise_of_a_repeat_is_the_bootstrap_and_never_the_repeat_itself(root: Path) -> None:
    run = ids(root)
    for name in ("near", "far"):
        row = repeat_rows(Store([root]), run["run"], run[name], *CHOICE)[0]
        assert row.noise is not None
        assert row.noise.kind == "lanes"
        # one lane has TTFT 90 throughout, the other 110: drawn again, the mean is 90, 100 or 110
        assert (row.noise.low, row.noise.high) == (90.0, 110.0)
        assert row.state == ("~" if name == "near" else "worse")


def test_a_replay_stands_against_the_farthest_repeat_and_the_bootstrap(root: Path) -> None:
    run = ids(root)
    store = Store([root])
    same = tuple(repeats(store, run["run"]))
    assert same == (run["far"], run["near"])
    both = standings(store, run["run"], run["replay"], same, *CHOICE)[0]
    assert both.repeats is not None
    assert (both.repeats.low, both.repeats.high, both.repeats.n) == (60.0, 140.0, 2)  # far is 40 ms away
    assert both.gap == pytest.approx(0.2)
    assert both.place == "inside the repeats"  # 120 is in 60..140 and not in 90..110
    alone = standings(store, run["run"], run["replay"], (run["near"],), *CHOICE)[0]
    assert alone.place == "outside both"
    none = standings(store, run["run"], run["replay"], (), *CHOICE)[0]
    assert (none.repeats, none.place) == (None, "outside both")


@pytest.mark.parametrize(
    ("repeat", "bootstrap", "place"),
    [
        ((90, 110), (95, 105), "inside both"),
        ((90, 110), (95, 99), "inside the repeats"),
        ((99.5, 100.5), (95, 105), "inside the bootstrap"),
        ((99.5, 100.5), (95, 99), "outside both"),
        (None, (95, 105), "inside the bootstrap"),
        (None, None, "unknown"),
    ],
)
def test_places(repeat: tuple[float, float] | None, bootstrap: tuple[float, float] | None, place: str) -> None:
    def noise(kind: Any, ends: tuple[float, float] | None) -> Noise | None:
        return Noise(kind, *ends, 1) if ends else None

    key = Key("ttft", "mean")
    found = Standing(key, Number(100, 9), Number(102, 9), noise("repeats", repeat), noise("lanes", bootstrap))
    assert found.place == place
    assert Standing(key, Number(100, 9), Number(None, 0), found.repeats, found.bootstrap).place == "unknown"


def test_what_keeps_a_run_from_being_a_repeat_is_named(root: Path) -> None:
    run = ids(root)
    found = near_repeats(Store([root]), run["run"])
    assert [one.run_id for one in found] == [run["part"], run["seats"]]  # one field in the way, then two
    assert [[field.field for field in one.fields] for one in found] == [["part"], ["max_num_seqs", "lanes"]]
    told = near_table(found).rows.to_pylist()
    assert told[0]["fields"].endswith(": CPU → H200")
    assert "unknown → 8" in told[1]["fields"]  # known on one side only is in the way as well
    assert "2 → 3" in told[1]["fields"]


def test_a_mapping_says_only_what_differs(tmp_path: Path) -> None:
    left = write(tmp_path, "left", rows([1]), record=identity(source__launch={"a": 1, "b": 2}))
    write(tmp_path, "right", rows([1]), record=identity(source__launch={"a": 1, "b": 3}))
    (told,) = near_table(near_repeats(Store([tmp_path]), left)).rows.to_pylist()
    assert told["fields"].endswith("b: 2 → 3")
    assert "a:" not in told["fields"]


def test_a_replay_has_neither_repeats_nor_near_ones(root: Path) -> None:
    store = Store([root])
    assert repeats(store, ids(root)["replay"]) == []
    assert near_repeats(store, ids(root)["replay"]) == []


def test_a_copy_is_no_repeat_and_neither_is_what_nobody_knows(tmp_path: Path) -> None:
    taken = rows([90, 110], 10)
    first = write(tmp_path, "first", taken)
    # The same rows under another name: another id, as the identity of the file differs, but the same recording.
    copy = write(tmp_path, "copy", taken, record=identity(hardware__load=[3]))
    true = write(tmp_path, "true", rows([92, 110], 10))
    nameless = [
        write(tmp_path, name, rows([value, 110], 10), record=identity(model__name=None))
        for name, value in (("nameless", 93), ("other", 94))
    ]
    failed = write(
        tmp_path, "failed", rows([95, 110], 10), qualification=[Check("rows_counted", "fail", "one is short")]
    )
    store = Store([tmp_path])
    assert repeats(store, first) == [true]
    assert same_recording(store, first, copy)
    assert repeats(store, copy) == [true]
    assert repeats(store, nameless[0]) == []
    (near,) = (one for one in near_repeats(store, nameless[0]) if one.run_id == nameless[1])
    assert [(field.group, field.field) for field in near.fields] == [("model", "name")]
    assert repeats(store, failed) == []  # what went wrong in it is no noise of it
    assert pair_label(store, first, copy) == "same_run"
    assert pair_label(store, *nameless) == "measured_pair"
