"""What a server says of itself: engine, version, model, limits, cache."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from engine.errors import GapscopeError
from engine.recording.client.sending import API_KEY

ANSWER_S = 10.0
TRIES = 50
TRY_EVERY_S = 0.2
_CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_NUMBERED = {"block_size": "block_size", "num_gpu_blocks": "num_kv_blocks"}


@dataclass
class Endpoint:
    """A server as it describes itself; None is unknown.

    ``engine`` is vllm, sglang or None. ``cache`` has ``block_size``, ``num_kv_blocks``, ``prefix_caching`` and its hash
    as far as the server's metrics tell.
    """

    url: str
    model: str
    engine: str | None = None
    version: str | None = None
    max_model_len: int | None = None
    cache: dict[str, Any] = field(default_factory=dict)

    @property
    def exact_lengths(self) -> bool:
        """Whether it knows how to put out exactly as many tokens as asked for."""
        return self.engine is not None

    @property
    def is_local(self) -> bool:
        """Whether it stands on this machine."""
        return urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")


async def look_at(http: aiohttp.ClientSession, url: str, model: str | None) -> Endpoint:
    """Ask a server what it is.

    Raises:
        GapscopeError: nothing answers at ``url``, or it does not serve ``model`` (None: its only one).
    """
    url = url.rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise GapscopeError(f"--url {url}: expected the address of a server, as http://127.0.0.1:8000.")
    listed = await _json(http, f"{url}/v1/models", needed=True)
    given = listed.get("data")
    if not isinstance(given, list):
        raise GapscopeError(f"{url}/v1/models lists no models: expected `data` with a list; is this the right server?")
    models = {str(one["id"]): one for one in given if isinstance(one, dict) and "id" in one}
    if model is None and len(models) == 1:
        model = next(iter(models))
    if model not in models:
        names = ", ".join(models) or "none"
        asked = "no --model is named" if model is None else f"there is no model {model}"
        raise GapscopeError(f"{url} serves {names}, but {asked}: name one of its models with --model.")
    endpoint = Endpoint(url, model)
    limit = models[model].get("max_model_len")
    endpoint.max_model_len = limit if type(limit) is int else None
    version = (await _json(http, f"{url}/version")).get("version")
    if isinstance(version, str):
        endpoint.engine, endpoint.version = "vllm", version
        endpoint.cache = _cache(await _text(http, f"{url}/metrics"))
    elif info := await _json(http, f"{url}/get_server_info"):
        endpoint.engine, endpoint.version = "sglang", str(info.get("version") or "") or None
        endpoint.cache = {"block_size": info["page_size"]} if type(info.get("page_size")) is int else {}
    return endpoint


async def reset_cache(http: aiohttp.ClientSession, endpoint: Endpoint) -> bool:
    """Have the server forget its prefix cache; returns whether it did. It does so only while nothing runs."""
    for _ in range(TRIES):
        try:
            async with http.post(f"{endpoint.url}/reset_prefix_cache") as response:
                if response.status == 200:
                    return True
                if response.status in (404, 405):
                    return False
        except (aiohttp.ClientError, TimeoutError):
            return False
        await asyncio.sleep(TRY_EVERY_S)
    return False


def _cache(metrics: str) -> dict[str, Any]:
    """What vLLM's metrics say of the cache."""
    found = _CACHE.search(metrics)
    labels = dict(_LABEL.findall(found[1])) if found else {}
    told: dict[str, Any] = {
        name: int(labels[label]) for label, name in _NUMBERED.items() if labels.get(label, "").isdecimal()
    }
    if "num_kv_blocks" in told:
        told["num_usable_kv_blocks"] = told["num_kv_blocks"] - 1  # one is vLLM's null block
    if labels.get("enable_prefix_caching") in ("True", "False"):
        told["prefix_caching"] = labels["enable_prefix_caching"] == "True"
    if labels.get("prefix_caching_hash_algo"):
        told["prefix_caching_hash_algo"] = labels["prefix_caching_hash_algo"]
    return told


async def _json(http: aiohttp.ClientSession, url: str, needed: bool = False) -> dict[str, Any]:
    """The JSON object at an address; empty where there is none, unless it is ``needed``."""
    try:
        async with http.get(url, timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as response:
            if response.status == 200:
                value = await response.json(content_type=None)
                return value if isinstance(value, dict) else {}
            problem = f"HTTP {response.status}"
            if needed and response.status in (401, 403):
                raise GapscopeError(f"{url} wants a key ({problem}): set {API_KEY} to one that it takes.")
    except TimeoutError:
        problem = f"no answer in {ANSWER_S:g} s"
    except (aiohttp.ClientError, ValueError) as error:
        problem = str(error) or type(error).__name__
    if needed:
        raise GapscopeError(
            f"No OpenAI-compatible server answers at {url} ({problem}): is it running, and is --url right?"
        )
    return {}


async def _text(http: aiohttp.ClientSession, url: str) -> str:
    try:
        async with http.get(url, timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as response:
            return await response.text(errors="replace") if response.status == 200 else ""
    except (aiohttp.ClientError, TimeoutError):
        return ""
