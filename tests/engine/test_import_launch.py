"""Launch commands of engines as identity fields; and outlines of documents that break off."""

from __future__ import annotations

import pytest

from engine.importers.clients.launch import launch_facts
from engine.importers.clients.outline import outline


def facts(command: str) -> dict[tuple[str, str], object]:
    return {(group, name): value for group, name, value in launch_facts(command) if value is not None}


def test_sglang() -> None:
    found = facts(
        "python3 -m sglang.launch_server --model-path org/m --tp 8 --disable-radix-cache --mem-fraction-static=0.8 \\\n"
        " --chunked-prefill-size -1 --attention-backend aiter"
    )
    assert found["source", "engine"] == "sglang"
    assert found["model", "name"] == "org/m"
    assert found["topology", "tp"] == 8
    assert found["capacity", "memory_fraction"] == 0.8
    assert found["capacity", "prefix_caching"] is False
    assert found["scheduler", "max_num_batched_tokens"] == -1
    assert found["kernels", "attention_family"] == "aiter"


@pytest.mark.parametrize("command", ["echo 'vllm' is nice", "", "vllm bench serve --model m", "'unclosed vllm"])
def test_no_launch(command: str) -> None:
    assert launch_facts(command) == []


def test_outline() -> None:
    text = b'\xef\xbb\xbf {"a": [{"b": 1, "c": {"d": 2}}, {"e": "{"}], "f": {"g": "x\\"y: {", "h": [1, 2]}, "i": "cut'
    assert outline(text) == {"a": {"b", "c", "e"}, "f": {"g", "h"}, "i": set()}
    assert outline(b'{"a": 1}\n{"b": 2}') == {"a": set()}
    assert outline(b"[1]") == {}
