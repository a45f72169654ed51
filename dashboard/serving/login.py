"""The login form: one page without a script, so that nothing of the dashboard is sent before it is passed."""

from __future__ import annotations

import base64
import hashlib
import html

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center;
  background: light-dark(#ffffff, #171614); color: light-dark(#31333f, #ecebe8); }
main { width: min(22rem, 90vw); }
h1 { font-size: 1.4rem; margin: 0 0 1rem; }
label, input, button { display: block; width: 100%; box-sizing: border-box; font: inherit; }
input, button { margin: .4rem 0 .9rem; padding: .55rem .7rem; border-radius: .35rem; border: 1px solid #767676; }
button { background: light-dark(#3d4f66, #8fa6c4); color: light-dark(#ffffff, #171614); border: 0; cursor: pointer; }
:focus-visible { outline: 2px solid currentColor; outline-offset: 2px; }
p[role=alert] { margin: 0 0 .9rem; }
"""
_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
CSP = f"default-src 'none'; style-src 'sha256-{_DIGEST}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"


def login_page(onward: str, words: str = "") -> str:
    """The form; ``onward`` is where it leads, ``words`` why the last try did not."""
    said = f"<p role=alert>{html.escape(words)}</p>" if words else ""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>gapscope: log in</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main><h1>gapscope</h1>{said}"
        '<form method="post" action="/login">'
        f'<input type="hidden" name="next" value="{html.escape(onward)}">'
        '<label for="password">Password</label>'
        '<input id="password" name="password" type="password" autocomplete="current-password" required autofocus>'
        "<button>Log in</button></form></main></body></html>"
    )
