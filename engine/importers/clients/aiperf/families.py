"""Files that belong to one run of AIPerf: by folder and content, by name only where one folder holds several runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from engine.importers.clients.aiperf.kinds import Kind, kind_of
from engine.intake import InputFile, Intake

_ANCHORS = (Kind.RECORDS, Kind.RAW, Kind.SUMMARY)
_ALONE = (
    *_ANCHORS,
    Kind.SUMMARY_CSV,
    Kind.SLICES,
    Kind.SLICES_CSV,
    Kind.SERVER,
    Kind.SERVER_CSV,
    Kind.PHASE_SERVER,
    Kind.SCRAPES,
    Kind.SCRAPES_PARQUET,
    Kind.GPU,
    Kind.NETWORK,
    Kind.AGGREGATE,
    Kind.COLLATED,
)
"""Kinds that make a run by themselves."""
_REPEATS = (Kind.AGGREGATE, Kind.AGGREGATE_CSV, Kind.COLLATED)
_SURROUND = (Kind.COMMAND, Kind.ENGINE_COMMAND, Kind.WORKLOAD, Kind.IDENTITY, Kind.RUN_CONFIG, Kind.LOG)
"""Kinds that may lie in a folder above the run's own."""
_ENDINGS = re.compile(r"(\.(gz|zst|bz2|xz|jsonl?|csv|txt|parquet))+$", re.IGNORECASE)
_PARTS = re.compile(r"_(aiperf_timeslices|timeslices|aiperf|raw|server_metrics|gpu_telemetry|network_latency|console)$")
_USUAL = ("profile_export", "server_metrics_export", "gpu_telemetry_export", "")


@dataclass
class Family:
    """The files of one run by kind; ``home`` is the folder they lie in, ``stem`` tells runs of one folder apart."""

    home: str
    stem: str = ""
    files: dict[Kind, list[InputFile]] = field(default_factory=dict)
    phase_files: dict[Kind, list[InputFile]] = field(default_factory=dict)
    """Those of the single phases (``phases/<name>/``)."""

    def first(self, kind: Kind) -> InputFile | None:
        """The file of this kind, None where there is none."""
        found = self.files.get(kind)
        return found[0] if found else None

    def all(self, kind: Kind) -> list[InputFile]:
        """Every file of this kind."""
        return self.files.get(kind, [])

    @property
    def repeats(self) -> bool:
        """Whether it holds statistics across runs rather than a run."""
        return any(kind in self.files for kind in (Kind.AGGREGATE, Kind.COLLATED))


def families(intake: Intake) -> list[Family]:
    """The runs of AIPerf in an input."""
    kinds = {file.name: kind for file in intake.files if (kind := kind_of(file)) is not None}
    files = [file for file in intake.files if file.name in kinds]
    own = {file.folder for file in files if kinds[file.name] in _ANCHORS and not _phase_folder(file.folder)}
    found: list[Family] = []
    homes: dict[str, list[InputFile]] = {}
    for file in files:
        homes.setdefault(_home(file, kinds[file.name], own), []).append(file)
    for home in sorted(homes):
        found += _split(home, homes[home], kinds)
    found = [family for family in found if any(kind in family.files for kind in _ALONE)]
    _surround(found, files, kinds)
    return found


def _phase_folder(folder: str) -> str | None:
    """The folder that holds ``phases/<name>``, None where the folder is no such one."""
    parts = folder.split("/")
    return "/".join(parts[:-2]) if len(parts) >= 2 and parts[-2] == "phases" else None


def _home(file: InputFile, kind: Kind, own: set[str]) -> str:
    above = _phase_folder(file.folder)
    if above is not None and above in own:
        return above
    if file.folder.rpartition("/")[2] == "logs" and kind is Kind.LOG:
        return file.folder.rpartition("/")[0]
    return file.folder


def _split(home: str, files: list[InputFile], kinds: dict[str, Kind]) -> Iterator[Family]:
    """One family, or one per stem of the names where a folder holds several runs."""
    mine = [file for file in files if kinds[file.name] not in _SURROUND]
    repeats = [file for file in mine if kinds[file.name] in _REPEATS]
    mine = [file for file in mine if file not in repeats]
    if repeats:
        yield _family(home, "repeats" if mine else "", repeats, kinds)
    several = any(len([f for f in mine if kinds[f.name] is kind and f.folder == home]) > 1 for kind in _ANCHORS)
    if not several:
        yield _family(home, "", mine, kinds)
        return
    by_stem: dict[str, list[InputFile]] = {}
    for file in mine:
        by_stem.setdefault(_stem(file.base), []).append(file)
    for stem, members in by_stem.items():
        twins = [f for f in members if kinds[f.name] is Kind.RECORDS]
        for twin in twins[1:]:
            members = [f for f in members if f is not twin]
            yield _family(home, twin.base, [twin], kinds)
        yield _family(home, stem, members, kinds)


def _family(home: str, stem: str, files: Iterable[InputFile], kinds: dict[str, Kind]) -> Family:
    family = Family(home, stem)
    for file in files:
        place = family.files if file.folder == home or _phase_folder(file.folder) != home else family.phase_files
        place.setdefault(kinds[file.name], []).append(file)
    return family


def _stem(base: str) -> str:
    stem = _PARTS.sub("", _ENDINGS.sub("", base))
    return "" if stem in _USUAL else stem


def _surround(found: list[Family], files: list[InputFile], kinds: dict[str, Kind]) -> None:
    """Give files that tell of the surroundings to the runs of their folder, else to those of the folders below."""
    for file in files:
        if kinds[file.name] not in _SURROUND:
            continue
        home = _home(file, kinds[file.name], set())
        near = [family for family in found if family.home == home]
        below = [family for family in found if not home or family.home.startswith(home + "/")]
        if not near and len({family.home for family in below}) == 1:
            near = below
        for family in near:
            family.files.setdefault(kinds[file.name], []).append(file)
