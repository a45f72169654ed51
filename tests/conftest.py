"""Settings that every test shares."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No test judges wall time, so Hypothesis does not either; in CI the examples are the same each time.
settings.register_profile(
    "gapscope",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("gapscope")
