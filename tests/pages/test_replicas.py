"""Pages on a replay of two replicas, and of two pools with ranks: workers are told apart where passes are charted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import synthetic
from conftest import Open, run_id
from test_pages import plain, words

from dashboard.view import PAGES
from engine.bundle import open_bundle
from engine.replay import replay
from tests.engine.test_client_properties import random_trace
from tests.engine.test_replay import TEN_MS


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A measured run, a replay of two replicas, and one of a prefill and a decode pool whose workers have ranks."""
    root = tmp_path_factory.mktemp("replicas")
    synthetic.write(root, "measured", "ample8")
    changes = {"replicas": 2, "lanes": 6, "duration_s": 3.0, "wrap": True}
    replay(random_trace(9, 6), TEN_MS | changes, store=root, slug="two")
    ranks = {"prefill_replicas": 1, "attention_dp": 2, "prefill_attention_dp": 3, "transfer_latency_us": 4000}
    replay(random_trace(9, 6), TEN_MS | changes | ranks, store=root, slug="pools")
    return root


def pair(store: Path, replayed: str = "two") -> dict[str, str | list[str]]:
    """The view parameters that choose a replay beside the measured run."""
    return {"m": run_id(store, "ample8"), "r": [run_id(store, replayed)], "ack": "true"}


@pytest.mark.parametrize("page", PAGES)
def test_every_page_opens(opened: Open, store: Path, page: str) -> None:
    assert not opened(store, page, **pair(store)).exception


def test_the_passes_of_one_worker_can_be_chosen(opened: Open, store: Path) -> None:
    path = store / run_id(store, "two")
    passes = open_bundle(path).table("passes").to_pylist()
    app = opened(store, "passes", **pair(store), pass_span="2")
    assert "Means over the passes of all ranks" in plain(words(app))
    (table,) = [one.value for one in app.dataframe if "slowest_share" in one.value.columns]
    ours = table[table["run"] == path.name].set_index("worker_id")["passes"].to_dict()
    assert ours == {
        name: sum(row["worker_id"] == name and row["phase"] == "profile" for row in passes)
        for name in ("vllm-0", "vllm-1")
    }
    app = opened(store, "passes", **pair(store), pass_span="2", pass_rank="vllm-1/0")
    assert "Each pass is a bar as wide as it lasts" in plain(words(app))


@pytest.mark.parametrize("page", ["passes", "coverage", "request", "boundaries"])
def test_pages_open_on_pools_with_ranks(opened: Open, store: Path, page: str) -> None:
    assert not opened(store, page, **pair(store, "pools")).exception


def test_ranks_of_both_pools_are_told_apart(opened: Open, store: Path) -> None:
    path = store / run_id(store, "pools")
    passes = open_bundle(path).table("passes").to_pylist()
    app = opened(store, "passes", **pair(store, "pools"), pass_span="2")
    (table,) = [one.value for one in app.dataframe if "slowest_share" in one.value.columns]
    rows = table[table["run"] == path.name]
    ours = {(row.worker_id, row.dp_rank): row.passes for row in rows.itertuples()}
    counted = Counter((row["worker_id"], row["dp_rank"]) for row in passes if row["phase"] == "profile")
    assert ours == dict(counted)
    assert {worker for worker, _ in ours} == {"vllm-prefill-0", "vllm-decode-0", "vllm-decode-1"}
    assert {worker for worker, rank in ours if rank} >= {"vllm-prefill-0"}
