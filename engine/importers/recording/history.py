"""What the passes say about each request: when it came, was admitted, computed, preempted, let go."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.importers.recording.files import Recording


@dataclass(slots=True)
class Admission:
    """One admission of a request to the running batch."""

    pass_index: int
    time_s: float
    cached_tokens: int
    again: bool


@dataclass(slots=True)
class Preemption:
    """A request lost its place, and with it the KV of its computed tokens."""

    pass_index: int
    time_s: float
    computed_tokens: int


@dataclass(slots=True)
class History:
    """One request as the engine saw it. Fields are None where the recording does not show them."""

    received_s: float | None = None
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    released_s: float | None = None
    engine_output_tokens: int | None = None
    engine_preemptions: int | None = None
    admissions: list[Admission] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    scheduled_tokens: int = 0
    recomputed_tokens: int = 0
    """Tokens scheduled at positions that this request had scheduled before."""
    sampled_tokens: int = 0
    _reached: int = 0
    _computed: int = 0


def histories(recording: Recording) -> tuple[dict[str, History], list[int | None]]:
    """Every request that the passes name, and the tokens that each pass sampled.

    A pass samples one token for each member whose known tokens (prompt and earlier outputs) are all computed at
    its end. The number is None for a pass with a prefill whose prompt length was not recorded.
    """
    known: dict[str, History] = {}
    sampled: list[int | None] = []
    for row in recording.passes:
        for name, time_s, prompt, most in row.get("arrivals", ()):
            history = known.setdefault(name, History())
            history.received_s, history.prompt_tokens, history.max_tokens = time_s, prompt, most
        for name in row["preempted"]:
            history = known.setdefault(name, History())
            history.preemptions.append(Preemption(row["iter"], row["t_start_s"], history._computed))
            history._computed = 0
        tokens: int | None = 0
        for name, before, scheduled, kind in row["reqs"]:
            history = known.setdefault(name, History())
            if kind in "nr":
                history.admissions.append(Admission(row["iter"], row["t_start_s"], before, kind == "r"))
            after = before + scheduled
            history.scheduled_tokens += scheduled
            history.recomputed_tokens += max(0, min(after, history._reached) - before)
            history._reached, history._computed = max(history._reached, after), after
            if kind == "d" or history.prompt_tokens is not None:
                done = kind == "d" or after >= (history.prompt_tokens or 0) + history.sampled_tokens
                history.sampled_tokens += done
                tokens = None if tokens is None else tokens + done
            else:
                tokens = None
        sampled.append(tokens)
        for name, _status, _computed, outputs, preemptions, time_s in (
            *row.get("finished_before", ()),
            *row.get("finished", ()),
        ):
            history = known.setdefault(name, History())
            history.released_s = time_s
            history.engine_output_tokens, history.engine_preemptions = outputs, preemptions
    return known, sampled
