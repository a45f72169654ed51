"""A timing model as a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from timing_fakes import bundle

from engine import knobs
from engine.errors import GapscopeError
from engine.timing import FitSource, build_timing, fit, load_model, save_model


@pytest.fixture(scope="module")
def model():
    return fit([FitSource(bundle("sweep", n=120))])


def test_round_trip(model, tmp_path):
    path = save_model(model, tmp_path / "deep" / "model.json")
    assert load_model(path) == model
    assert [p.name for p in path.parent.iterdir()] == ["model.json"]
    asked = build_timing(knobs.resolve({}), model).pass_ns(1, 100, 2000, 3, 3000)
    assert build_timing(knobs.resolve({}), load_model(path)).pass_ns(1, 100, 2000, 3, 3000) == asked


def test_the_same_model_is_the_same_file(model, tmp_path):
    one, two = save_model(model, tmp_path / "1.json"), save_model(dict(reversed(model.items())), tmp_path / "2.json")
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"kind": "anchor"}, "is of kind 'anchor': expected 'gapscope-timing-fpm'"),
        ({"version": 99}, "has version 99: this program reads version 1"),
        ({"composition": "marginal"}, "was altered after it was made"),
        ({"digest": "0" * 64}, "was altered after it was made"),
    ],
)
def test_refuses_another_kind_version_or_content(model, tmp_path, change, match):
    path = tmp_path / "model.json"
    path.write_text(json.dumps({**model, **change}))
    with pytest.raises(GapscopeError, match=match) as caught:
        load_model(path)
    assert str(path) in str(caught.value)
    with pytest.raises(GapscopeError, match=match):
        build_timing(knobs.resolve({}), {**model, **change})


@pytest.mark.parametrize("text", ["", "{", "[]", '"model"', "{}", "\x00"])
def test_refuses_what_is_no_model(tmp_path, text):
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(GapscopeError, match="expected a file that `gapscope fit` wrote"):
        load_model(path)


def test_names_an_absent_file(tmp_path):
    with pytest.raises(GapscopeError, match=r"Cannot read the timing model .*absent\.json: No such file"):
        load_model(tmp_path / "absent.json")


def test_a_failed_save_leaves_nothing(model, tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(GapscopeError, match="Cannot write the timing model"):
        save_model(model, tmp_path / "taken")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def test_a_failed_clean_up_still_says_what_failed(model, tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(GapscopeError, match="Read-only file system; choose another place"):
        save_model(model, tmp_path / "m.json")
