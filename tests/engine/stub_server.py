"""A server of completions that misbehaves as it is told, and writes down what it really did.

``script`` has a behaviour for each request in the order of arrival (the try-out before a load is not counted), ``{}``
for the rest: one token to a chunk, exact lengths, usage. A behaviour is a mapping: ``slow_s`` before the headers,
``gap_s`` between chunks, ``per_chunk`` tokens, ``status`` in place of 200, ``error_after`` chunks an error in the
stream, ``cut_after`` chunks the connection breaks, ``stall_after`` chunks nothing comes any more, ``empty`` ordinals of
tokens without text, ``usage`` False, ``ids`` False, ``done`` False (the stream ends without its last line), ``echo`` an
id other than the client's, ``more`` tokens than asked for, ``prompt`` tokens that it says it read, ``body`` something
that is no stream, ``close`` the connection after the response.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from typing import Any

from aiohttp import web

GAP_S = 0.002


class Stub:
    """Serves in a thread of its own on loopback; ``log`` has a record of each request, in order of arrival."""

    def __init__(self, script: Sequence[dict[str, Any]] = (), model: str = "stub", limit: int = 4096) -> None:
        self.script = list(script)
        self.model, self.limit = model, limit
        self.engine_version: str | None = "0.32.0"
        self.completions = True
        self.key: str | None = None
        self.log: list[dict[str, Any]] = []
        self.resets = 0
        self.in_flight = self.most_in_flight = 0
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Stub:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/reset_prefix_cache", self._reset)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._completions)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _models(self, request: web.Request) -> web.Response:
        self._let_in(request)
        return web.json_response({"data": [{"id": self.model, "max_model_len": self.limit}]})

    def _let_in(self, request: web.Request) -> None:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            raise web.HTTPUnauthorized

    async def _version(self, _: web.Request) -> web.Response:
        if self.engine_version is None:
            raise web.HTTPNotFound
        return web.json_response({"version": self.engine_version})

    async def _metrics(self, _: web.Request) -> web.Response:
        labels = 'block_size="16",enable_prefix_caching="True",num_gpu_blocks="64",prefix_caching_hash_algo="sha256"'
        return web.Response(text=f"# HELP x y\nvllm:cache_config_info{{{labels}}} 1.0\n")

    async def _reset(self, _: web.Request) -> web.Response:
        self.resets += 1
        return web.Response()

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        self._let_in(request)
        body = await request.json()
        tries_out = "try-out" in str(request.headers["X-Request-Id"])
        how = {} if tries_out or len(self.log) >= len(self.script) else self.script[len(self.log)]
        if not self.completions and "prompt" in body:
            raise web.HTTPNotFound(text="no completions here")
        record = {"id": request.headers["X-Request-Id"], "body": body, "came": time.monotonic(), "how": how, "sent": []}
        record |= {"end": "open", "ended": None}
        if not tries_out:
            self.log.append(record)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._answer(request, body, how, record)
        except (ConnectionError, asyncio.CancelledError):
            record["end"] = "left by the client"
            raise
        finally:
            self.in_flight -= 1
            record["ended"] = time.monotonic()

    async def _answer(
        self, request: web.Request, body: dict[str, Any], how: dict[str, Any], record: dict[str, Any]
    ) -> web.StreamResponse:
        await asyncio.sleep(how.get("slow_s", 0))
        if how.get("status", 200) != 200:
            record["end"] = "status"
            return web.Response(status=how["status"], text="told to fail")
        if "body" in how:
            record["end"] = "body"
            return web.Response(text=how["body"], content_type="text/html")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if how.get("close"):
            response.force_close()
        await response.prepare(request)
        chat = "messages" in body
        name = how.get("echo") or f"{'chatcmpl' if chat else 'cmpl'}-{record['id']}"
        tokens = body["max_tokens"] + how.get("more", 0)
        per = how.get("per_chunk", 1)
        ids = [1000 + (len(self.log) * 131 + n) % 5000 for n in range(tokens)]
        for number, first in enumerate(range(0, tokens, per)):
            if number == how.get("error_after"):
                await self._event(response, {"error": {"code": 500, "message": "told to break"}})
                record["end"] = "error"
                return response
            if number == how.get("cut_after"):
                record["end"] = "cut"
                assert request.transport is not None
                request.transport.close()
                return response
            if number == how.get("stall_after"):
                record["end"] = "stall"
                await asyncio.sleep(30)
            part = ids[first : first + per]
            text = "" if number in how.get("empty", ()) else " w" * len(part)
            choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if first + per >= tokens else None}
            choice |= {"delta": {"content": text}} if chat else {"text": text}
            if how.get("ids", True) and body.get("return_token_ids"):
                choice["token_ids"] = part
            record["sent"].append((time.monotonic(), len(part), bool(text)))
            await self._event(response, {"id": name, "choices": [choice]})
            await asyncio.sleep(how.get("gap_s", GAP_S))
        if how.get("usage", True):
            prompt = how.get("prompt") or (len(body["prompt"]) if "prompt" in body else 7)
            usage = {
                "prompt_tokens": prompt,
                "completion_tokens": tokens,
                "prompt_tokens_details": {"cached_tokens": 0},
            }
            await self._event(response, {"id": name, "choices": [], "usage": usage})
        if how.get("done", True):
            await response.write(b"data: [DONE]\n\n")
        record["end"] = "whole"
        await response.write_eof()
        return response

    @staticmethod
    async def _event(response: web.StreamResponse, event: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
