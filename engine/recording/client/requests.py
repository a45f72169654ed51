"""How a server is asked: the addresses, fields and ids of requests."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import aiohttp
import orjson

from engine.bundle import slugify
from engine.errors import GapscopeError
from engine.recording.client.answer import Answer
from engine.recording.client.prompts import WORDS, Prompt
from engine.recording.client.sending import Call, send
from engine.recording.endpoint import Endpoint
from engine.traces.prompts import TokenSource

TAG_CHARS = 24


class Asking:
    """Asks one server for completions of token ids, or for chats.

    Engines that know how are told to put out exactly as many tokens as asked for. ``sampling`` says what is asked
    besides.
    """

    def __init__(self, http: aiohttp.ClientSession, endpoint: Endpoint, chat: bool) -> None:
        self._http = http
        self._endpoint = endpoint
        self._chat = chat
        self.sampling: dict[str, Any] = {
            "temperature": 0.0,
            "ignore_eos": endpoint.exact_lengths,
            "exact_output_length": endpoint.exact_lengths,
        }

    def tag(self, name: str) -> str:
        """What the ids of a load begin with; no two loads share it."""
        return f"{slugify(name)[:TAG_CHARS]}-{secrets.token_hex(3)}x"

    async def send(self, request_id: str, prompt: Prompt, tokens: int) -> Answer:
        """Ask for so many tokens after this prompt."""
        url = f"{self._endpoint.url}/v1/{'chat/completions' if self._chat else 'completions'}"
        return await send(self._http, Call(request_id, url, self._body(request_id, prompt, tokens)))

    async def try_out(self, source: TokenSource) -> str:
        """Ask for one token; returns the id of the request.

        Raises:
            GapscopeError: the server does not answer that.
        """
        prompt = Prompt({"prompt": source.ids("try out", 8).tolist()}, "", 8)
        if self._chat:
            prompt = Prompt({"messages": [{"role": "user", "content": WORDS[0]}]}, "", None)
        name = self.tag("try-out")
        answer = await self.send(name, prompt, 1)
        if answer.status == "canceled":
            raise asyncio.CancelledError
        if answer.status != "ok":
            other = "without --chat" if self._chat else "with --chat, if it takes no token ids"
            raise GapscopeError(
                f"{self._endpoint.url} does not answer {self._endpoint.model} as asked ({answer.error}): expected "
                f"streamed {'chats' if self._chat else 'completions of token ids'}; try {other}."
            )
        return name

    def _body(self, request_id: str, prompt: Prompt, tokens: int) -> bytes:
        body: dict[str, Any] = {
            "model": self._endpoint.model,
            **prompt.fields,
            "max_tokens": tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._endpoint.exact_lengths:
            body |= {"min_tokens": tokens, "ignore_eos": True}
        if self._endpoint.engine == "vllm":
            # The session names the request in vLLM's KV events.
            body |= {"return_token_ids": True, "request_id": request_id, "session_id": request_id}
        return orjson.dumps(body)
