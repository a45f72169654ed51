"""Traces whose turns name only what they add to the context of their conversation."""

from __future__ import annotations

from itertools import pairwise

from engine.traces.tree import Conversation, Segment, Trace, Turn


def names_only_what_it_adds(trace: Trace) -> bool:
    """Whether the hash ids of a session's later turns are additions: of no turn do they begin like the one before.

    Whole prompts grow from one beginning, a system prompt at least. Without later turns there is no difference.
    """
    later = False
    for play in trace.plays:
        turns = play.conversations[0].turns
        for before, turn in pairwise(turns):
            if before.hash_ids and turn.hash_ids and before.hash_ids[0] == turn.hash_ids[0]:
                return False
            later = True
    return later


def add_up(trace: Trace) -> None:
    """Turn prompt lengths and hash ids, read as what each turn adds, into segments.

    A prompt is then all that came before it in its conversation, outputs included, and what its turn adds. Equal hash
    ids mean equal tokens; what has no id is like nothing else.
    """
    block, named = trace.hash_block_tokens, False
    for play in trace.plays:
        for conversation in play.conversations:
            for number, turn in enumerate(conversation.turns):
                named |= turn.hash_ids is not None
                turn.new_input = tuple(_segments(conversation, number, turn, block))
                turn.prompt_tokens = turn.hash_ids = None
    trace.hash_block_tokens = None
    trace.notes["prompts"] = (
        "each turn names what it adds: no later turn begins like the one before it"
        if named
        else "lengths only: each turn adds its own to its conversation, and conversations share nothing"
    )


def _segments(conversation: Conversation, number: int, turn: Turn, block: int | None) -> list[Segment]:
    left = turn.prompt_tokens or 0
    segments = []
    for hash_id in turn.hash_ids or ():
        assert block is not None  # where there are ids
        segments.append(Segment(f"hash:{hash_id}", min(block, left)))
        left -= segments[-1].tokens
    if left:
        segments.append(Segment(f"in:{conversation.conversation_id}:{number}", left))
    return segments
