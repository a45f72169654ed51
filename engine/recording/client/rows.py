"""The client's half of a recording: one row per request, in the columns of a recording folder."""

from __future__ import annotations

from typing import Any

from engine.recording.client.load import Exchange
from engine.workload.live import play_name


def request_row(exchange: Exchange, started_ns: int, profile_start_s: float) -> dict[str, Any]:
    """The row of a request; times are seconds from the start of the load."""
    talk, answer, conversation = exchange.talk, exchange.answer, exchange.talk.conversation
    turn = conversation.turns[exchange.turn]
    live = talk.live

    dispatch_s = round((answer.dispatched_ns - started_ns) / 1e9, 6)

    def after_us(time_ns: int) -> int:
        return round((time_ns - answer.dispatched_ns) / 1000)

    def s(time_ns: int | None) -> float | None:
        return None if time_ns is None else round(dispatch_s + after_us(time_ns) / 1e6, 6)

    seen = [chunk.time_ns for chunk in answer.chunks if chunk.visible]
    phase = "warmup" if dispatch_s < profile_start_s else "profile"
    return {
        "request_id": exchange.request_id,
        "session_id": conversation.conversation_id,
        "root_session_id": live.play.source_trace_id,
        "play_id": play_name(live.play.source_trace_id, live.incarnation),
        "content": live.content,
        "role": "root" if conversation.parent is None else "child",
        "parent_session_id": conversation.parent,
        "parent_after_turn": conversation.after_turn,
        "parent_mode": None if conversation.parent is None else conversation.mode,
        "turn": exchange.turn,
        "num_turns": len(conversation.turns),
        "lane": live.lane,
        "phase": exchange.primed[0] if exchange.primed else phase,
        "primed": exchange.primed is not None,
        "status": answer.status,
        "error": answer.error,
        "think_s": turn.think_ns / 1e9,
        "scheduled_s": round(exchange.scheduled_ns / 1e9, 6),
        "dispatch_s": dispatch_s,
        "headers_s": s(answer.headers_ns),
        "first_chunk_s": s(answer.chunks[0].time_ns) if answer.chunks else None,
        "first_visible_s": s(seen[0]) if seen else None,
        "last_visible_s": s(seen[-1]) if seen else None,
        "last_chunk_s": s(answer.chunks[-1].time_ns) if answer.chunks else None,
        "end_s": s(answer.end_ns),
        "input_tokens": exchange.prompt.tokens if exchange.prompt.tokens is not None else answer.prompt_tokens,
        "usage_prompt_tokens": None if exchange.prompt.tokens is None else answer.prompt_tokens,  # of chats it is ours
        "output_tokens_requested": exchange.asked_tokens,
        "output_tokens": answer.output_tokens,
        "cached_tokens": answer.cached_tokens,
        "finish_reason": answer.finish_reason,
        "response_id": answer.response_id,
        "prompt_sha256_16": exchange.prompt.digest,
        "chunks": [[after_us(chunk.time_ns), chunk.tokens, int(chunk.visible)] for chunk in answer.chunks],
        "output_ids": answer.output_ids,
    }
