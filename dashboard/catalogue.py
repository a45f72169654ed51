"""Which runs lie in the store roots, and in what state their files are.

A run is listed whatever became of it: failed qualification, altered bytes and malformed folders stay visible with
the sentence that says why. Hashing every table of every run would make the first page slow, so a run is ``ok``
while sizes agree with its manifest and is verified by digest before its first use; any later change of a file's
size or time makes it unverified again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from threading import RLock, local
from typing import Any, Literal

from dashboard.serving.places import hidden
from engine.bundle import Bundle, Check, list_bundles, open_bundle
from engine.errors import GapscopeError

State = Literal["ok", "altered", "malformed"]
Light = Literal["pass", "fail", "unknown"]
Signature = tuple[tuple[str, int, int], ...]
KIND_WORDS = {
    "measured": "measured run",
    "replay": "replay",
    "sweep": "sweep of pass shapes",
    "imported_summary": "summary without rows",
}
"""What the kinds of runs are called in a sentence."""


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One row of the catalogue. Unknown values are None; ``problem`` is a sentence when ``state`` is not ok."""

    run_id: str
    kind: str | None
    title: str
    path: Path
    state: State
    problem: str | None = None
    model: str | None = None
    hardware: str | None = None
    engine: str | None = None
    created_unix_ns: int | None = None
    requests: int | None = None
    passes: int | None = None
    duration_ns: int | None = None
    light: Light = "unknown"
    failed: tuple[Check, ...] = ()
    verified: bool = False
    rung: int | None = None
    ladder: tuple[str, str] | None = None  # the measured run and the base replay of the ladder that this is a rung of
    point: str = ""  # what the run is a point of, as JSON with sorted keys (``{base, changes, fit}``)

    @property
    def aside(self) -> bool:
        """Whether the run is one of many that were made together: a rung of a ladder, or a point of a sweep."""
        return bool(self.ladder or self.point)

    @property
    def place(self) -> str:
        """Which rung of which ladder, or which point of a sweep, the run is, in words; empty for any other run."""
        if self.point:
            return f"a point of a sweep around {json.loads(self.point)['base'].rpartition('-')[0]}"
        if self.rung is None or self.ladder is None:
            return ""
        return f"rung {self.rung} of ladder {' / '.join(run_id.rpartition('-')[0] for run_id in self.ladder)}"


def _signature(folder: Path) -> Signature:
    with os.scandir(folder) as files:
        rows = [(file.name, status.st_size, status.st_mtime_ns) for file in files for status in (file.stat(),)]
    return tuple(sorted(rows))


def _text(*values: Any) -> str | None:
    known = [str(v) for v in values if v is not None]
    return " ".join(known) or None


def _light(bundle: Bundle) -> Light:
    verdicts = {check.verdict for check in bundle.qualification}
    if "fail" in verdicts:
        return "fail"
    return "pass" if verdicts == {"pass"} else "unknown"


def profile_ns(bundle: Bundle) -> tuple[int, int] | None:
    """Start of the profile phase and its admission deadline, or None where the run has no such phase."""
    phase = bundle.phase("profile")
    return (phase.start_ns, phase.end_ns) if phase else None


def _entry(folder: Path, signature: Signature) -> tuple[RunEntry, Bundle | None]:
    try:
        bundle = open_bundle(folder)
    except GapscopeError as error:
        return RunEntry(folder.name, None, folder.name, folder, "malformed", hidden(str(error))), None
    identity = bundle.identity
    files: dict[str, Any] = bundle.manifest["files"]
    window = profile_ns(bundle)
    sizes = {name: size for name, size, _ in signature}
    wrong = [name for name, info in files.items() if sizes.get(name) != info["bytes"]]
    problem = _altered(bundle.run_id, wrong) if wrong else None
    entry = RunEntry(
        run_id=bundle.run_id,
        kind=bundle.kind,
        title=bundle.title,
        path=folder,
        state="altered" if wrong else "ok",
        problem=problem,
        model=_text(identity.value("model", "name")),
        hardware=_text(identity.value("hardware", "part")),
        engine=_text(identity.value("source", "engine"), identity.value("source", "version")),
        created_unix_ns=bundle.manifest.get("created_unix_ns"),
        requests=bundle.rows("requests"),
        passes=bundle.rows("passes"),
        duration_ns=window[1] - window[0] if window else None,
        light=_light(bundle),
        failed=tuple(check for check in bundle.qualification if check.verdict == "fail"),
    )
    return replace(entry, **_place(bundle)), bundle


def _place(bundle: Bundle) -> dict[str, Any]:
    """The rung and the ladder of a rung's bundle, or what a point is one of; nothing of any other."""
    point = bundle.lineage.get("point")
    if isinstance(point, Mapping) and isinstance(point.get("base"), str):
        return {"point": json.dumps(point, sort_keys=True)}
    rung, ladder = bundle.lineage.get("rung"), bundle.lineage.get("ladder")
    if not isinstance(rung, int) or not isinstance(ladder, Mapping):
        return {}
    ends = (ladder.get("measured"), ladder.get("base"))
    return {"rung": rung, "ladder": tuple(map(str, ends))} if all(ends) else {}


