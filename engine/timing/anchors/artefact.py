"""An anchor as a file: what was measured of one engine, and everything that is known of how.

The JSON is that of public anchors (docs/timing.md, *Anchors*): ``backend``, ``meta``, ``sweep``, ``decode_ctx``. An
absent key is unknown unless stated otherwise there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import GapscopeError
from engine.timing.anchors import server_args

LARGEST_BYTES = 1 << 24
LARGEST = 1e9
"""No figure is larger: of milliseconds that is eleven days."""
BUILT_DIGEST = "built_digest"
"""Key of what was built of recordings: the digest of all else in it, so that its lineage is that of its figures."""
OBSERVABLES = ("pass", "median_itl_single_wave", "median_itl", "mean_tpot")
"""What a decode figure is: the engine's own pass, or seen from outside, best first."""


class NoArtefact(GapscopeError):
    """A file that holds no anchor."""


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """A decode step of ``batch`` requests with ``context`` tokens each (None: unknown), in milliseconds."""

    batch: int
    ms: float
    context: float | None


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """``tokens`` new tokens of ``prompts`` after ``context`` cached ones, all together, in milliseconds."""

    tokens: float
    ms: float
    context: float = 0.0
    prompts: int = 1

    @property
    def length(self) -> float:
        """What a token's arithmetic grows with: the own length of the mean prompt, and twice what it had cached."""
        return (self.tokens + 2.0 * self.context) / self.prompts


@dataclass(frozen=True, slots=True)
class CurveFit:
    """Milliseconds of a prompt of n tokens: ``fixed + (rate + bend n) n``."""

    fixed: float
    rate: float
    bend: float


@dataclass(frozen=True, slots=True)
class Packed:
    """Several prompts of ``seq_len`` tokens in one step: (tokens, prompts, ms), and the rate that is read from them."""

    seq_len: float
    budget: float | None
    repeats: int
    points: tuple[tuple[float, int, float], ...]
    rate: float


@dataclass(frozen=True, slots=True)
class PrefillProbe:
    """Prompts one at a time. ``rate`` and ``fixed`` are those of a straight line through them, where it was stated."""

    points: tuple[PrefillPoint, ...]
    curve: CurveFit | None = None
    rate: float | None = None
    fixed: float | None = None
    pairwise: tuple[float, ...] = ()
    negative_pairs: int = 0
    packed: Packed | None = None

    @property
    def longest(self) -> float:
        """Tokens of the longest prompt that was probed, cached ones included."""
        return max((point.tokens + point.context) / point.prompts for point in self.points)


@dataclass(frozen=True)
class Anchor:
    """One measured artefact. Widths are those that ran; None is unknown."""

    name: str
    digest: str
    backend: str | None
    meta: Mapping[str, Any] = field(repr=False)
    sweep: tuple[DecodePoint, ...]
    grid: tuple[DecodePoint, ...]
    prefill: PrefillProbe | None
    tp: int | None
    pp: int | None
    ep: int | None
    attention_dp: int | None
    layers: int | None
    input_len: float | None
    output_len: float | None
    observable: str
    pads_to_capture: bool
    floor_ms: float | None
    between_ns: int
    prefix_caching: bool | None
    document: Mapping[str, Any] = field(repr=False)

    @property
    def is_built(self) -> bool:
        """Whether it is, unchanged, what was built of recordings."""
        return self.document.get(BUILT_DIGEST) is not None

    @property
    def middle_context(self) -> float | None:
        """Mean tokens of a request while the sweep was decoded: the prompt and half of the output."""
        return None if self.input_len is None else self.input_len + (self.output_len or 0.0) / 2.0

    @property
    def gpus(self) -> int:
        """GPUs that ran, as far as is known."""
        return (self.tp or 1) * (self.pp or 1)


