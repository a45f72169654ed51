"""One request to an OpenAI-compatible endpoint: sent, streamed back, timed."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from engine.recording.client.answer import SHOWN, Answer
from engine.recording.client.stream import DONE, EventReader

CONNECT_S = 30.0
LAST_BYTES_S = 0.05
IDLE_CONNECTION_S = 2.0
"""Servers close connections that were idle for some seconds; one that is used just then fails."""


API_KEY = "GAPSCOPE_API_KEY"
"""The environment variable with the key of a server that wants one: on no command line, in no log and no bundle."""


def session(timeout_s: float) -> aiohttp.ClientSession:
    """A session without limits to what is in flight; ``timeout_s`` is how long nothing may come."""
    key = os.environ.get(API_KEY, "").strip()
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=timeout_s),
        headers={"Authorization": f"Bearer {key}"} if key else None,
    )


@dataclass(frozen=True)
class Call:
    """A request ready to be sent."""

    request_id: str
    url: str
    body: bytes


async def send(http: aiohttp.ClientSession, call: Call) -> Answer:
    """Send a request and read its response to the end; never raises, but tells what happened in the answer.

    Being canceled closes the connection, by which the server knows.
    """
    answer = Answer(dispatched_ns=time.monotonic_ns())
    try:
        headers = {"Content-Type": "application/json", "X-Request-Id": call.request_id}
        async with http.post(call.url, data=call.body, headers=headers) as response:
            answer.headers_ns = time.monotonic_ns()
            try:
                await _read(response, answer)
                if not answer.chunks and not answer.completion_tokens:
                    answer.status = "error"
                    raise ValueError("zero output: the response ended without a token")
            finally:
                if answer.status != "ok":
                    response.close()
    except asyncio.CancelledError:
        if answer.status != "ok":  # else it was over, and only the connection was still being read
            answer.status, answer.error = "canceled", None
    except TimeoutError:
        answer.error = "timeout: nothing came for too long"
    except aiohttp.ClientError as problem:
        answer.error = f"connection: {type(problem).__name__}: {problem}"[:SHOWN]
    except ValueError as problem:
        answer.error = str(problem)[:SHOWN]
    if answer.status != "ok":
        answer.end_ns = time.monotonic_ns()
        answer.completion_tokens = None
    return answer


async def _read(response: aiohttp.ClientResponse, answer: Answer) -> None:
    """Read the stream.

    Raises:
        ValueError: an error status, something that is no stream, an error in it, or an end before it was over.
    """
    if response.status != 200:
        text = (await response.content.read(SHOWN)).decode(errors="replace")
        raise ValueError(f"HTTP {response.status}: {text}")
    reader = EventReader()
    async for piece in response.content.iter_any():
        now = time.monotonic_ns()
        if _take(reader.take(piece), answer, now):
            with suppress(TimeoutError, aiohttp.ClientError):  # the end of the body, so that the connection can stay
                await asyncio.wait_for(response.content.read(), LAST_BYTES_S)
            return
    _take(reader.end(), answer, time.monotonic_ns())
    if answer.status == "ok":
        return
    if answer.finish_reason is None:
        if not answer.chunks and reader.foreign:
            start = reader.foreign[:80].decode(errors="replace")
            raise ValueError(f"no stream: the body is {response.content_type} and begins with {start!r}")
        raise ValueError("cut off: the stream ended before the response did")
    answer.end_ns, answer.status = time.monotonic_ns(), "ok"


def _take(events: list[Any], answer: Answer, now_ns: int) -> bool:
    """Note events; returns whether the stream is over."""
    for event in events:
        if event == DONE:
            answer.end_ns, answer.status = now_ns, "ok"
            return True
        if isinstance(event, dict):
            answer.take(event, now_ns)
    return False
