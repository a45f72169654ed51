"""Unknown stays unknown, and a difference is a difference of values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import GapscopeError
from engine.identity import (
    FIELDS,
    GROUPS,
    NOT_APPLICABLE,
    Field,
    Identity,
    attention_family,
    diff,
    like_for_like,
)


def record(**values: Any) -> Identity:
    """Fields by ``group__field``."""
    identity = Identity()
    for name, value in values.items():
        identity.set(*name.split("__"), value, "test")
    return identity


def states(left: Identity, right: Identity) -> dict[str, str]:
    return {f"{d.group}.{d.field}": d.state for d in diff(left, right)}


@pytest.mark.parametrize(
    ("left", "right", "state"),
    [
        ("toy", "toy", "same"),
        ("toy", " TOY ", "same"),
        ("toy", "other", "differs"),
        (1, 1.0, "same"),
        (1, 2, "differs"),
        (1, True, "differs"),
        (0, None, "unknown_right"),
        (None, "", "unknown_left"),
        (None, None, "unknown_both"),
        ([1, "A"], [1, "a"], "same"),
        ([1, 2], [2, 1], "differs"),
        ({"a": 1}, {"a": 1.0}, "same"),
        ({"a": 1}, {"b": 1}, "differs"),
        (NOT_APPLICABLE, NOT_APPLICABLE, "not_applicable"),
        (NOT_APPLICABLE, "x", "differs"),
        (NOT_APPLICABLE, None, "unknown_right"),
    ],
)
def test_the_state_of_a_field(left: Any, right: Any, state: str) -> None:
    assert states(record(model__name=left), record(model__name=right))["model.name"] == state
    mirrored = {"unknown_left": "unknown_right", "unknown_right": "unknown_left"}.get(state, state)
    assert states(record(model__name=right), record(model__name=left))["model.name"] == mirrored


def test_a_field_that_nobody_set_is_as_unknown_as_one_that_its_source_does_not_give() -> None:
    assert states(record(), record(model__name=None))["model.name"] == "unknown_both"
    assert states(record(model__name="x"), record())["model.name"] == "unknown_right"


def test_without_speculation_its_details_say_nothing() -> None:
    left, right = record(speculation__method="none"), record(speculation__method="mtp", speculation__draft_tokens=3)
    found = states(left, right)
    assert found["speculation.method"] == "differs"
    assert {found[f"speculation.{f}"] for f in ("draft_tokens", "acceptance")} == {"not_applicable"}
    both = states(right, record(speculation__method="mtp", speculation__draft_tokens=2))
    assert both["speculation.draft_tokens"] == "differs"


def test_the_timing_of_a_replay_is_not_compared_with_a_measured_run() -> None:
    replay = record(timing__kind="fpm")
    assert states(record(), replay)["timing.kind"] == "not_applicable"
    assert states(record(), record())["timing.kind"] == "not_applicable"
    assert states(replay, record(timing__kind="fixed"))["timing.kind"] == "differs"


def test_a_regime_field_that_differs_makes_a_pair_not_like_for_like() -> None:
    assert like_for_like(diff(record(model__kv_dtype="fp8"), record(model__kv_dtype="fp8", client__lanes=8)))
    assert like_for_like(diff(record(model__kv_dtype="fp8"), record()))  # unknown is no mismatch
    assert like_for_like(diff(record(client__lanes=4), record(client__lanes=8)))
    assert not like_for_like(diff(record(model__kv_dtype="fp8"), record(model__kv_dtype="bf16")))


def test_the_fields_that_define_the_regime() -> None:
    regime = {f"{group}.{name}" for group, fields in FIELDS.items() for name, spec in fields.items() if spec.regime}
    assert regime == {
        "source.engine",
        "source.version",
        "model.name",
        "model.weights_dtype",
        "model.kv_dtype",
        "model.expert_dtype",
        "kernels.attention_family",
        "kernels.graph_mode",
        "kernels.op_switches",
        "speculation.method",
        "speculation.draft_tokens",
        "hardware.part",
    }


def test_every_group_has_words_and_every_rule_a_field() -> None:
    assert list(FIELDS) == list(GROUPS)
    for fields in FIELDS.values():
        assert all(spec.not_if is None or spec.not_if[0] in fields for spec in fields.values())


def test_the_diff_covers_the_table_once_in_its_order() -> None:
    names = [(d.group, d.field) for d in diff(record(), record())]
    assert names == [(group, name) for group, fields in FIELDS.items() for name in fields]
    assert diff(record(), record())[0].label == "engine"


_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_known = st.sampled_from([(group, name) for group, fields in FIELDS.items() for name in fields])


@settings(deadline=None)
@given(st.dictionaries(_known, st.tuples(_value, st.text(min_size=1, max_size=5)), max_size=8))
def test_records_round_trip(fields: dict) -> None:
    identity = Identity()
    for (group, name), (value, source) in fields.items():
        identity.set(group, name, value, source)
    again = Identity.from_json(identity.to_json())
    assert again == identity
    for (group, name), (value, source) in fields.items():
        assert again.get(group, name) == Field(value, source)
    assert {d.state for d in diff(identity, again)} <= {"same", "unknown_both", "not_applicable"}


def test_fields_of_a_newer_version_are_kept_and_compared() -> None:
    newer = {
        "model": {"name": {"value": "toy", "source": "a"}, "rotary": {"value": "yarn", "source": "b"}},
        "weather": {"rain": {"value": True, "source": "window"}},
    }
    identity = Identity.from_json(newer)
    assert identity.to_json() == newer
    found = {(d.group, d.field): d for d in diff(identity, Identity())}
    assert found["model", "rotary"].state == found["weather", "rain"].state == "unknown_right"
    assert not found["weather", "rain"].regime
    assert found["weather", "rain"].label == "rain"
    order = [d.group for d in diff(identity, Identity())]
    assert order == sorted(order, key=[*GROUPS, "weather"].index)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "Identity record is list, expected an object of groups."),
        ({"model": 1}, "Identity group 'model' is int, expected an object of fields."),
        ({"model": {"name": "toy"}}, "Identity field model.name is 'toy', expected {value, source}."),
        ({"model": {"name": {"value": 1}}}, "Identity field model.name is"),
        ({"model": {"name": {"value": 1, "source": None}}}, "Identity field model.name is"),
    ],
)
def test_a_malformed_record_is_one_sentence(data: Any, words: str) -> None:
    with pytest.raises(GapscopeError) as error:
        Identity.from_json(data)
    assert str(error.value).startswith(words)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("model", "nam", "x", "s"), "no field model.nam; nearest: name"),
        (("modell", "name", "x", "s"), "no field modell.name; nearest: model"),
        (("model", "name", "x", ""), "model.name: every value needs a source"),
        (("model", "name", float("nan"), "s"), "model.name: nan is not a JSON value"),
        (("model", "name", [object()], "s"), "is not a JSON value"),
        (("model", "name", {1: 2}, "s"), "is not a JSON value"),
    ],
)
def test_only_known_fields_with_a_source_are_set(args: tuple, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Identity().set(*args)


def test_numpy_values_become_plain_ones() -> None:
    identity = record(client__lanes=np.int64(8), trace__rows=(np.float64(0.5),))
    assert identity.to_json()["client"]["lanes"]["value"] == 8
    assert type(identity.value("client", "lanes")) is int
    assert identity.value("trace", "rows") == [0.5]


def test_a_copy_is_independent() -> None:
    identity = record(model__name="a")
    other = identity.copy()
    other.set("model", "name", "b", "test")
    assert identity.value("model", "name") == "a"
    assert identity != other


def test_attention_backends_compare_by_family() -> None:
    assert attention_family("TRITON_ATTN") == attention_family("triton") == "triton"
    assert attention_family("dsv4") == attention_family("ROCM_AITER_MLA") == "aiter"
    assert attention_family("FLASHINFER") == "flashinfer"
