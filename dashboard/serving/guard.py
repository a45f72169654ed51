"""What stands before Streamlit: foreign hosts and origins turned away, headers, bounds, and the login by password.

Streamlit looks at Host and Origin for its WebSocket alone; here every request is looked at. Nothing but the login form
and the word that the server lives is answered to who is not logged in: no page, no script, no file, no socket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from starlette.concurrency import run_in_threadpool

from dashboard.serving.binding import Binding
from dashboard.serving.granted import is_granted
from dashboard.serving.login import CSP as LOGIN_CSP
from dashboard.serving.login import login_page
from dashboard.serving.password import LONGEST, Attempts, matches
from dashboard.serving.sessions import Sessions

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "gapscope_session"
LOGIN, LOGOUT, HEALTH = "/login", "/logout", "/_stcore/health"
UPLOAD = "/_stcore/upload_file/"
MOST_SOCKETS = 64
MOST_UPLOADS = 4
"""At once; each is held in memory."""
MOST_HELD_MB = 1200
"""Uploads of all sessions together that are held until they are imported or removed."""
MOST_BODY = 4 * LONGEST + 8192
"""Of a login form."""

HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}


def content_policy(scripts: tuple[str, ...]) -> str:
    """The policy of the pages: nothing from elsewhere. ``scripts`` are digests of the inline scripts of the shell.

    Streamlit writes style attributes and loads its components from blobs, which only a script of the page makes; Plotly
    draws its pictures from data and blob addresses.
    """
    allowed = " ".join(["'self'", "blob:", *(f"'{digest}'" for digest in scripts)])
    return (
        f"default-src 'self'; script-src {allowed}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "font-src 'self' data:; media-src 'self' blob:; worker-src 'self' blob:; connect-src 'self' data: blob:; "
        "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
    )


class Guard:
    """The middleware. ``held_bytes`` says how much uploads take in memory at the moment."""

    def __init__(
        self,
        app: App,
        binding: Binding,
        *,
        password_hash: str = "",
        policy: str = "",
        held_bytes: Callable[[], int] = lambda: 0,
        sessions: Sessions | None = None,
        attempts: Attempts | None = None,
    ) -> None:
        self.app = app
        self.binding = binding
        self.password_hash = password_hash
        self.headers = HEADERS | ({"content-security-policy": policy} if policy else {})
        self.held_bytes = held_bytes
        self.sessions = sessions or Sessions()
        self.attempts = attempts or Attempts()
        self.sockets = self.uploads = self.trying = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request or one socket."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, self._with_headers(send))
        else:
            await self._socket(scope, receive, send)

    # what is asked for, and by whom

    def refusal(self, headers: Mapping[str, str], *, socket: bool = False) -> str:
        """Why a request is turned away before anything else is looked at; empty where it is not."""
        host = headers.get("host", "")
        if not allowed_host(host, self.binding.hosts):
            return "This host name is not served here: gapscope serve --allow-host NAME allows one."
        origin = headers.get("origin")
        if origin is not None and urlsplit_safe(origin) != host.lower():
            return "A page of another origin may not ask here."
        followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if not socket and headers.get("sec-fetch-site") in ("cross-site", "same-site") and not followed:
            return "A page of another origin may not ask here."
        return ""

    def let_in(self, headers: Mapping[str, str]) -> bool:
        """Whether whoever asks is logged in, where that is by password."""
        return not self.password_hash or self.sessions.valid(token_of(headers))

    # HTTP

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        path, method = scope["path"], scope["method"]
        if why := self.refusal(headers):
            await answer(send, 403, why)
        elif self.password_hash and path == LOGIN and method == "POST":
            await self._login(scope, receive, send)
        elif self.password_hash and path == LOGOUT:
            await self._logout(method, headers, send)
        elif path != HEALTH and not self.let_in(headers):
            if method == "GET" and not path.startswith(("/_stcore", "/media", "/component", "/static")):
                await self._form(send, 401, here(scope))
            else:
                await answer(send, 401, "Log in first.")
        elif path.startswith(UPLOAD) and method == "PUT":
            await self._upload(scope, receive, send, headers)
        else:
            await self.app(scope, receive, send)

    async def _upload(self, scope: Scope, receive: Receive, send: Send, headers: Mapping[str, str]) -> None:
        """Pass an upload on, unless too much is held in memory already."""
        if self.binding.login == "oidc" and not is_granted(scope["path"].removeprefix(UPLOAD).split("/")[0]):
            await answer(send, 401, "Log in first.")
            return
        length = headers.get("content-length", "")
        if not length.isdecimal():
            await answer(send, 411, "An upload says its length.")
            return
        if self.uploads >= MOST_UPLOADS or self.held_bytes() + int(length) > MOST_HELD_MB * 1_000_000:
            await answer(
                send, 503, "Too much is being uploaded: import or remove what was, or use gapscope import.", retry_s=10
            )
            return
        self.uploads += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.uploads -= 1

    # the login by password

    async def _login(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive, MOST_BODY)
        fields = parse_qs((body or b"").decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=8)
        onward = inside((fields.get("next") or ["/"])[-1])
        who = (scope.get("client") or ("",))[0]
        wait_s = self.attempts.wait_s(who)
        if body is None or wait_s or self.trying >= 4:
            words = f"Too many wrong passwords: try again in {int(wait_s) + 1} s."
            await self._form(send, 429, onward, words, retry_s=int(wait_s) + 1)
            return
        self.attempts.failed(who)  # before the hash is worked out, so that many at once do not slip through
        self.trying += 1
        try:
            right = await run_in_threadpool(matches, (fields.get("password") or [""])[-1], self.password_hash)
        finally:
            self.trying -= 1
        if not right:
            await self._form(send, 401, onward, "This is not the password.")
            return
        self.attempts.succeeded(who)
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        cookie = (
            f"{COOKIE}={self.sessions.open()}; Path=/; HttpOnly; SameSite=Lax; "
            f"Max-Age={int(self.sessions.lifetime_s)}{secure}"
        )
        await answer(send, 303, "", {"location": onward, "set-cookie": cookie})

    async def _logout(self, method: str, headers: Mapping[str, str], send: Send) -> None:
        if method == "GET" and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            await answer(send, 403, "A page of another origin may not log you out.")
            return
        self.sessions.close(token_of(headers))
        gone = f"{COOKIE}=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0"
        await answer(send, 303, "", {"location": "/", "set-cookie": gone, "clear-site-data": '"cache", "storage"'})

    async def _form(self, send: Send, status: int, onward: str, words: str = "", *, retry_s: int = 0) -> None:
        body = login_page(onward, words).encode()
        extra = {"content-type": "text/html; charset=utf-8", "content-security-policy": LOGIN_CSP}
        await answer(send, status, body, extra, retry_s=retry_s)

    # the WebSocket

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        if self.refusal(headers, socket=True) or not self.let_in(headers) or self.sockets >= MOST_SOCKETS:
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # before it was accepted: 403
            return
        closed = False

        async def received() -> Message:
            """A socket ends with the session it was opened in."""
            message = await receive()
            return message if self.let_in(headers) else {"type": "websocket.disconnect", "code": 1008}

        async def sent(message: Message) -> None:
            nonlocal closed
            if closed:
                return
            if not self.let_in(headers):
                closed, message = True, {"type": "websocket.close", "code": 1008}
            await send(message)

        self.sockets += 1
        try:
            await self.app(scope, received, sent)
        finally:
            self.sockets -= 1

    def _with_headers(self, send: Send) -> Send:
        """Every answer carries the headers; pages and files behind a login are not kept by anyone on the way."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                have = {name.lower() for name, _ in message.get("headers", ())}
                more = [(n.encode(), v.encode()) for n, v in self.headers.items() if n.encode() not in have]
                if self.binding.login and b"cache-control" not in have:
                    more.append((b"cache-control", b"no-store"))
                message["headers"] = [*message.get("headers", ()), *more]
            await send(message)

        return sent


