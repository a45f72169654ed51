"""Bounded corrections of a source: factors by hand, what is left alone, what is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from engine import knobs
from engine.bundle import find_bundle
from engine.cli.main import main
from engine.errors import GapscopeError
from engine.timing import FitSource, PassQueries, build_timing
from engine.timing.correction import buckets, corrected, learn, save_correction
from tests.engine.timing_fakes import PASS_COLUMNS, FakeBundle

SAMPLES = Path(__file__).resolve().parents[2] / "sample_runs"
FIXED = {"timing": "fixed", "fixed_pass_us": 1000.0, "fixed_prefill_token_us": 0.0, "fixed_kv_token_ns": 0.0}
FIXED |= {"fixed_decode_request_us": 0.0}  # a millisecond, whatever is in the pass


def measured(passes: list[tuple[tuple[int, int, int, int, int], float]]) -> FitSource:
    columns: dict[str, Any] = dict(zip(PASS_COLUMNS, map(list, zip(*(p for p, _ in passes), strict=True)), strict=True))
    n = len(passes)
    columns |= {"duration_ns": [int(ms * 1e6) for _, ms in passes], "phase": ["warmup"] * n}
    columns |= {"start_ns": list(range(n)), "end_ns": list(range(1, n + 1))}
    return FitSource(FakeBundle("run", "measured", {"passes": pa.table(columns)}))  # type: ignore[arg-type]


def fixed(**changes: Any) -> Any:
    return build_timing(knobs.resolve(FIXED | changes))


def test_a_bucket_is_multiplied_with_the_median_of_its_samples(tmp_path: Path) -> None:
    # Decodes of up to 127 requests and 499,999 KV share a bucket, those of 128 to 255 another.
    low = [((0, 0, 0, 8, 100), ms) for ms in (1.1, 1.2, 1.3, 9.0)]  # 9 counts as 2
    high = [((0, 0, 0, 128, 200), 0.1)]  # counts as 0.5
    learned = learn(fixed(), [measured(low + high)])
    assert learned["factors"]["decode_only"][0] == pytest.approx(1.25)
    assert learned["factors"]["decode_only"][4] == 0.5
    assert sum(f is not None for f in learned["factors"]["decode_only"]) == 2
    save_correction(learned, "mine", tmp_path)
    source = corrected(fixed(), "mine", [tmp_path])
    asked = [(0, 0, 0, 127, 400_000), (0, 0, 0, 128, 0), (0, 0, 0, 300, 0), (0, 0, 0, 513, 0), (0, 0, 0, 8, 2_000_001)]
    assert [source.pass_ns(*query) for query in asked] == [1_250_000, 500_000, 1_000_000, 1_000_000, 1_000_000]


def test_a_kind_with_few_samples_is_left_as_it_is(tmp_path: Path) -> None:
    passes = [((0, 0, 0, 8, 100), 1.5)] * 4 + [((1, 100, 0, 0, 0), 1.5)] * 5
    save_correction(learn(fixed(), [measured(passes)]), "mine", tmp_path)
    source = corrected(fixed(), "mine", [tmp_path])
    assert source.pass_ns(0, 0, 0, 8, 100) == 1_000_000
    assert source.pass_ns(1, 100, 0, 0, 0) == 1_500_000
    assert source.pass_ns(1, 100, 0, 8, 100) == 1_000_000


def test_the_newest_samples_count() -> None:
    passes = [((0, 0, 0, 8, 100), 1.9)] * 100 + [((0, 0, 0, 8, 100), 1.1)] * 64
    learned = learn(fixed(), [measured(passes)])
    assert (learned["factors"]["decode_only"][0], learned["samples"]["decode_only"][0]) == (1.1, 64)


def test_buckets_are_of_equal_width() -> None:
    queries = np.array(
        [
            (0, 0, 0, 512, 2_000_000),
            (0, 0, 0, 127, 499_999),
            (1, 8192, 0, 0, 0),
            (1, 2047, 0, 9, 500_000),
            (1, 8193, 0, 0, 0),
        ]
    )
    assert buckets(PassQueries(*queries.T)).tolist() == [15, 0, 12, 1, -1]


@pytest.fixture(scope="module")
def sample() -> tuple[dict[str, Any], Any]:
    values = knobs.resolve({"timing": "fixed", "fixed_kv_token_ns": 31.7})
    return values, learn(build_timing(values), [FitSource(find_bundle([SAMPLES], "ample8"), ("warmup",))])


def test_scalar_and_array_answers_agree(sample: tuple[dict[str, Any], Any], tmp_path: Path) -> None:
    values, learned = sample
    save_correction(learned, "mine", tmp_path)
    source = build_timing(values | {"correction": "mine"}, None, [tmp_path])
    rng = np.random.default_rng(3)
    prompts, decodes = rng.integers(0, 3, 500), rng.integers(0, 9, 500)
    decodes[(prompts == 0) & (decodes == 0)] = 1
    asked = np.stack(
        [
            prompts,
            rng.integers(1, 9000, 500) * (prompts > 0),
            rng.integers(0, 9000, 500) * (prompts > 0),
            decodes,
            rng.integers(1, 9000, 500) * decodes,
        ]
    )
    times = source.explain(PassQueries(*asked))
    assert times.total_ns.tolist() == [source.pass_ns(*map(int, query)) for query in asked.T]
    assert min(times.prefill_ns.min(), times.decode_ns.min(), times.overhead_ns.min()) >= 0
    assert (times.total_ns != build_timing(values).explain(PassQueries(*asked)).total_ns).any()


def test_a_correction_of_another_source_is_refused(sample: tuple[dict[str, Any], Any], tmp_path: Path) -> None:
    values, learned = sample
    save_correction(learned, "mine", tmp_path)
    with pytest.raises(GapscopeError, match="was learned on another source"):
        build_timing(values | {"correction": "mine", "fixed_kv_token_ns": 32.0}, None, [tmp_path])
    with pytest.raises(GapscopeError, match=r"There is no correction 'other' in the stores \(there: mine\)"):
        build_timing(values | {"correction": "other"}, None, [tmp_path])
    with pytest.raises(GapscopeError, match="is no name of a correction"):
        save_correction(learned, "../mine", tmp_path)


def test_a_replay_names_its_correction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stores = ["--store", str(SAMPLES), "--store", str(tmp_path)]
    short = ["--set", "duration_s=3", "--set", "warmup_s=1", "--timing", "fixed"]
    assert main(["correct", "warm", "ample8:warmup", "--like", "ample8", *short, *stores]) == 0
    assert "decode_only" in capsys.readouterr().err
    assert main(["replay", "--like", "ample8", "--set", "correction=warm", *short, *stores]) == 0
    run = find_bundle([tmp_path], capsys.readouterr().out.split()[-1])
    said = run.identity.value("timing", "corrections")["learned"]
    assert (said["name"], said["bounds"]) == ("warm", [0.5, 2.0])
    assert said["learned_on"][0]["phases"] == ["warmup"]
    assert run.lineage["timing"]["correction"]["factors"] == said["factors"]


def test_a_correction_of_what_is_predicted_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stores = ["--store", str(SAMPLES), "--store", str(tmp_path)]
    short = ["--set", "duration_s=3", "--set", "warmup_s=1", "--timing", "fixed"]
    said = "Correction same was learned on the very passes that are predicted"
    assert main(["correct", "same", "ample8:profile", "--like", "ample8", *short, *stores]) == 0
    assert said in capsys.readouterr().err
    assert main(["replay", "--like", "ample8", "--set", "correction=same", *short, *stores]) == 0
    told = capsys.readouterr()
    assert said in told.err
    run = find_bundle([tmp_path], told.out.split()[-1])
    assert run.identity.value("timing", "corrections")["learned"]["note"].startswith(said)
    assert [(one["run_id"], one["phases"]) for one in run.lineage["fitted_on"]] == [
        (find_bundle([SAMPLES], "ample8").run_id, ["profile"])
    ]


def test_a_name_is_not_taken_from_another_correction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stores = ["--store", str(SAMPLES), "--store", str(tmp_path)]
    like = ["--like", "ample8", "--timing", "fixed", *stores]
    assert main(["correct", "mine", "ample8:warmup", *like]) == 0
    path = tmp_path / "presets" / "corrections" / "mine.json"
    first = path.read_bytes()
    assert main(["correct", "mine", "ample8:warmup", *like]) == 0  # the same again
    capsys.readouterr()
    assert main(["correct", "mine", "fpm_sweep", *like]) == 2
    assert "There is another correction 'mine' already" in capsys.readouterr().err
    assert path.read_bytes() == first
    assert main(["correct", "mine", "fpm_sweep", "--force", *like]) == 0
    assert path.read_bytes() != first
