"""docs/traces.md: every example is a trace of the format under whose name it stands, and holds what is said of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.traces import FORMATS, load_trace
from engine.traces.compact import pack, unpack
from engine.workload.hash_ids import block_keys_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
FOUND = re.findall(r"^## (\S+)\n|^```(?:jsonl|json|csv)\n(.*?)^```\n\n(\d+) plays?, (\d+) turns?\.", PAGE, re.M | re.S)


def examples() -> list[tuple[str, str, int, int]]:
    out, name = [], ""
    for heading, text, plays, turns in FOUND:
        name = heading or name
        if text:
            out.append((name, text, int(plays), int(turns)))
    return out


@pytest.mark.parametrize(("name", "text", "plays", "turns"), examples())
def test_an_example_is_what_is_said(name: str, text: str, plays: int, turns: int, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(text, encoding="utf-8")
    trace = load_trace(tmp_path / "t")
    assert trace.format == name
    assert (len(trace.plays), sum(len(c.turns) for play in trace.plays for c in play.conversations)) == (plays, turns)
    block_keys_of(trace, trace.hash_block_tokens or 16)
    packed = bytes(pack(trace))
    assert unpack(packed, tmp_path)[0] == trace


def test_every_example_is_tested_and_every_format_has_one() -> None:
    assert len(examples()) == len(re.findall(r"^```(?:jsonl|json|csv)$", PAGE, re.M))
    named = {name for name, *_ in examples()}
    assert len(named) == len(FORMATS) - 1  # the compact form is no text
    assert all(f"[`{name}`](#{name.replace('/', '')})" in PAGE for name in named)
