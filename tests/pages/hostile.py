"""A store whose texts attack whatever shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import synthetic

EVIL = (
    "<script>window.pwned=1</script><img src=x onerror='window.pwned=1'><img src=http://evil.example/a.png>"
    "<b>loud</b><a href='javascript:window.pwned=1'>press</a>![i](http://evil.example/b.png)"
    "[press](javascript:window.pwned=1)[out](http://evil.example) http://evil.example www.evil.example "
    "$\\frac{a}{b}$ :material/delete: :red[loud] **loud** `loud` {{loud}} '; DROP TABLE requests; -- "
    "\u202egnp.evil\u202c &lt;b&gt;loud " + "long" * 60
)
"""Markup, links, formulas, icons, colours, SQL, reversed text, and very long."""


def hostile_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pair, a run that failed and a folder that is no bundle, each with texts that attack."""
    store = folder / "hidden-place"
    store.mkdir()
    plain = synthetic.rows
    ids = ("request_id", "source_trace_id", "conversation_id", "play_id")

    def attacked(row: dict[str, Any]) -> dict[str, Any]:
        named = {name: f"{row[name]} {EVIL}" for name in ids if row.get(name)}
        members = [attacked(one) for one in row.get("members", ())]
        return row | named | ({"members": members} if members else {})

    monkeypatch.setattr(
        synthetic, "rows", lambda *a: {name: [attacked(row) for row in rows] for name, rows in plain(*a).items()}
    )
    facts = {"source__engine": EVIL, "model__name": EVIL, "hardware__part": EVIL, "source__version": EVIL}
    synthetic.write(store, "measured", "first", title=EVIL, **facts)
    synthetic.write(store, "replay", "second", title=EVIL, speed=1.2, **facts)
    synthetic.write(store, "measured", "third", title=EVIL, failed=True, speed=1.4)
    broken = store / "broken-0123456789ab"
    broken.mkdir()
    (broken / "manifest.json").write_text('{"run_id": "' + "<script>window.pwned=1</script>" + '"}')
    return store
