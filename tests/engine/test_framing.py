"""Which chunks are content, told from counts; streams drawn by hand: R role, C content, F finish."""

from __future__ import annotations

import pytest

from engine.importers.clients.framing import Content, Framing, framing_of

BURST = frozenset({"several tokens a chunk"})


@pytest.mark.parametrize(
    ("chat", "responses", "framing"),
    [
        # R C C C F, R C C C F, R CCC F: most have one gap more than tokens.
        (True, [(3, 4), (3, 4), (3, 2)], Framing(True, True, 3)),
        # R C C with the finish inside the last content, of any length: what vLLM's own server sends.
        (True, [(2, 2), (5, 5), (9, 9), (4, 4)], Framing(True, False, None)),
        # C C C: a server without role chunks.
        (True, [(3, 2), (5, 4)], Framing(False, False, None)),
        # Bursts throughout: nothing tells whether the last chunk is a finish chunk.
        (True, [(100, 40), (100, 41), (100, 43)], Framing(True, None, 100)),
        (False, [(3, 2), (3, 2)], Framing(False, False, 3)),
        (False, [(3, 3), (4, 4), (5, 5)], Framing(False, True, None)),
        (False, [(100, 40)], Framing(False, None, 100)),
        (True, [], Framing(True, None, None)),
        (True, [(0, 1)], Framing(True, None, None)),
    ],
)
def test_framing(chat: bool, responses: list[tuple[int, int]], framing: Framing) -> None:
    assert framing_of(chat, responses) == framing


@pytest.mark.parametrize(
    ("framing", "gaps", "tokens", "content"),
    [
        (Framing(True, True, 24), 25, 24, Content(1, 24)),  # R 24C F
        (Framing(True, True, 24), 2, 1, Content(1, 1)),  # R C F
        (Framing(True, True, 24), 9, 24, Content(1, 8, BURST)),  # R 8C F
        # 12 of 24 tokens and no finish chunk.
        (Framing(True, True, 24), 12, 12, Content(1, 12, frozenset({"unfinished stream"}))),
        (
            Framing(True, True, 24),
            24,
            24,
            Content(1, 23, frozenset({"unfinished stream, or several tokens in a chunk"})),
        ),
        (Framing(True, True, None), 0, 1, Content(None, None)),
        (Framing(True, False, None), 24, 24, Content(1, 24)),  # R 24C
        (Framing(True, False, None), 12, 12, Content(1, 12)),
        (Framing(True, None, None), 10, 24, Content(1, 10, BURST)),
        (Framing(False, False, None), 23, 24, Content(0, 23)),
        (Framing(False, False, None), 0, 1, Content(0, 0)),
        (Framing(False, True, None), 24, 24, Content(0, 23)),
    ],
)
def test_content(framing: Framing, gaps: int, tokens: int, content: Content) -> None:
    assert framing.content(gaps, tokens) == content
