"""``gapscope serve`` and ``gapscope password``."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dashboard.serving import oidc
from dashboard.serving.binding import VARIABLE, Binding, bind, require_servable, to_environment
from dashboard.serving.password import FILE_VARIABLE, HASH_VARIABLE, kept_hash, make_hash, write_hash
from engine.cli import main as engine_cli
from engine.errors import GapscopeError
from engine.stores import PROJECT
from engine.stores import VARIABLE as STORES

Commands = Any  # argparse has no public name for what add_subparsers returns
SERVE_EPILOG = f"""\
examples:
  gapscope serve
  gapscope password --out ~/.config/gapscope/password
  gapscope serve --host 0.0.0.0 --allow-host gapscope.example.org --password-file ~/.config/gapscope/password

Beyond the loopback interface a login is needed: a password ({HASH_VARIABLE}, {FILE_VARIABLE} or
--password-file), or OIDC (section [auth] of .streamlit/secrets.toml, and gapscope[login] installed).
Neither encrypts the way: put a proxy that speaks TLS in front, or use a network that you trust.
"""


def add_serving(commands: Commands) -> None:
    """Add both commands."""
    serve = commands.add_parser(
        "serve",
        help="the dashboard, on this machine only unless told otherwise",
        description="Serve the dashboard at http://127.0.0.1:PORT, or at another address behind a login.",
        epilog=SERVE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[engine_cli.store_options()],
    )
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", type=int, default=8501, help="1 to 65535 (default 8501)")
    serve.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name under which it is reached; repeat"
    )
    serve.add_argument("--login", choices=("password", "oidc"), help="default: the one that is set up")
    serve.add_argument("--password-file", default="", metavar="FILE", help="made by gapscope password")
    serve.add_argument(
        "--allow-user", action="append", default=[], metavar="MAIL", help="of OIDC: an address or @domain; repeat"
    )
    serve.set_defaults(run=run_serve)
    password = commands.add_parser(
        "password",
        help="make the hash of a password for gapscope serve",
        description="Ask for a password (or read one line of standard input) and print its scrypt hash, or keep it in "
        "a file that only you can read.",
    )
    password.add_argument("--out", type=Path, metavar="FILE", help="write the hash here; must not exist")
    password.set_defaults(run=run_password)


def asked_binding(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Binding:
    """Where a server of these arguments listens, and who it lets in.

    Raises:
        GapscopeError: as :func:`dashboard.serving.binding.bind`, or a login that is not set up.
    """
    hashed = kept_hash(arguments.password_file, environment)
    provider = oidc.settings()
    login = arguments.login or ("password" if hashed else "oidc" if provider else "")
    if hashed and provider and not arguments.login:
        raise GapscopeError("A password and OIDC are both set up: choose with --login password or --login oidc.")
    if login == "password" and not hashed:
        raise GapscopeError("No password is set up: make one with `gapscope password --out FILE`.")
    if login == "oidc" and not provider:
        raise GapscopeError("OIDC is not set up: .streamlit/secrets.toml has no section [auth].")
    file = arguments.password_file or environment.get(FILE_VARIABLE, "")
    return bind(
        arguments.host,
        arguments.port,
        arguments.allow_host,
        login,
        users=arguments.allow_user,
        password_file=str(Path(file).expanduser().resolve()) if file and login == "password" else "",
    )


def serve_command() -> list[str]:
    """The command line of the server; what it does stands in the environment."""
    return [sys.executable, "-m", "dashboard.serving.served"]


def run_serve(arguments: argparse.Namespace) -> int:
    """``gapscope serve``: this process becomes the server, in the project's folder, where its settings lie."""
    binding = asked_binding(arguments)
    stores = engine_cli.stores_of(arguments)
    require_servable(binding, stores)
    roots = [str(root.resolve()) for root in stores]
    environment = {**os.environ, STORES: os.pathsep.join(roots), VARIABLE: to_environment(binding)}
    os.chdir(PROJECT)
    command = serve_command()
    os.execve(command[0], command, environment)


def run_password(arguments: argparse.Namespace) -> int:
    """``gapscope password``."""
    if sys.stdin.isatty():
        password = getpass.getpass("Password: ")
        if getpass.getpass("Again: ") != password:
            raise GapscopeError("The two passwords differ: nothing was written.")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    line = make_hash(password)
    if arguments.out is None:
        print(line)
    else:
        write_hash(line, arguments.out.expanduser())
        print(f"Written to {arguments.out}, readable by you alone.")
    return 0