def _altered(run_id: str, files: Sequence[str]) -> str:
    return (
        f"Run {run_id} is altered: {', '.join(files)} no longer as sealed; it is not scored. "
        "Restore the file or write the run again."
    )


class Catalogue:
    """The runs under several roots; safe to use from threads. Roots that do not exist yet are empty."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = tuple(Path(root).resolve() for root in roots)
        self._known: dict[Path, tuple[Signature, RunEntry, Bundle | None]] = {}
        self._lock = RLock()
        self._steady = local()

    def entries(self, verify: bool = False) -> list[RunEntry]:
        """Every run, in the order of the roots and of folder names; a run held twice is listed once.

        With ``verify``, the digests of all tables are looked at, those of runs verified before and unchanged excepted.
        """
        found = getattr(self._steady, "entries", None)
        if found is not None and not verify:
            return list(found)
        with self._lock:
            seen: dict[str, RunEntry] = {}
            for root in self.roots:
                for folder in list_bundles(root):
                    entry = self._look(folder)
                    if entry is None:
                        continue
                    if verify:
                        entry = self._verified(entry)
                    if entry.run_id not in seen or (entry.state == "ok" and seen[entry.run_id].state != "ok"):
                        seen[entry.run_id] = entry
        if getattr(self._steady, "held", None) is not None:
            self._steady.entries = tuple(seen.values())
        return list(seen.values())

    def _look(self, folder: Path) -> RunEntry | None:
        """The run of a folder as it is now; None when the folder went away meanwhile."""
        looked: set[Path] | None = getattr(self._steady, "looked", None)
        if looked is not None and folder in looked:
            return self._known[folder][1]
        try:
            signature = _signature(folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            problem = f"Run {folder.name} cannot be read ({error.strerror}): check the folder's permissions."
            return RunEntry(folder.name, None, folder.name, folder, "malformed", problem)
        known = self._known.get(folder)
        if known is None or known[0] != signature:
            self._known[folder] = (signature, *_entry(folder, signature))
        if looked is not None:
            looked.add(folder)
        return self._known[folder][1]

    def _verified(self, entry: RunEntry) -> RunEntry:
        """The entry of a known folder after the digests of its files were looked at."""
        if entry.state != "ok" or entry.verified:
            return entry
        signature, _, bundle = self._known[entry.path]
        assert bundle is not None
        wrong = bundle.verify()
        if wrong:
            entry = replace(entry, state="altered", problem=_altered(entry.run_id, wrong))
        else:
            entry = replace(entry, verified=True)
        self._known[entry.path] = (signature, entry, bundle)
        return entry

    def find(self, ref: str) -> RunEntry:
        """The run with this id, or the only one whose id starts with ``ref``.

        Raises:
            GapscopeError: no run, or several.
        """
        entries = self.entries()
        exact = [e for e in entries if e.run_id == ref]
        found = exact or [e for e in entries if ref and e.run_id.startswith(ref)]
        # A slug names its run even where another slug begins alike.
        found = found if len(found) < 2 else [e for e in found if e.run_id.rpartition("-")[0] == ref] or found
        if len(found) == 1:
            return found[0]
        if found:
            raise GapscopeError(
                f"Run {ref!r} is ambiguous: expected one of {', '.join(e.run_id for e in found)}; give more of the id."
            )
        near = get_close_matches(ref, [e.run_id for e in entries], n=3, cutoff=0.3)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise GapscopeError(
            f"No run {ref!r} among the {len(entries)} runs of the store{hint}. `gapscope runs` lists them all."
        )

    def _named(self, run_id: str) -> RunEntry:
        """The run of an id; only its own folder is looked at when it was seen before."""
        for root in self.roots:
            folder = root / run_id
            if folder in self._known:
                entry = self._look(folder)
                if entry and entry.run_id == run_id and entry.state == "ok":
                    return entry
        return self.find(run_id)

    def manifest(self, run_id: str) -> Bundle:
        """The bundle with its tables not verified, for what ``run.json`` alone says.

        Raises:
            GapscopeError: absent or malformed.
        """
        with self._lock:
            entry = self._named(run_id)
            bundle = self._known[entry.path][2]
            if bundle is None:
                raise GapscopeError(entry.problem or f"Run {run_id} is malformed.")
            return bundle

    def bundle(self, run_id: str) -> tuple[Bundle, Signature]:
        """The verified bundle, with the signature of the files it was verified from.

        Raises:
            GapscopeError: absent, malformed, or altered (the file is named).
        """
        held: dict[str, tuple[Bundle, Signature]] | None = getattr(self._steady, "held", None)
        if held is not None and run_id in held:
            return held[run_id]
        with self._lock:
            entry = self._verified(self._named(run_id))
            if entry.state != "ok":
                raise GapscopeError(entry.problem or f"Run {entry.run_id} is {entry.state}.")
            signature, _, bundle = self._known[entry.path]
            assert bundle is not None
            if held is not None:
                held[run_id] = (bundle, signature)
            return bundle, signature

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Look at the runs and their files once in this block and thread, however many questions are asked."""
        if getattr(self._steady, "held", None) is not None:
            yield
            return
        self._steady.held, self._steady.looked = {}, set()
        try:
            yield
        finally:
            self._steady.held = self._steady.entries = self._steady.looked = None