def read_file(path: Path, name: str | None = None) -> Anchor:
    """The anchor in a file.

    Raises:
        NoArtefact: the file holds none; the reason is said.
        GapscopeError: it does, and a figure of it cannot be; or the file cannot be read.
    """
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise NoArtefact(f"{path} is larger than {LARGEST_BYTES:,} bytes: expected an anchor.")
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except OSError as error:
        raise GapscopeError(f"Cannot read the anchor {path}: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise NoArtefact(f"{path} is not JSON ({error}): expected an anchor.") from None
    return read_anchor(value, name or path.stem)


def read_anchor(value: Any, name: str) -> Anchor:
    """The anchor in a JSON value.

    Raises:
        NoArtefact: it is none; the reason is said.
        GapscopeError: it is, and a figure of it cannot be.
    """
    _check_shape(value, name)
    if value.get(BUILT_DIGEST) not in (None, digest_of({k: v for k, v in value.items() if k != BUILT_DIGEST})):
        raise GapscopeError(
            f"Anchor {name} was changed after it was built of recordings: its {BUILT_DIGEST} does not match. Build it "
            f"again, or remove {BUILT_DIGEST} to use it as written by hand, without a lineage."
        )
    read = _Reader(name)
    meta: Mapping[str, Any] = value["meta"]
    input_len, output_len = (read.maybe(meta, key) for key in ("input_len", "output_len"))
    middle = None if input_len is None else input_len + (output_len or 0.0) / 2.0
    sweep = {}
    for row in value["sweep"]:
        if isinstance(row, Mapping) and row.get("decode_ms") is not None:
            point = read.decode(row, "sweep", middle)
            if point.batch in sweep:
                raise GapscopeError(f"Anchor {name}: sweep has batch {point.batch} twice; expected one row per batch.")
            sweep[point.batch] = point
    grid = [read.decode(row, "decode_ctx", None) for row in _list(value, "decode_ctx", name)]
    if any(point.context is None for point in grid):
        raise GapscopeError(f"Anchor {name}: a row of decode_ctx has no context; expected batch, context, decode_ms.")
    widths = {width: read.count(meta, f"benchmark_{width}") or read.count(meta, width) for width in ("tp", "pp", "ep")}
    if widths["tp"] is not None:  # who states widths states those above 1
        widths = {width: count or 1 for width, count in widths.items()}
    args = _text(meta.get("server_args"))
    ranks = read.count(meta, "attention_data_parallel_size") or server_args.attention_dp(args, widths["tp"] or 1)
    caching = meta.get("prefix_caching")
    return Anchor(
        name=name,
        digest=digest_of(value),
        backend=_text(value.get("backend") or meta.get("backend") or meta.get("engine")),
        meta=meta,
        sweep=tuple(sweep[batch] for batch in sorted(sweep)),
        grid=tuple(sorted(grid, key=lambda point: (point.batch, point.context or 0.0))),
        prefill=read.prefill(meta.get("prefill_anchor")),
        **widths,
        attention_dp=ranks,
        layers=read.count(meta, "num_hidden_layers"),
        input_len=input_len,
        output_len=output_len,
        observable=_observable(meta.get("decode_observable"), name),
        pads_to_capture=meta.get("decode_pad_to_capture") is True,
        floor_ms=read.maybe(meta, "decode_floor_ms"),
        between_ns=round(read.maybe(meta, "between_ns") or 0),
        prefix_caching=caching if isinstance(caching, bool) else server_args.prefix_caching(args),
        document=value,
    )


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """What was built, with the digest of it as it reads from a file."""
    plain: dict[str, Any] = json.loads(json.dumps(document))
    return {**plain, BUILT_DIGEST: digest_of(plain)}


def _check_shape(value: Any, name: str) -> None:
    if not isinstance(value, Mapping):
        raise NoArtefact(f"{name} holds {type(value).__name__}: expected an object with meta and sweep.")
    if not isinstance(value.get("meta"), Mapping):
        raise NoArtefact(f"{name} has no meta object: expected an anchor, which says what was measured.")
    sweep = value.get("sweep")
    if not isinstance(sweep, list):
        raise NoArtefact(f"{name} has no sweep: expected a list of rows with batch and decode_ms.")
    if not any(isinstance(row, Mapping) and row.get("decode_ms") is not None for row in sweep):
        raise NoArtefact(f"{name} has a sweep without decode_ms: expected at least one measured decode.")


def _list(value: Mapping[str, Any], key: str, name: str) -> list[Mapping[str, Any]]:
    rows = value.get(key) or []
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise GapscopeError(f"Anchor {name}: {key} is {rows!r:.60}, expected a list of objects.")
    return rows


def _text(value: Any) -> str | None:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or None
    return str(value).strip() or None if value is not None else None


def _observable(value: Any, name: str) -> str:
    if value is None:
        return "mean_tpot"
    if value not in OBSERVABLES:
        raise GapscopeError(f"Anchor {name}: decode_observable is {value!r}, expected one of {', '.join(OBSERVABLES)}.")
    return str(value)


def _expected(value: Any, least: float, above: bool) -> str:
    if not isinstance(value, bool) and isinstance(value, (int, float)) and value > LARGEST:
        return f"a number of at most {LARGEST:,.0f}"
    if least == -LARGEST:
        return "a number"
    return f"a number above {least:g}" if above else f"a number of at least {least:g}"


class _Reader:
    """Figures of one artefact, each finite and in its range, or refused by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def maybe(self, row: Mapping[str, Any], key: str, least: float = 0.0, above: bool = False) -> float | None:
        """A number of at least (or ``above``) ``least``; None where it is absent or null."""
        value = row.get(key)
        if value is None:
            return None
        is_number = not isinstance(value, bool) and isinstance(value, (int, float))
        if not is_number or not least <= value <= LARGEST or (above and value == least):
            expected = _expected(value, least, above)
            raise GapscopeError(f"Anchor {self._name}: {key} is {value!r:.40}, expected {expected}.")
        return float(value)

    def number(self, row: Mapping[str, Any], key: str, least: float = 0.0, above: bool = False) -> float:
        """A number that has to be there."""
        value = self.maybe(row, key, least, above)
        if value is None:
            raise GapscopeError(f"Anchor {self._name}: {key} is missing in {dict(row)!r:.80}.")
        return value

    def count(self, row: Mapping[str, Any], key: str) -> int | None:
        """A whole number of at least 1; None where it is absent or null."""
        value = self.maybe(row, key, 1.0)
        if value is not None and not value.is_integer():
            raise GapscopeError(f"Anchor {self._name}: {key} is {value!r}, expected a whole number.")
        return None if value is None else int(value)

    def decode(self, row: Mapping[str, Any], where: str, context: float | None) -> DecodePoint:
        """One decode step; ``context`` where the row says none."""
        batch, ms = self.count(row, "batch"), self.number(row, "decode_ms", above=True)
        if batch is None:
            raise GapscopeError(f"Anchor {self._name}: {where} has a row without batch: {dict(row)!r:.80}.")
        own = self.maybe(row, "context")
        return DecodePoint(batch, ms, context if own is None else own)

    def prefill(self, probe: Any) -> PrefillProbe | None:
        """Prompts one at a time; None where none were probed."""
        if probe is None:
            return None
        if not isinstance(probe, Mapping):
            raise GapscopeError(f"Anchor {self._name}: prefill_anchor is {probe!r:.60}, expected an object.")
        points = []
        for row in _list(probe, "points", self._name):
            key = "ms" if row.get("ms") is not None else "mean_ttft_ms"
            tokens = self.number(row, "input_len", 1.0)
            context, prompts = self.maybe(row, "context") or 0.0, self.count(row, "prompts") or 1
            points.append(PrefillPoint(tokens, self.number(row, key), context, prompts))
        if not points:
            return None
        fit, packed = probe.get("curve_fit"), probe.get("packed")
        any_sign = -LARGEST
        pairs = probe.get("pairwise_ms_per_token")
        return PrefillProbe(
            points=tuple(sorted(points, key=lambda point: (point.tokens, point.context))),
            curve=None
            if not isinstance(fit, Mapping)
            else CurveFit(
                self.number(fit, "fixed_ms", any_sign),
                self.number(fit, "ms_per_token", any_sign),
                self.number(fit, "ms_per_token_sq", any_sign),
            ),
            rate=self.maybe(probe, "ms_per_token", any_sign),
            fixed=self.maybe(probe, "implied_fixed_ms", any_sign),
            pairwise=tuple(float(pair) for pair in pairs if type(pair) in (int, float))
            if isinstance(pairs, list)
            else (),
            negative_pairs=int(self.maybe(probe, "negative_pairs") or 0),
            packed=self._packed(packed) if isinstance(packed, Mapping) else None,
        )

    def _packed(self, packed: Mapping[str, Any]) -> Packed:
        points = [
            (
                self.number(row, "step_tokens", 1.0),
                self.count(row, "seqs") or 1,
                self.number(row, "last_ttft_ms", above=True),
            )
            for row in _list(packed, "points", self._name)
        ]
        return Packed(
            seq_len=self.number(packed, "seq_len", 1.0),
            budget=self.maybe(packed, "budget_tokens"),
            repeats=int(self.maybe(packed, "repeats") or 0),
            points=tuple(sorted(points)),
            rate=self.number(packed, "ms_per_token", -LARGEST),
        )
