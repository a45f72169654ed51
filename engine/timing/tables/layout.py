"""The public layout of whole-forward-pass tables: a Parquet file of rows, and a sidecar that seals it.

A row is one measured pass: its kind (prefill or decode), its batch, the tokens it computed and read in sum, and its
milliseconds (of the slowest data-parallel rank). Beside them stand the columns that say of which deployment it was. The
sidecar ``NAME.metadata.json`` holds the schema's version, the SHA-256 of the Parquet file and the number of its rows.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from engine.errors import GapscopeError

SCHEMA_NAME = "aic_fpm_forward_perf"
SCHEMA_VERSIONS = (6, 7)
COORDINATES = "iteration_totals_balanced_v1"
KINDS = ("prefill", "decode")
PLACE = ("system", "backend", "backend_version")
"""What the sidecar says as well: the part, the engine and its version."""
IDENTITY: tuple[tuple[str, pa.DataType], ...] = (
    ("gemm_quant_mode", pa.string()),
    ("moe_quant_mode", pa.string()),
    ("fmha_quant_mode", pa.string()),
    ("comm_quant_mode", pa.string()),
    ("kv_cache_dtype", pa.string()),
    ("tp", pa.int64()),
    ("pp", pa.int64()),
    ("dp", pa.int64()),
    ("moe_tp", pa.int64()),
    ("moe_ep", pa.int64()),
    ("cp", pa.int64()),
    ("moe_backend", pa.string()),
    ("attention_backend", pa.string()),
    ("enable_wideep", pa.bool_()),
    ("enable_eplb", pa.bool_()),
)
"""The columns that tell deployments of one model path apart. NULL is unknown."""
COUNTS = ("batch_size", "total_prefill_tokens", "total_kv_read_tokens")
NEEDED = ("model_path", "workload_kind", *COUNTS, "latency_ms")
_LARGEST_BYTES = 256 << 20
Point = tuple[int, int, int, float]
"""Batch, new tokens, KV tokens read, milliseconds."""


@dataclass(frozen=True)
class Cell:
    """The rows of one deployment. ``identity`` has the model path, the place and every identity column that is known.

    ``sealed`` is what the sidecar says: schema, digest, policy of measurement.
    """

    identity: Mapping[str, Any]
    prefill: tuple[Point, ...]
    decode: tuple[Point, ...]
    sealed: Mapping[str, Any]

    @property
    def label(self) -> str:
        """A short name of the deployment."""
        widths = [f"{axis}{self.identity[axis]}" for axis in ("tp", "pp", "dp", "moe_ep") if self.identity.get(axis)]
        return " ".join([str(self.identity["model_path"]), *widths])


def sidecar_of(path: Path) -> Path:
    """Where the sidecar of a table lies."""
    return path.with_suffix(".metadata.json")


def read_cells(path: Path) -> list[Cell]:
    """The deployments of a table, in the order in which they first occur.

    Raises:
        GapscopeError: no table, or no sidecar; another schema; a digest or number of rows that does not match; a row
            that cannot be, or one that says a geometry twice.
    """
    data = _bytes(path, "a table of forward passes")
    sealed = _sidecar(path, data)
    try:
        table = pq.read_table(io.BytesIO(data))
    except (pa.ArrowException, OSError) as error:
        raise GapscopeError(f"{path} is not Parquet ({error}): expected a table of forward passes.") from None
    missing = [name for name in NEEDED if name not in table.column_names]
    if missing:
        raise GapscopeError(f"{path} has no column {missing[0]}: expected a table of forward passes.")
    if sealed.get("row_count") != table.num_rows or not table.num_rows:
        raise GapscopeError(
            f"{path} has {table.num_rows} rows and its sidecar says {sealed.get('row_count')}: take the pair as it was "
            "published."
        )
    known = [name for name, _ in IDENTITY if name in table.column_names]
    columns = ["model_path", *(name for name in PLACE if name in table.column_names), *known]
    cells: dict[tuple[Any, ...], dict[str, dict[tuple[int, int, int], float]]] = {}
    for number, row in enumerate(table.select([*columns, *NEEDED[1:]]).to_pylist()):
        kind, point, ms = _checked(row, f"{path}, row {number}")
        tables = cells.setdefault(tuple(row[name] for name in columns), {kind: {} for kind in KINDS})
        if point in tables[kind]:
            raise GapscopeError(f"{path}, row {number}: this {kind} geometry of this deployment was there before.")
        tables[kind][point] = ms
    found = []
    for key, tables in cells.items():
        identity = {name: value for name, value in zip(columns, key, strict=True) if value is not None}
        for name in PLACE:
            if identity.setdefault(name, sealed.get(name)) != sealed.get(name, identity[name]):
                raise GapscopeError(
                    f"{path} has rows of {name} {identity[name]!r}, and its sidecar says {sealed[name]!r}."
                )
        points = [tuple(sorted((*point, ms) for point, ms in tables[kind].items())) for kind in KINDS]
        found.append(Cell(identity, points[0], points[1], sealed))
    return found


def _checked(row: Mapping[str, Any], where: str) -> tuple[str, tuple[int, int, int], float]:
    kind, ms = row["workload_kind"], row["latency_ms"]
    if kind not in KINDS:
        raise GapscopeError(f"{where}: workload_kind is {kind!r}, expected prefill or decode.")
    if not isinstance(ms, (int, float)) or not math.isfinite(ms) or ms <= 0:
        raise GapscopeError(f"{where}: latency_ms is {ms!r}, expected a positive number.")
    counts = [row[name] for name in COUNTS]
    if not all(isinstance(count, int) for count in counts):
        raise GapscopeError(f"{where}: {', '.join(COUNTS)} are {counts}, expected whole numbers.")
    batch, tokens, kv = counts
    if batch < 1 or kv < 0 or (tokens < 1 if kind == "prefill" else tokens != 0):
        raise GapscopeError(f"{where}: no {kind} has batch {batch}, {tokens} new tokens and {kv} KV tokens.")
    return kind, (batch, tokens, kv), float(ms)


def _sidecar(path: Path, data: bytes) -> dict[str, Any]:
    where = sidecar_of(path)
    try:
        sealed = json.loads(_bytes(where, "the sidecar of a table"))
    except (ValueError, RecursionError) as error:
        raise GapscopeError(f"{where} is not JSON ({error}).") from None
    if not isinstance(sealed, dict):
        raise GapscopeError(f"{where} holds {type(sealed).__name__}: expected one object.")
    expected = f"{SCHEMA_NAME} of version {' or '.join(map(str, SCHEMA_VERSIONS))}"
    if sealed.get("schema_name") != SCHEMA_NAME or sealed.get("schema_version") not in SCHEMA_VERSIONS:
        raise GapscopeError(
            f"{where} is of schema {sealed.get('schema_name')!r}, version {sealed.get('schema_version')!r}: expected "
            f"{expected}."
        )
    if sealed.get("coordinate_system", COORDINATES) != COORDINATES:
        raise GapscopeError(f"{where}: coordinate_system is {sealed['coordinate_system']!r}, expected {COORDINATES!r}.")
    digest = hashlib.sha256(data).hexdigest()
    if sealed.get("parquet_sha256") != digest:
        raise GapscopeError(
            f"{path} was altered after it was sealed: its SHA-256 is {digest[:12]}..., its sidecar says "
            f"{str(sealed.get('parquet_sha256'))[:12]}...; take the pair as it was published."
        )
    return sealed


def write_table(
    path: Path, cells: Sequence[Cell], *, policy: str, partition: str, more: Mapping[str, Any] | None = None
) -> Path:
    """Write deployments as a table and its sidecar, each beside its final place and renamed there.

    ``policy`` says how a row was measured, ``partition`` how its tokens were spread over its requests; ``more`` are
    further entries of the sidecar. Columns that a cell's identity lacks are NULL.

    Raises:
        GapscopeError: no row, cells of several engines or parts, or the place cannot be written to.
    """
    places = {tuple(cell.identity.get(name) for name in PLACE) for cell in cells}
    rows = [_row(cell, kind, point, partition) for cell in cells for kind in KINDS for point in getattr(cell, kind)]
    if len(places) != 1 or not rows:
        raise GapscopeError(f"{path}: expected passes, of one part, engine and version.")
    schema = pa.schema(
        [
            ("cell_id", pa.string()),
            ("model_path", pa.string()),
            *((name, pa.string()) for name in PLACE),
            ("weight_quantization", pa.string()),
            *IDENTITY,
            ("workload_kind", pa.string()),
            *((name, pa.int64()) for name in COUNTS),
            ("partition_policy", pa.string()),
            ("latency_ms", pa.float64()),
        ]
    )
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), buffer, compression="zstd")
    data = buffer.getvalue()
    sealed = {
        **(more or {}),
        "schema_name": SCHEMA_NAME,
        "schema_version": SCHEMA_VERSIONS[0],
        "coordinate_system": COORDINATES,
        "measurement_policy": policy,
        "row_count": len(rows),
        "parquet_sha256": hashlib.sha256(data).hexdigest(),
        "model_paths": sorted({str(cell.identity["model_path"]) for cell in cells}),
        **dict(zip(PLACE, places.pop(), strict=True)),
    }
    put(path, data)
    put(sidecar_of(path), json.dumps(sealed, indent=1, sort_keys=True).encode() + b"\n")
    return path


def _row(cell: Cell, kind: str, point: Point, partition: str) -> dict[str, Any]:
    identity = {name: cell.identity.get(name) for name in ("model_path", *PLACE, *(name for name, _ in IDENTITY))}
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    return {
        **identity,
        "cell_id": f"{name}-{kind}",
        "weight_quantization": identity["gemm_quant_mode"],
        "workload_kind": kind,
        **dict(zip(COUNTS, point, strict=False)),
        "partition_policy": partition,
        "latency_ms": point[3],
    }


def put(path: Path, data: bytes) -> None:
    """Write a file beside its final place and rename it there."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden.write_bytes(data)
        hidden.replace(path)
    except OSError as error:
        with suppress(OSError):
            hidden.unlink(missing_ok=True)
        raise GapscopeError(f"Cannot write {path}: {error.strerror or error}; choose another place.") from None


def _bytes(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise GapscopeError(f"{path} cannot be read: {error.strerror or error}; expected {what}.") from None
    if len(data) > _LARGEST_BYTES:
        raise GapscopeError(f"{path} is larger than {_LARGEST_BYTES >> 20} MiB: expected {what}.")
    return data
