"""Where runs lie: the folders that a store is made of, in order; new runs go into the last one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "GAPSCOPE_STORE"
PROJECT = Path(__file__).resolve().parents[1]


def default_stores(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """The folders of ``GAPSCOPE_STORE``, else the samples of the project and ``runs`` in the working folder."""
    given = [Path(part) for part in environment.get(VARIABLE, "").split(os.pathsep) if part]
    if given:
        return given
    samples = PROJECT / "sample_runs"
    return [*([samples] if samples.is_dir() else []), Path("runs")]
