"""Whether a workload fits into the context of a model."""

from __future__ import annotations

from engine.errors import GapscopeError
from engine.recording.endpoint import Endpoint
from engine.traces.tree import Conversation, Trace


def check_fits(trace: Trace, endpoint: Endpoint) -> None:
    """Make sure that every turn can be played.

    Raises:
        GapscopeError: prompts and outputs are longer than the model's context.
    """
    limit = endpoint.max_model_len
    if limit is None:
        return
    sizes = context_tokens(trace)
    above = [size for size in sizes if size > limit]
    if above:
        raise GapscopeError(
            f"Trace {trace.name} does not fit {endpoint.model}: {len(above):,} of its {len(sizes):,} turns need more "
            f"than {limit:,} tokens of context (the longest {max(above):,}); give another trace, or start the server "
            "with a longer context."
        )


def context_tokens(trace: Trace) -> list[int]:
    """Tokens of prompt and output of every turn."""
    sizes: list[int] = []
    for play in trace.plays:
        ends: dict[tuple[str, int], int] = {}
        waiting = list(play.conversations)
        while waiting:
            left: list[Conversation] = []
            for talk in waiting:
                base = 0
                if talk.mode == "fork" and talk.parent is not None:
                    found = ends.get((talk.parent, talk.after_turn or 0))
                    if found is None:
                        left.append(talk)
                        continue
                    base = found
                for number, turn in enumerate(talk.turns):
                    prompt = turn.prompt_tokens
                    if turn.hash_ids is None or prompt is None:
                        prompt = base + sum(segment.tokens for segment in turn.new_input)
                    base = ends[talk.conversation_id, number] = prompt + turn.output_tokens
                    sizes.append(base)
            waiting = left
    return sizes
