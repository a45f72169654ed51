"""Files of a bundle as they reach the disk: digested while written, flushed before they count."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


class HashingFile:
    """A new file that knows the digest and the size of what went into it."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "xb")  # noqa: SIM115 - closed by close(), which the Arrow sink calls too
        self.sha256 = hashlib.sha256()
        self.size = 0

    @property
    def closed(self) -> bool:
        """Whether the file was closed."""
        return self._file.closed

    def write(self, data: Any) -> int:
        """Append a buffer; returns its size in bytes."""
        view = memoryview(data).cast("B")
        self._file.write(view)
        self.sha256.update(view)
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        """Bytes written so far."""
        return self.size

    def flush(self) -> None:
        """Hand what is buffered to the system."""
        self._file.flush()

    def sync(self) -> None:
        """Return when everything is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; the digest stays."""
        self._file.close()


def parquet_writer(sink: HashingFile, schema: pa.Schema) -> pq.ParquetWriter:
    """A Parquet writer with the bundle's encodings."""
    leaves = [(f.name, f.type) for f in schema]
    leaves += [(f"members.list.element.{f.name}", f.type) for t in schema.types if _is_members(t) for f in t.value_type]
    texts = [path for path, t in leaves if pa.types.is_dictionary(t) or (pa.types.is_string(t) and "." in path)]
    # Differences pack times and counters into half of what zstd alone makes of them, and DuckDB reads them faster.
    packed = {path: "DELTA_BINARY_PACKED" for path, t in leaves if pa.types.is_int64(t)}
    return pq.ParquetWriter(sink, schema, compression="zstd", use_dictionary=texts, column_encoding=packed)


def _is_members(type_: pa.DataType) -> bool:
    return pa.types.is_list(type_) and pa.types.is_struct(type_.value_type)


def write_durably(path: Path, data: bytes) -> None:
    """A new file that is on the disk when this returns."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