def headers_of(scope: Scope) -> dict[str, str]:
    """Headers by their names in lower case; of one that is given twice, something that nobody allows."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        twice = key in found and key in ("host", "origin", "content-length")
        found[key] = "given twice" if twice else value.decode("latin-1")
    return found


def allowed_host(host: str, names: tuple[str, ...]) -> bool:
    """Whether a Host header names one of the hosts that are served; its port does not matter."""
    try:
        parts = urlsplit(f"//{host}")
        name, _ = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return False
    if not name or parts.netloc != host or parts.path or parts.query or parts.username is not None:
        return False
    return any(name == one or (one.startswith("*.") and name.endswith(one[1:])) for one in names)


def urlsplit_safe(origin: str) -> str:
    """Host and port of an origin; something that is no host where it is none."""
    try:
        return urlsplit(origin).netloc.lower() or "no host"
    except ValueError:
        return "no host"


def token_of(headers: Mapping[str, str]) -> str | None:
    """The session's token in the cookies of a request."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return found.value if found else None


def here(scope: Scope) -> str:
    """Path and query that were asked for, to come back to after the login."""
    query = scope.get("query_string", b"").decode("latin-1")
    return quote(scope["path"], safe="/._-~") + (f"?{query}" if query else "")


def inside(target: str) -> str:
    """Where the login leads: within this server, else its first page."""
    plain = target.isascii() and target.isprintable() and "\\" not in target
    return target if plain and target.startswith("/") and not target.startswith("//") else "/"


async def read_body(receive: Receive, most: int) -> bytes | None:
    """The body of a request; None where it is longer than ``most``."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > most or message["type"] == "http.disconnect":
            return None
        if not message.get("more_body"):
            return body


async def answer(
    send: Send, status: int, body: str | bytes, headers: Mapping[str, str] | None = None, *, retry_s: int = 0
) -> None:
    """A whole answer, never cached."""
    said = body.encode() if isinstance(body, str) else body
    all_headers = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-store"} | dict(headers or {})
    all_headers |= {"content-length": str(len(said))} | ({"retry-after": str(retry_s)} if retry_s else {})
    pairs = [(name.encode(), value.encode("latin-1", "replace")) for name, value in all_headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": said})
