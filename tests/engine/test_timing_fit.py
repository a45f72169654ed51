"""Fits on made-up passes whose formula is known, and what a fit refuses."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from timing_fakes import FakeBundle, bundle, geometries, pass_table, truth_ns

from engine import knobs
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.timing import FitSource, build_timing, domain, fit
from engine.timing.contract import PassQueries
from engine.timing.fitting import FOLDS, _Fitter, folds
from engine.timing.rows import read_rows
from engine.timing.variant import Choices, fit_variant


def price(model, query, **changes):
    return build_timing(knobs.resolve(changes), model).pass_ns(*query)


@pytest.fixture(scope="module")
def model():
    return fit([FitSource(bundle("sweep"))])


def test_recovers_the_formula(model):
    base = model["variants"]["sum"]["base_ns"]
    expected = {
        "prefill_token": 150e3,
        "prefill_pair": 200.0,
        "prefill_request": 1e6,
        "decode_request": 800e3,
        "decode_kv_token": 500.0,
        "prefill_fixed": 4e6,
        "decode_fixed": 9e6,
    }
    assert base == pytest.approx(expected, rel=1e-4)
    unseen = [(1, 300, 1000, 0, 0), (0, 0, 0, 4, 8000), (2, 200, 4000, 4, 8000)]
    for query in unseen:
        assert price(model, query) == pytest.approx(truth_ns(*query), rel=1e-4)


def test_names_the_composition_that_fits(model):
    scores = model["choices"]["composition"]["scores"]
    assert model["composition"] == "sum"
    assert scores["sum"] < 0.5 * scores["marginal"]
    # held-out rows at the edge lie outside the domain of their fold and are clamped: the median leaves them out
    assert model["holdout"]["sum"]["by_class"]["mixed"]["median_ape"] < 1e-4
    assert model["holdout"]["marginal"]["by_class"]["mixed"]["median_ape"] > 1e-2


def test_the_composition_can_be_forced(model):
    forced = fit([FitSource(bundle("sweep"))], composition="marginal")
    assert forced["composition"] == "marginal"
    assert forced["choices"]["composition"]["forced"]
    query = (2, 200, 4000, 4, 8000)
    assert price(forced, query) == price(model, query, mixed_composition="marginal")
    assert price(forced, query, mixed_composition="sum") == price(model, query)


def test_recovers_a_marginal_composition():
    floor = 200
    rows = geometries(5, 300)

    def cost(prompts, tokens, kv, decodes, decode_kv):
        if prompts and decodes:
            return truth_ns(prompts, tokens, kv, 0, 0) + 500.0 * max(0, decode_kv - floor * decodes)
        return truth_ns(prompts, tokens, kv, decodes, decode_kv)

    # a decode-only pass at the floor, so that the domain begins there
    rows.append((0, 0, 0, 4, 4 * floor))
    fitted = fit([FitSource(FakeBundle("m", "sweep", {"passes": pass_table(rows, [cost(*r) for r in rows])}))])
    assert fitted["composition"] == "marginal"
    query = (1, 100, 500, 4, 8000)
    assert price(fitted, query) == pytest.approx(cost(*query), rel=2e-3)


def test_the_level_of_a_run_is_its_own():
    """Shape from the sweep, level from the run: 30 % slower than the sweep."""
    run = bundle("run", "measured", seed=2, n=120, scale=1.3, phase=["warmup"] * 60 + ["profile"] * 60)
    fitted = fit([FitSource(bundle("sweep")), FitSource(run, ("warmup",))])
    levels = fitted["variants"]["sum"]["levels"]
    assert levels["decode_only"]["factor"] == pytest.approx(1.3, rel=1e-4)
    assert levels["mixed"]["factor"] == pytest.approx(1.3, rel=1e-4)
    query = (2, 200, 4000, 4, 8000)
    assert price(fitted, query) == pytest.approx(1.3 * truth_ns(*query), rel=1e-3)
    assert fitted["lineage"]["sources"][1]["passes"] == 60
    assert fitted["lineage"]["sources"][1]["phases"] == ["warmup"]


def test_a_level_is_bounded_and_says_so():
    run = bundle("run", "measured", seed=2, n=120, scale=5.0)
    level = fit([FitSource(bundle("sweep")), FitSource(run)])["variants"]["sum"]["levels"]["decode_only"]
    assert level["factor"] == 2.0
    assert level["raw"] == pytest.approx(5.0, rel=1e-3)


def test_one_burst_does_not_set_the_level():
    rows = geometries(3, 200)
    durations = [truth_ns(*r) * (2.0 if i >= 160 else 1.0) for i, r in enumerate(rows)]
    run = FakeBundle("run", "measured", {"passes": pass_table(rows, durations)})
    fitted = fit([FitSource(bundle("sweep")), FitSource(run)])
    assert fitted["choices"]["level"]["chosen"] == "block_median"
    assert fitted["variants"]["sum"]["levels"]["mixed"]["factor"] == pytest.approx(1.0, abs=1e-2)


def test_the_unselected_phases_change_nothing():
    """A fit on the warm-up is the same whatever the profile holds."""
    rows = geometries(2, 120)
    phases = ["warmup"] * 60 + ["profile"] * 60

    def run(profile_scale):
        durations = [
            truth_ns(*r) * (1.0 if p == "warmup" else profile_scale) for r, p in zip(rows, phases, strict=True)
        ]
        return FakeBundle("run", "measured", {"passes": pass_table(rows, durations, phases)})

    models = [fit([FitSource(bundle("sweep")), FitSource(run(s), ("warmup",))]) for s in (1.0, 7.0)]
    assert models[0] == models[1]


def test_a_measured_geometry_is_exact():
    rows = [*geometries(1, 200), *[(1, 77, 640, 0, 0)] * 3, *[(0, 0, 0, 3, 3333)] * 3]
    durations = [truth_ns(*r) for r in rows[:200]] + [50e6, 51e6, 90e6] + [20e6, 21e6, 21.5e6]
    fitted = fit([FitSource(FakeBundle("sweep", "sweep", {"passes": pass_table(rows, durations)}))])
    assert price(fitted, (1, 77, 640, 0, 0)) == 51_000_000
    assert price(fitted, (0, 0, 0, 3, 3333)) == 21_000_000


def test_held_out_rows_are_not_fitted(monkeypatch):
    rows, _ = read_rows([FitSource(bundle("sweep", n=90)), FitSource(bundle("run", "measured", seed=2, n=90))])
    marked = rows.take(np.arange(len(rows)))
    marked.duration_ns[:] += np.arange(len(rows)) / 1000  # every row can be told from every other
    seen: list[set[float]] = []

    def spy(kept, *args):
        seen.append(set(kept.duration_ns.tolist()))
        return fit_variant(kept, *args)

    monkeypatch.setattr("engine.timing.fitting.fit_variant", spy)
    fitter = _Fitter(marked, {1}, 0)
    predicted = fitter.out_of_fold(Choices())
    assert np.isfinite(predicted).all()
    assert len(seen) == FOLDS
    for k, kept in enumerate(seen):
        held_out = set(marked.duration_ns[fitter.fold == k].tolist())
        assert held_out
        assert not kept & held_out
        assert kept | held_out == set(marked.duration_ns.tolist())


def test_runs_are_held_out_in_stretches_and_sweeps_are_dealt_out():
    rows, _ = read_rows([FitSource(bundle("sweep", n=100)), FitSource(bundle("run", "measured", seed=2, n=100))])
    fold = folds(rows, {1})
    assert fold[100:].tolist() == sorted(fold[100:].tolist())
    assert np.bincount(fold[:100]).tolist() == [20] * 5
    assert fold[:100].tolist() != sorted(fold[:100].tolist())


def test_the_same_input_gives_the_same_model():
    sources = [FitSource(bundle("sweep")), FitSource(bundle("run", "measured", seed=2, n=120, scale=1.1))]
    first, again = fit(sources), fit(sources)
    assert first == again
    assert first["digest"] == again["digest"]
    assert len(json.dumps(first)) < 200_000


def test_idle_and_unknown_passes_are_counted_not_fitted():
    rows = [*geometries(1, 200), (0, 0, 0, 0, 0), (0, 0, 0, 2, 900), (0, 0, 0, 2, 800)]
    durations = [truth_ns(*r) for r in rows[:200]] + [5e6, None, 0.0]
    model = fit([FitSource(FakeBundle("sweep", "sweep", {"passes": pass_table(rows, durations)}))])
    told = model["lineage"]["sources"][0]
    assert told["passes"] == 200
    assert told["left_out"] == {"idle": 1, "duration_unknown": 2, "geometry_unknown": 0}


def test_time_between_passes_is_fitted():
    run = bundle("run", "measured", seed=2, n=120, between_ns=400_000)
    model = fit([FitSource(bundle("sweep", between_ns=100_000)), FitSource(run)])
    assert model["between"] == {"value_ns": 400_000, "median_ns": 400_000, "n": 120}
    assert build_timing(knobs.resolve({}), model).between_ns == 400_000
    assert build_timing(knobs.resolve({"between_passes_ms": 2}), model).between_ns == 2_000_000


def test_contention_is_scored_where_it_is_recorded():
    rows = geometries(1, 240)
    waited = [30_000_000 if i % 7 == 0 else 0 for i in range(240)]
    durations = [truth_ns(*r) + w for r, w in zip(rows, waited, strict=True)]
    model = fit([FitSource(FakeBundle("s", "sweep", {"passes": pass_table(rows, durations, contention_ns=waited)}))])
    assert set(model["choices"]["contention"]["scores"]) == {"as_measured", "subtracted", "dropped"}
    assert model["variants"]["sum"]["base_ns"]["decode_kv_token"] == pytest.approx(500.0, rel=1e-3)
    assert set(fit([FitSource(bundle("sweep"))])["choices"]["contention"]["scores"]) == {"as_measured"}


def refuses(match, *sources, **options):
    with pytest.raises(GapscopeError, match=match) as caught:
        fit(list(sources), **options)
    assert "\n" not in str(caught.value)


def test_refuses_what_cannot_be_fitted():
    run = bundle("run", "measured")
    refuses("Nothing to fit")
    refuses("no pass in phase 'warmup': its passes are in profile", FitSource(run, ("warmup",)))
    refuses("has no passes", FitSource(FakeBundle("empty", "measured", {})))
    refuses("is a replay", FitSource(bundle("modelled", kind="replay")))
    refuses("named twice", FitSource(run), FitSource(run, ("profile",)))
    refuses("expected auto, sum or marginal", FitSource(run), composition="max")
    unknown = FakeBundle("none", "measured", {"passes": pass_table(geometries(1, 5), [None] * 5)})
    refuses("none of its 5 passes has a batch and a positive duration", FitSource(unknown))


@pytest.mark.parametrize(("part", "column"), [("prefill", 0), ("decode-only", 3)])
def test_refuses_data_without_a_part(part, column):
    rows = [r for r in geometries(1, 200) if (r[0] == 0 if column == 0 else r[0] > 0)]
    table = pass_table(rows, [truth_ns(*r) for r in rows])
    refuses(f"hold no {part} pass", FitSource(FakeBundle("half", "sweep", {"passes": table})))


def test_refuses_another_deployment_unless_forced():
    left, right = bundle("left"), bundle("right", "measured", seed=2)
    left.identity, right.identity = Identity(), Identity()
    left.identity.set("hardware", "part", "H200", "test")
    right.identity.set("hardware", "part", "MI355X", "test")
    right.identity.set("source", "version", "1.2", "test")  # unknown on the left: no difference
    sources = [FitSource(left), FitSource(right)]
    refuses("hardware.part is 'H200' in left and 'MI355X' in right", *sources)
    forced = fit(sources, force=True)
    assert forced["lineage"]["forced_differences"] == ["hardware.part is 'H200' in left and 'MI355X' in right"]


def test_capacity_may_differ():
    left, right = bundle("left"), bundle("right", "measured", seed=2)
    left.identity.set("capacity", "usable_kv_blocks", 4095, "test")
    right.identity.set("capacity", "usable_kv_blocks", 223, "test")
    assert fit([FitSource(left), FitSource(right)])["lineage"]["forced_differences"] == []


def test_a_source_is_built_from_knobs(model):
    with pytest.raises(GapscopeError, match="needs a timing model"):
        build_timing(knobs.resolve({}))
    timing = build_timing(knobs.resolve({"on_refused": "abort"}), model)
    with pytest.raises(GapscopeError, match="outside the measured domain"):
        timing.pass_ns(0, 0, 0, 100, 10_000)
    told = timing.describe()
    assert told["kind"] == "fpm"
    assert told["model_digest"] == model["digest"]
    assert told["composition"] == "sum"
    assert told["model"] == model
    json.dumps(told)
    half = build_timing(knobs.resolve({"pass_scale": 0.5}), model).pass_ns(0, 0, 0, 4, 8000)
    assert half == pytest.approx(price(model, (0, 0, 0, 4, 8000)) / 2, abs=1)


def test_fixed_is_a_sum_of_constants():
    values = knobs.resolve(
        {
            "timing": "fixed",
            "fixed_pass_us": 1000,
            "fixed_prefill_token_us": 10,
            "fixed_decode_request_us": 5,
            "fixed_kv_token_ns": 3,
            "pass_scale": 2,
        }
    )
    timing = build_timing(values)
    # 2 * (1 ms + 100 * 10 us + 4 * 5 us + 3 ns * (200 + 1000))
    assert timing.pass_ns(1, 100, 200, 4, 1000) == 2 * (1_000_000 + 1_000_000 + 20_000 + 3_600)
    told = timing.explain(PassQueries(*(np.array([v, 0]) for v in (1, 100, 200, 4, 1000))))
    assert told.total_ns.tolist() == [4_047_200, 2_000_000]
    assert [told.prefill_ns[0], told.decode_ns[0], told.overhead_ns[0]] == [2_001_200, 46_000, 2_000_000]
    assert timing.between_ns == 0
    assert timing.describe()["kind"] == "fixed"


def test_domain_is_every_knot(model):
    arrays = domain(model)
    assert {len(v) for v in arrays["decode"].values()} == {len(arrays["decode"]["batch"])}
    assert sum(arrays["decode"]["passes"]) == 80
    assert sum(arrays["prefill"]["passes"]) == 160


def test_many_passes_are_thinned_for_judging_only(monkeypatch):
    monkeypatch.setattr(sys.modules["engine.timing.fitting"], "JUDGED", 100)
    model = fit([FitSource(bundle("sweep", n=250))])
    assert model["holdout"]["passes"] == 84  # every third
    assert sum(domain(model)["decode"]["passes"]) + sum(domain(model)["prefill"]["passes"]) == 250
