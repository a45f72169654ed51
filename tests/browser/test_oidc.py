"""The login at a provider, from the first page to the logout, with a provider of our own on this machine."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serving"))

from server import Server, serving

pytestmark = pytest.mark.browser
for library in ("authlib", "httpx", "joserfc"):
    pytest.importorskip(library)


class Provider(ThreadingHTTPServer):
    """Lets in whoever asks, as the account that a test sets."""

    def __init__(self) -> None:
        from joserfc.jwk import RSAKey

        super().__init__(("127.0.0.1", 0), Answers)
        self.key = RSAKey.generate_key(2048, parameters={"kid": "k", "use": "sig", "alg": "RS256"})
        self.base = f"http://127.0.0.1:{self.server_port}"
        self.nonce, self.mail = "", ""


class Answers(BaseHTTPRequestHandler):
    server: Provider

    def log_message(self, *words: Any) -> None:
        pass

    def say(self, what: Any) -> None:
        body = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        base, asked = self.server.base, urlsplit(self.path)
        if asked.path == "/jwks":
            self.say({"keys": [self.server.key.as_dict(private=False)]})
        elif asked.path == "/authorize":
            fields = dict(parse_qsl(asked.query))
            self.server.nonce = fields["nonce"]
            self.send_response(302)
            self.send_header(
                "location", f"{fields['redirect_uri']}?{urlencode({'code': 'c', 'state': fields['state']})}"
            )
            self.end_headers()
        else:
            self.say(
                {
                    "issuer": base,
                    "authorization_endpoint": f"{base}/authorize",
                    "token_endpoint": f"{base}/token",
                    "jwks_uri": f"{base}/jwks",
                    "id_token_signing_alg_values_supported": ["RS256"],
                    "response_types_supported": ["code"],
                    "subject_types_supported": ["public"],
                }
            )

    def do_POST(self) -> None:
        from joserfc import jwt

        self.rfile.read(int(self.headers["content-length"]))
        now = int(time.time())
        claims = {"iss": self.server.base, "sub": "1", "aud": "id", "iat": now, "exp": now + 3600}
        claims |= {"nonce": self.server.nonce, "email": self.server.mail, "email_verified": True}
        token = jwt.encode({"alg": "RS256", "kid": "k"}, claims, self.server.key)
        self.say({"access_token": "x", "token_type": "Bearer", "expires_in": 3600, "id_token": token})


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    found = Provider()
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


@pytest.fixture(scope="module")
def served(installed: None, provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    secrets = home / ".streamlit" / "secrets.toml"
    secrets.parent.mkdir()

    def written(port: int) -> None:
        secrets.write_text(
            f'[auth]\nredirect_uri = "http://127.0.0.1:{port}/oauth2callback"\n'
            'cookie_secret = "for the cookies of a test, long enough"\nclient_id = "id"\nclient_secret = "secret"\n'
            f'server_metadata_url = "{provider.base}/.well-known/openid-configuration"\n'
        )

    options = ("--allow-host", "gap.example", "--allow-user", "@lab.example")
    with serving(home, *options, environment={"HOME": str(home)}, before=written) as server:
        yield server


@pytest.mark.parametrize(("mail", "comes"), [("ann@lab.example", True), ("eve@other.example", False)])
def test_an_account_of_the_provider(browser: Any, served: Server, provider: Provider, mail: str, comes: bool) -> None:
    provider.mail = mail
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"http://{served.host}/percentiles?v=1")
    page.get_by_role("button", name="Log in").wait_for()
    assert "ample8" not in page.locator("body").inner_text()
    page.get_by_role("button", name="Log in").click()
    if comes:
        page.get_by_text("ample8: 8 lanes").first.wait_for()
        page.get_by_role("button", name="Log out").click()
        page.get_by_text("Log in to see this gapscope.").wait_for()
    else:
        page.get_by_text("This account may not see this gapscope.").wait_for()
    assert "ample8" not in page.get_by_test_id("stMain").inner_text()
    context.close()
