"""Agent sessions of Applied Compute's TRIE workloads: lengths of every turn, and how long each tool took.

One JSON object per line and session::

    {"num_turns", "input_prompt_length", "assistant_response_length": [...], "tool_call_output_length": [...],
     "tool_call_latency": [s ...], "final_assistant_response_length"}

A session has ``num_turns`` turns that call a tool, and one more. The tool's output is what the next turn adds to the
conversation, its latency the think time before that turn. Lengths are all that is known: sessions share nothing.
"""

from __future__ import annotations

from pathlib import Path

from engine.errors import GapscopeError
from engine.jsonl import COUNT, DURATION, Spec, list_of, problem_of
from engine.traces.fields import LENGTH, OUTPUT, sampled
from engine.traces.files import Head, name_of, place, rows
from engine.traces.tree import Conversation, Play, Segment, Trace, Turn

NAME = "Applied Compute agentic JSONL"
_LISTS = ("assistant_response_length", "tool_call_output_length", "tool_call_latency")
_ROW: Spec = {
    "num_turns": COUNT,
    "input_prompt_length": LENGTH,
    "assistant_response_length": list_of(OUTPUT),
    "tool_call_output_length": list_of(OUTPUT),
    "tool_call_latency": list_of(DURATION),
    "final_assistant_response_length": OUTPUT,
}


def looks_like(head: Head) -> bool:
    """Whether a file that begins like this has such sessions."""
    return {"input_prompt_length", "final_assistant_response_length"} <= head.row.keys()


def read(path: Path, data: bytes) -> Trace:
    """The trace in ``data``.

    Raises:
        GapscopeError: a row of the wrong shape, named by its line.
    """
    plays = []
    silent = 0
    for number, row in rows(path, data):
        problem = problem_of(row, _ROW)
        if not problem and {len(row[name]) for name in _LISTS} != {row["num_turns"]}:
            found = ", ".join(f"{len(row[name])} of {name}" for name in _LISTS)
            problem = f"num_turns is {row['num_turns']} but there are {found}; expected as many of each"
        if problem:
            raise GapscopeError(f"{place(path, data, number)}: {problem}.")
        name = f"line{number}"
        added = [row["input_prompt_length"], *row["tool_call_output_length"]]
        outputs = [*row["assistant_response_length"], row["final_assistant_response_length"]]
        thinks = [0, *row["tool_call_latency"]]
        silent += outputs.count(0)
        turns = [
            Turn(max(1, output), round(think * 1e9), (Segment(f"in:{name}:{at}", tokens),) if tokens else ())
            for at, (tokens, output, think) in enumerate(zip(added, outputs, thinks, strict=True))
        ]
        plays.append(Play(name, [Conversation(name, turns)]))
    notes = {"prompts": "lengths only: sessions share nothing"}
    if silent:
        notes["requests without output"] = sampled(silent)
    return Trace(name_of(path), "applied-compute", "", plays, notes=notes)
