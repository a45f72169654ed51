"""Where gapscope listens, who it lets in, and what it refuses before it listens."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from dashboard.cli import main
from dashboard.serving import binding, oidc
from dashboard.serving.binding import bind, for_others, from_environment, is_loopback, to_environment
from dashboard.serving.guard import allowed_host, inside
from dashboard.serving.password import Attempts, kept_hash, make_hash, matches, write_hash
from dashboard.serving.sessions import Sessions
from engine.errors import GapscopeError

PASSWORD = "correct horse battery"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("host", "names", "wide"),
    [
        ("127.0.0.1", [], False),
        ("localhost", [], False),
        ("::1", [], False),
        ("127.8.9.1", ["localhost"], False),
        ("127.0.0.1", ["gap.example"], True),  # a proxy on this machine is how others come
        ("192.168.1.7", [], True),
        ("0.0.0.0", ["gap.example"], True),
        ("::", ["gap.example"], True),
        ("my-host.example", [], True),
    ],
)
def test_beyond_loopback_needs_a_login(host: str, names: list[str], wide: bool) -> None:
    if wide:
        with pytest.raises(GapscopeError, match="can be reached from other machines, and no login is set up"):
            bind(host, 8501, names, "")
    else:
        assert not bind(host, 8501, names, "").wide
    assert bind(host, 8501, names, "password").wide is wide


def test_a_wildcard_names_itself() -> None:
    with pytest.raises(GapscopeError, match="--allow-host NAME"):
        bind("0.0.0.0", 8501, [], "password")
    found = bind("0.0.0.0", 8501, ["Gap.Example."], "password")
    assert found.hosts == ("127.0.0.1", "localhost", "::1", "gap.example")
    assert found.address == "http://gap.example:8501"


@pytest.mark.parametrize("name", ["*", "", "http://gap.example", "gap.example/x", "gap example", "a@b", "*.", "-x"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(GapscopeError, match="expected a host name"):
        bind("127.0.0.1", 8501, [name], "password")


@pytest.mark.parametrize("port", [0, -1, 65_536, 70_000])
def test_ports_that_are_none(port: int) -> None:
    with pytest.raises(GapscopeError, match="65535"):
        bind("127.0.0.1", port, [], "")


def test_a_binding_travels_in_the_environment() -> None:
    found = bind("0.0.0.0", 8600, ["gap.example"], "oidc", users=["A@b.example"])
    assert from_environment({binding.VARIABLE: to_environment(found)}) == found
    assert from_environment({}) is None


def test_paths_of_this_machine_are_for_who_sits_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(binding.VARIABLE, raising=False)
    assert [for_others(one) for one in ("127.0.0.1", "localhost", "0.0.0.0", None)] == [False, False, True, True]
    monkeypatch.setenv(binding.VARIABLE, to_environment(bind("127.0.0.1", 8501, ["gap.example"], "password")))
    assert for_others("127.0.0.1")
    assert is_loopback("127.0.0.1")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("gap.example", True),
        ("GAP.example:8501", True),
        ("gap.example.", True),
        ("a.wide.example", True),
        ("[::1]:8501", True),
        ("wide.example", False),
        ("evil.example", False),
        ("gap.example.evil", False),
        ("evilgap.example", False),
        ("gap.example@evil.example", False),
        ("evil.example@gap.example", False),
        ("gap.example/evil", False),
        ("gap.example:port", False),
        ("gap.example:99999", False),
        ("", False),
        ("given twice", False),
    ],
)
def test_host_headers(host: str, allowed: bool) -> None:
    assert allowed_host(host, ("gap.example", "*.wide.example", "::1")) is allowed


def test_only_addresses_inside_are_led_to() -> None:
    assert inside("/verdict?v=2&m=x") == "/verdict?v=2&m=x"
    for outside in ("", "verdict", "//x", "/\\x", "https://x", "/a\nb", "/ü"):
        assert inside(outside) == "/"


def test_a_hash_is_scrypt_as_the_standard_library_derives_it() -> None:
    line = make_hash(PASSWORD, salt=b"0123456789abcdef")
    key = hashlib.scrypt(PASSWORD.encode(), salt=b"0123456789abcdef", n=32768, r=8, p=1, maxmem=1 << 27)
    assert line == f"scrypt$15$8$1${b'0123456789abcdef'.hex()}${key.hex()}"
    assert matches(PASSWORD, line)
    assert not matches(PASSWORD + " ", line)
    assert not matches("", line)
    assert make_hash(PASSWORD) != make_hash(PASSWORD)
    for bad in ("short", "x" * 257):
        with pytest.raises(GapscopeError, match="expected 10 to 256"):
            make_hash(bad)


def test_a_password_file_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "password"
    line = make_hash(PASSWORD)
    write_hash(line, file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert kept_hash(str(file), {}) == line
    assert kept_hash("", {"GAPSCOPE_PASSWORD_FILE": str(file)}) == line
    assert kept_hash("", {"GAPSCOPE_PASSWORD_HASH": line}) == line
    assert kept_hash("", {}) == ""
    with pytest.raises(GapscopeError, match="File exists"):
        write_hash(line, file)
    file.chmod(0o640)
    with pytest.raises(GapscopeError, match="can be read by others"):
        kept_hash(str(file), {})
    for bad in ("plain password", "scrypt$1$8$1$00$00", "scrypt$15$8$1$zz$00", "scrypt$40$8$1$00$" + "00" * 32):
        with pytest.raises(GapscopeError, match="made by `gapscope password`"):
            kept_hash("", {"GAPSCOPE_PASSWORD_HASH": bad})


def test_attempts_are_bounded_by_address_and_by_all() -> None:
    clock = Clock()
    attempts = Attempts(per_address=3, by_all=5, pause_s=60.0, clock=clock)
    for _ in range(3):
        assert attempts.wait_s("a") == 0
        attempts.failed("a")
        clock.now += 1
    assert attempts.wait_s("a") == 57.0  # sixty seconds from the first of the last three
    assert attempts.wait_s("b") == 0
    attempts.failed("b")
    attempts.failed("b")
    assert attempts.wait_s("c") == 57.0  # five by all of them
    clock.now += 60
    assert attempts.wait_s("a") == attempts.wait_s("c") == 0
    attempts.failed("a")
    attempts.succeeded("a")
    assert attempts.wait_s("a") == 0


def test_sessions_end_by_time_by_logout_and_by_number() -> None:
    clock = Clock()
    sessions = Sessions(lifetime_s=100.0, clock=clock)
    first, second = sessions.open(), sessions.open()
    assert first != second
    assert sessions.valid(first)
    assert not sessions.valid("guessed")
    assert not sessions.valid(None)
    sessions.close(second)
    assert not sessions.valid(second)
    clock.now += 99.9
    assert sessions.valid(first)
    clock.now += 0.1
    assert not sessions.valid(first)
    early = sessions.open()
    for _ in range(1000):
        sessions.open()
    assert not sessions.valid(early)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def test_serve_refuses_in_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GAPSCOPE_PASSWORD_HASH", raising=False)
    monkeypatch.delenv("GAPSCOPE_PASSWORD_FILE", raising=False)
    code, out, err = run(capsys, "serve", "--host", "0.0.0.0", "--allow-host", "gap.example")
    assert (code, out) == (2, "")
    assert err == (
        "gapscope: 0.0.0.0 can be reached from other machines, and no login is set up: make a password with `gapscope "
        "password --out FILE` and serve with --password-file FILE, or set up OIDC (docs/dashboard.md, Trust).\n"
    )
    assert "OIDC is not set up" in run(capsys, "serve", "--login", "oidc")[2]
    assert "No password is set up" in run(capsys, "serve", "--login", "password")[2]


def test_the_command_makes_a_file_that_serve_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from io import StringIO

    monkeypatch.setattr(sys, "stdin", StringIO(PASSWORD + "\n"))
    code, out, err = run(capsys, "password", "--out", str(tmp_path / "kept"))
    assert (code, err) == (0, "")
    assert PASSWORD not in out
    assert matches(PASSWORD, kept_hash(str(tmp_path / "kept"), {}))
    monkeypatch.setattr(sys, "stdin", StringIO(PASSWORD + "\n"))
    assert matches(PASSWORD, run(capsys, "password")[1].strip())


SECRETS = """[auth]
redirect_uri = "http://gap.example/oauth2callback"
cookie_secret = "secret"
client_id = "id"
client_secret = "secret"
server_metadata_url = "https://provider.example/.well-known/openid-configuration"
"""


def test_oidc_is_read_from_streamlits_secrets(tmp_path: Path) -> None:
    pytest.importorskip("authlib")
    assert oidc.settings([tmp_path]) is None
    file = tmp_path / ".streamlit" / "secrets.toml"
    file.parent.mkdir()
    file.write_text(SECRETS)
    found = oidc.settings([tmp_path / "none", tmp_path])
    assert found is not None
    assert found["client_id"] == "id"
    file.write_text(SECRETS.replace('client_id = "id"\n', ""))
    with pytest.raises(GapscopeError, match=r"\[auth\] lacks client_id"):
        oidc.settings([tmp_path])
    file.write_text("[auth")
    with pytest.raises(GapscopeError, match="TOML"):
        oidc.settings([tmp_path])


def test_which_accounts_of_a_provider_may_come() -> None:
    account = {"email": "Ann@lab.example", "email_verified": True, "iat": 1000.0}
    assert oidc.refused(account, (), 1000.0) == ""
    assert oidc.refused(account, ("ann@lab.example",), 1000.0) == ""
    assert oidc.refused(account, ("@lab.example",), 1000.0) == ""
    assert oidc.refused(account, ("@example",), 1000.0) != ""
    assert oidc.refused(account, ("bob@lab.example",), 1000.0) != ""
    assert oidc.refused(account | {"email_verified": False}, ("@lab.example",), 1000.0) != ""
    assert oidc.refused({"iat": 1000.0}, ("@lab.example",), 1000.0) != ""
    assert oidc.refused(account, (), 1000.0 + 12 * 3600 + 1) == "This login is over: log in again."
