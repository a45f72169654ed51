"""An anchor as a timing model: the artefact, what it shall stand for, and what else a replay takes from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.timing.anchors.artefact import Anchor
from engine.timing.anchors.target import UNKNOWN, Target
from engine.timing.model_file import ANCHOR_KIND, VERSIONS, with_digest


def model_of(anchor: Anchor, target: Target | None = None) -> dict[str, Any]:
    """An anchor as a timing model, with what is known of the deployment that it shall stand for (JSON-ready)."""
    return with_digest(
        {
            "kind": ANCHOR_KIND,
            "version": VERSIONS[ANCHOR_KIND],
            "name": anchor.name,
            "artefact": dict(anchor.document),
            "artefact_digest": anchor.digest,
            "target": (target or UNKNOWN).to_json(),
            "host": _host(anchor.meta.get("host")),
            "lineage": {"sources": _sources(anchor.meta.get("sources")) if anchor.is_built else []},
        }
    )


def _sources(told: Any) -> list[dict[str, Any]]:
    """The recordings that an artefact was made of, where it says them as ours do."""
    listed = told if isinstance(told, list) else []
    return [
        dict(entry) for entry in listed if isinstance(entry, Mapping) and {"run_id", "phases", "tables"} <= set(entry)
    ]


def _host(told: Any) -> dict[str, Any]:
    """The host's terms that an artefact brings, where they are numbers."""
    terms = dict(told) if isinstance(told, Mapping) else {}
    return {name: dict(term) for name, term in terms.items() if isinstance(term, Mapping) and _is_term(term)}


def _is_term(term: Mapping[str, Any]) -> bool:
    values = [value for name, value in term.items() if name == "value" or name.startswith("host_")]
    return bool(values) and all(type(value) in (int, float) for value in values)
