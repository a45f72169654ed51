"""How many drafts are accepted on average: formulas by hand, and published sweeps over depths."""

from __future__ import annotations

import pytest

from engine.errors import GapscopeError
from engine.knobs import resolve
from engine.replay.loop import server_config
from engine.serving.speculation import acceptance_of
from engine.timing.acceptance import acceptance_length, chain, rate_of_length


def test_constant_rates():
    # (1 - a^(k + 1)) / (1 - a): a half and three drafts, 1.875.
    assert acceptance_length((0.5,) * 3) == 1.875
    for a, k in ((0.84, 1), (0.7, 3), (0.3, 7)):
        assert acceptance_length((a,) * k) == pytest.approx((1 - a ** (k + 1)) / (1 - a))
        assert acceptance_length(acceptance_of("", acceptance_length((a,) * k), k)) == pytest.approx(
            acceptance_length((a,) * k)
        )
    assert acceptance_length(()) == 1.0
    assert acceptance_length((1.0,) * 4) == 5.0


@pytest.mark.parametrize(
    ("decay", "sweep"),
    [
        (0.952, {3: 2.99, 4: 3.33, 5: 3.61}),  # GLM-5.2, MTP
        (0.950, {3: 3.00, 4: 3.36, 5: 3.62, 7: 3.84}),  # Kimi-K3, DSpark
    ],
)
def test_a_decayed_chain_tells_other_depths_from_one(decay, sweep):
    rate = rate_of_length(sweep[3], 3, decay)
    for drafts, length in sweep.items():
        assert acceptance_length(chain(rate, decay, drafts)) == pytest.approx(length, rel=0.0055)
    # A chain without decay is off by more at the deepest.
    deepest = max(sweep)
    flat = acceptance_length(chain(rate_of_length(sweep[3], 3), 1.0, deepest))
    assert flat / sweep[deepest] > 1.03


def test_no_draft_is_certain():
    assert chain(1.0, 0.999, 2) == (0.99, 0.99)
    assert chain(1.0, 1.0, 2) == (1.0, 1.0)
    assert chain(0.8, 0.5, 3) == pytest.approx((0.8, 0.4, 0.2))
    assert acceptance_length(chain(0.8, 0.5, 3)) == pytest.approx(1 + 0.8 + 0.32 + 0.064)
    with pytest.raises(GapscopeError, match="expected 1 to 4"):
        rate_of_length(4.1, 3)
    # 1 + 0.99 + 0.99 x 0.95 + 0.99 x 0.95 x 0.9025
    with pytest.raises(GapscopeError, match=r"1 to 3\.779 tokens per verification of 3 drafts that decay by 0\.95"):
        rate_of_length(4.0, 3, 0.95)


MTP = {"timing": "fixed", "spec_method": "mtp", "spec_tokens": 5}


def test_a_length_measured_at_one_depth_is_replayed_at_another():
    knobs = MTP | {"spec_mean_length": 2.99, "spec_measured_tokens": 3, "spec_decay": 0.952}
    assert server_config(resolve(knobs)).speculation.mean_length == pytest.approx(3.61, rel=0.0055)
    assert acceptance_of("0.8", 0, 3, 0.5) == pytest.approx((0.8, 0.4, 0.2))


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"spec_acceptance": "0.8", "spec_measured_tokens": 3}, "spec_measured_tokens=3 has no effect"),
        ({"spec_acceptance": "0.8,0.7,0.6,0.5,0.4", "spec_decay": 0.9}, "spec_decay=0.9 has no effect"),
    ],
)
def test_what_says_nothing_is_refused(more, named):
    with pytest.raises(GapscopeError, match=named):
        resolve(MTP | more)
