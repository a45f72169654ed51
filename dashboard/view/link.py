"""A view, and the link that restores it.

The permalink says its version and what differs from the defaults of that version, which are frozen in
:mod:`dashboard.view.versions`, so that a changed default cannot change what an old link shows. A link names runs by
their content id and never by a path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from dashboard.view.pages import DEFAULT_PAGE, PAGES
from dashboard.view.table import PARAMS, params_of
from dashboard.view.versions import DEFAULTS, UPGRADERS, VERSION
from engine.bundle.manifest import RUN_ID
from engine.errors import GapscopeError


@dataclass(frozen=True)
class View:
    """A page and the values of its parameters; a parameter that is absent has its default."""

    page: str
    values: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()  # values of the link that could not be used, in words

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name, PARAMS[name].default)

    def query(self) -> list[tuple[str, str]]:
        """The version, and every value of the page that differs from the frozen defaults of that version."""
        pairs = [("v", str(VERSION))]
        frozen = DEFAULTS[VERSION]
        for param in params_of(self.page):
            if param.name not in self.values:
                continue
            texts = param.texts(self.values[param.name])
            if param.name not in frozen or texts != param.texts(frozen[param.name]):
                pairs += [(param.name, text) for text in texts]
        return pairs

    @property
    def runs(self) -> dict[str, list[str]]:
        """The runs that the view names, by the label of the parameter that does."""
        found: dict[str, list[str]] = {}
        for param in params_of(self.page):
            value = self[param.name]
            if param.pattern is RUN_ID or param.name == "fit":
                named = [text.partition(":")[0] for text in (value if param.type is list else [value]) if text]
                found |= {param.label: named} if named else {}
        return found

    def link(self, base: str = "") -> str:
        """The permalink: ``base`` is scheme, host and port."""
        page = "" if self.page == DEFAULT_PAGE else self.page  # the default page lives at the root
        return f"{base.rstrip('/')}/{page}?{urlencode(self.query())}"


def turn_key(conversation: str, turn: int, again: int = 0) -> str:
    """The name of a source-turn in a link: ``s0003/2``; ``s0003#1/2`` when the same one is sent for the second time.

    ``again`` counts how often the run sent it before. A request without conversation or turn is ``=`` and its id;
    the column ``turn`` of requests (``queries/_turn.sql``) holds the same names.
    """
    return f"{conversation}{f'#{again}' if again else ''}/{turn}"


def upgrade(query: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The query of a link, brought to the present version.

    Raises:
        GapscopeError: the version is no number, or newer than this program knows.
    """
    found = {name: list(texts) for name, texts in query.items()}
    text = (found.pop("v", None) or [str(VERSION)])[-1]
    if not text.isdecimal() or int(text) < 1:
        raise GapscopeError(f"This link says version {text[:20]!r}: expected a whole number from 1 to {VERSION}.")
    version = int(text)
    if version > VERSION:
        raise GapscopeError(
            f"This link has version {version}, and this gapscope knows links up to version {VERSION}. "
            "Update gapscope to open it."
        )
    for step in range(version, VERSION):
        found = UPGRADERS[step](found)
    return found


def from_query(page: str, query: Mapping[str, Sequence[str]]) -> View:
    """The view of a link. Unknown parameters and unusable values are left out and named in ``ignored``.

    Raises:
        GapscopeError: no such page, or a version that cannot be read.
    """
    page = page.strip("/") or DEFAULT_PAGE
    if page not in PAGES:
        raise GapscopeError(f"There is no page {page!r}: expected one of {', '.join(PAGES)}.")
    values: dict[str, Any] = {}
    ignored: list[str] = []
    owned = {param.name for param in params_of(page)}
    for name, texts in upgrade(query).items():
        if name not in owned:
            if name not in PARAMS:
                ignored.append(f"{name}: not a parameter")
            continue
        try:
            values[name] = PARAMS[name].parse(texts)
            ignored += [f"{name}={text}: {PARAMS[name].too_many}" for text in PARAMS[name].beyond(texts)]
        except ValueError:
            ignored.append(f"{name}={texts[-1]}: not a value of {PARAMS[name].label!r}")
    return View(page, values, tuple(ignored))


def from_link(link: str) -> View:
    """The view of a whole link."""
    parts = urlsplit(link)
    query: dict[str, list[str]] = {}
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        query.setdefault(name, []).append(text)
    return from_query(parts.path, query)


def saved_view(link: str) -> str:
    """What is kept of the permalink of a view: ``page?query``, as a permalink has them, without host and port.

    Raises:
        GapscopeError: no such page, a version that is not known, values that cannot be used, or no run named.
    """
    shown = from_link(link.strip())
    if shown.ignored:
        raise GapscopeError(f"Parts of this link cannot be used: {'; '.join(shown.ignored)}. Copy it from Link.")
    if not shown["m"]:
        raise GapscopeError("This link names no measured run, so it would not show the same again: copy it from Link.")
    return f"{shown.page}?{urlencode(shown.query())}"
