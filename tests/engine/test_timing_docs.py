"""The worked example of docs/timing.md runs, and the document names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from engine import knobs
from engine.bundle.schema import RESOLUTIONS
from engine.timing import SOURCES, PassQueries
from engine.timing.surface import COMPOSITIONS

TEXT = (Path(__file__).parents[2] / "docs" / "timing.md").read_text(encoding="utf-8")


def test_the_example_is_a_source(monkeypatch):
    monkeypatch.setattr("engine.timing.SOURCES", dict(SOURCES))
    code = re.search(r"<!-- example -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    assert code
    exec(compile(code.group(1), "docs/timing.md", "exec"), made := {})
    timing = made["SOURCES"]["polynomial"]({**knobs.defaults(), "kv_blocks": 101, "block_size": 16}, None)
    # half of the pool: 5.74 + 27.005 - 6.435 = 26.31 ms
    assert timing.pass_ns(0, 0, 0, 4, 800) == 26_310_000
    # 16.50142 + 1000 * 0.01518344 + 0.4209989 ms
    assert timing.pass_ns(1, 1000, 0, 0, 0) == pytest.approx(32_105_859, abs=1)
    queries = [(1, 1000, 0, 4, 800), (0, 0, 0, 2, 50)]
    told = timing.explain(PassQueries(*(np.array(c) for c in zip(*queries, strict=True))))
    assert [timing.pass_ns(*q) for q in queries] == told.total_ns.tolist()


def test_the_document_names_what_there_is():
    for word in (*RESOLUTIONS, *SOURCES, *COMPOSITIONS):
        assert word in TEXT
