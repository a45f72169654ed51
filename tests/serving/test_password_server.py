"""A real server behind a password, asked byte by byte: nobody gets anything without it, and nothing foreign gets in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from server import Server, serving

from dashboard.serving.password import make_hash, write_hash
from dashboard.view import PAGES

PASSWORD = "correct horse battery"
FORM = "application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    write_hash(make_hash(PASSWORD), folder / "password")
    with serving(folder, "--allow-host", "gap.example", "--password-file", str(folder / "password")) as server:
        yield server


def log_in(server: Server, password: str = PASSWORD, onward: str = "/", **headers: str) -> tuple[int, str, str]:
    """Status, where it leads, and the cookie."""
    body = urlencode({"password": password, "next": onward}).encode()
    found = server.ask("POST", "/login", body, content_type=FORM, **headers)
    return found.status, found.headers.get("location", ""), found.headers.get("set-cookie", "").split(";")[0]


@pytest.fixture(scope="module")
def cookie(served: Server) -> str:
    status, _, found = log_in(served)
    assert status == 303
    return found


@pytest.mark.parametrize("path", ["/", *(f"/{page}?v=1&m=x" for page in PAGES), "/nowhere", "/login"])
def test_every_page_is_the_form_and_nothing_else(served: Server, path: str) -> None:
    found = served.ask("GET", path)
    assert found.status == 401
    assert b'type="password"' in found.body
    assert b"ample8" not in found.body
    assert b"<script" not in found.body
    assert "default-src 'none'" in found.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/_stcore/host-config"),
        ("GET", "/_stcore/metrics"),
        ("GET", "/_stcore/agent"),
        ("POST", "/_stcore/agent"),
        ("GET", "/media/0123456789abcdef.csv"),
        ("PUT", "/_stcore/upload_file/session/file"),
        ("DELETE", "/_stcore/upload_file/session/file"),
        ("GET", "/static/js/index.js"),
        ("GET", "/auth/login"),
        ("GET", "/app/static/x"),
        ("GET", "//media/x"),
    ],
)
def test_nothing_behind_the_pages_is_open(served: Server, method: str, path: str) -> None:
    found = served.ask(method, path, b"" if method != "GET" else None)
    assert found.status in (400, 401)
    assert b"ample8" not in found.body


def test_the_socket_opens_for_who_is_logged_in_only(served: Server, cookie: str) -> None:
    assert served.socket_status() == 403
    assert served.socket_status(cookie="gapscope_session=guessed") == 403
    assert served.socket_status(cookie=cookie) == 101
    assert served.socket_status(cookie=cookie, origin=f"http://{served.host}") == 101


def test_foreign_hosts_and_origins_are_refused_logged_in_or_not(served: Server, cookie: str) -> None:
    own = f"127.0.0.1:{served.port}"
    foreign = ["evil.example", "evil.example:80", "gap.example.evil", f"{own}@evil.example", "", "127.0.0.1.evil.com"]
    for host in foreign:
        for path in ("/", "/_stcore/health", "/media/x", "/_stcore/host-config"):
            assert served.ask("GET", path, host=host, cookie=cookie).status in (400, 403), (host, path)
        assert served.socket_status(host=host, cookie=cookie) in (400, 403), host
    assert served.ask("GET", "/_stcore/health", host="gap.example").status == 200
    assert served.ask("GET", "/_stcore/health", host=f"localhost:{served.port}").status == 200
    for origin in ("http://evil.example", "null", f"http://localhost:{served.port + 1}", "http://[", "file://"):
        assert served.socket_status(cookie=cookie, origin=origin) == 403, origin
        for method, path in (("GET", "/"), ("PUT", "/_stcore/upload_file/s/f"), ("POST", "/login"), ("GET", "/logout")):
            found = served.ask(method, path, b"" if method != "GET" else None, cookie=cookie, origin=origin)
            assert found.status == 403, (origin, path)
    assert served.socket_status(cookie=cookie, host="gap.example", origin="https://gap.example") == 101


def test_pages_elsewhere_may_link_here_but_not_load_from_here(served: Server, cookie: str) -> None:
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert served.ask("GET", "/verdict", cookie=cookie, **link).status == 200
    for other in (
        link | {"sec_fetch_mode": "no-cors", "sec_fetch_dest": "script"},
        link | {"sec_fetch_dest": "iframe"},
        link | {"sec_fetch_site": "same-site", "sec_fetch_mode": "cors", "sec_fetch_dest": "empty"},
    ):
        assert served.ask("GET", "/verdict", cookie=cookie, **other).status == 403
    assert served.ask("GET", "/logout", cookie=cookie, **link).status == 403


def test_the_login_leads_back_to_the_view_and_nowhere_else(served: Server) -> None:
    asked = served.ask("GET", "/percentiles?v=1&metric=TPOT%22%3E%3Cscript%3E")
    assert b'value="/percentiles?v=1&amp;metric=TPOT%22%3E%3Cscript%3E"' in asked.body
    assert log_in(served, onward="/percentiles?v=1&metric=TPOT")[1] == "/percentiles?v=1&metric=TPOT"
    for outside in ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/a\r\nx: y"):
        assert log_in(served, onward=outside)[1] == "/"


def test_pages_open_after_the_login_and_close_after_the_logout(served: Server) -> None:
    cookie = log_in(served)[2]
    page = served.ask("GET", "/verdict", cookie=cookie)
    assert page.status == 200
    assert b"password" not in page.body
    _, held = served.handshake(cookie=cookie)
    out = served.ask("GET", "/logout", cookie=cookie)
    assert (out.status, out.headers["location"]) == (303, "/")
    assert "Max-Age=0" in out.headers["set-cookie"]
    assert served.ask("GET", "/verdict", cookie=cookie).status == 401
    assert served.socket_status(cookie=cookie) == 403
    held.sendall(b"\x82\x80\x00\x00\x00\x00")  # an empty message: the socket of the session that ended says no more
    rest = b""
    while part := held.recv(4096):
        rest += part
    assert b"ample8" not in rest


def test_every_answer_carries_the_headers(served: Server, cookie: str) -> None:
    for path in ("/", "/verdict", "/_stcore/health", "/_stcore/host-config", "/nowhere"):
        found = served.ask("GET", path, cookie=cookie).headers
        assert found["x-content-type-options"] == "nosniff"
        assert found["x-frame-options"] == "DENY"
        assert found["referrer-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in found["content-security-policy"]
        assert "default-src 'self'" in found["content-security-policy"]
        scripts = found["content-security-policy"].split("script-src ")[1].split(";")[0]
        assert "unsafe" not in scripts
        assert "*" not in scripts
    set_cookie = served.ask("POST", "/login", urlencode({"password": PASSWORD}).encode()).headers["set-cookie"]
    assert "HttpOnly" in set_cookie
    assert "SameSite=Lax" in set_cookie


def test_uploads_need_a_live_session_of_streamlit_and_a_bounded_length(served: Server, cookie: str) -> None:
    path = "/_stcore/upload_file/none/none"
    assert served.ask("PUT", path, b"x", cookie=cookie).status == 403  # without the token that a page holds
    assert served.ask("PUT", path, cookie=cookie, transfer_encoding="chunked", body=b"0\r\n\r\n").status == 411
    assert served.ask("PUT", path, cookie=cookie, content_length="5000000000").status == 503


def test_wrong_passwords_are_few_and_nothing_of_them_is_logged(served: Server) -> None:
    tried = [log_in(served, f"wrong-secret-{k}")[0] for k in range(7)]
    assert tried == [401] * 5 + [429] * 2
    status, _, cookie = log_in(served)
    assert (status, cookie) == (429, "")  # the right one waits as well
    long = served.ask("POST", "/login", b"password=" + b"x" * 100_000)
    assert long.status == 429
    log = served.log.read_text()
    assert "wrong-secret" not in log
    assert PASSWORD not in log
    assert "gapscope_session" not in log
    assert "open to others as 127.0.0.1, localhost, ::1, gap.example, login by password" in log
