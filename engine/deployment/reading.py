"""Mappings read from files become records: every key known, every value of its type and in its range."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from engine.deployment.dtypes import DTYPES
from engine.errors import GapscopeError

_Record = TypeVar("_Record")

_AT_LEAST_ONE = {
    "hidden",
    "layers",
    "vocab",
    "heads",
    "kv_heads",
    "head_dim",
    "v_head_dim",
    "k_heads",
    "v_heads",
    "count",
    "topk",
    "width",
    "domain_gpus",
    "compute_units",
    "max_context",
}
_MOST = {"int": 10**9, "float": 1e9}
_RATE = f"a number above 0 and at most {_MOST['float']:,.0f}"


def read_record(cls: type[_Record], values: Mapping[str, Any], where: str, **given: Any) -> _Record:
    """A record of the dataclass ``cls`` from ``values``; ``given`` are fields that the file may not name.

    Raises:
        GapscopeError: an unknown key (the nearest known one is named), a missing one, or a value of another type or out
            of its range. ``where`` says in which file and table.
    """
    fields = {field.name: field for field in dataclasses.fields(typing.cast(Any, cls)) if field.name not in given}
    hints = typing.get_type_hints(cls)
    read: dict[str, Any] = dict(given)
    for key, value in values.items():
        if key not in fields:
            near = get_close_matches(key, fields, n=1, cutoff=0)
            raise GapscopeError(f"{where}: unknown key {key!r}, the nearest known one is {near[0]!r}.")
        read[key] = _value(hints[key], value, key, where)
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in read:
            if _optional(hints[name]):
                read[name] = None
            else:
                raise GapscopeError(f"{where}: {name} is missing, expected {_expected(hints[name], name)}.")
    return cls(**read)


def _optional(hint: Any) -> bool:
    return isinstance(hint, types.UnionType) and type(None) in typing.get_args(hint)


def _plain(hint: Any) -> Any:
    """The type without None."""
    if _optional(hint):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    return hint


def _expected(hint: Any, name: str) -> str:
    plain = _plain(hint)
    if name.endswith("dtype"):
        return f"one of {', '.join(DTYPES)}"
    if plain is int:
        return f"a whole number from {1 if name in _AT_LEAST_ONE else 0} to {_MOST['int']:,}"
    if plain is float:
        return "a share above 0 and at most 1" if name.endswith("_share") else _RATE
    if plain is bool:
        return "true or false"
    if plain is str:
        return "text"
    if typing.get_origin(plain) is tuple:
        return "a list of whole numbers of at least 0"
    return "a table"


def _value(hint: Any, value: Any, name: str, where: str) -> Any:
    plain = _plain(hint)
    if value is None and _optional(hint):
        return None
    if dataclasses.is_dataclass(plain) and isinstance(value, Mapping):
        return read_record(typing.cast(Any, plain), value, f"{where}, {name}")
    if typing.get_origin(plain) is tuple and isinstance(value, (list, tuple)):
        if all(_is_count(code) for code in value):
            return tuple(value)
    elif _is_mapping(plain) and isinstance(value, Mapping):
        return _table(plain, value, name, where)
    elif _fits(plain, value, name):
        return float(value) if plain is float else value
    raise GapscopeError(f"{where}: {name} is {value!r}, expected {_expected(hint, name)}.")


def _is_mapping(plain: Any) -> bool:
    return isinstance(typing.get_origin(plain), type) and issubclass(typing.get_origin(plain), Mapping)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST["int"]


def _is_rate(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 0 < value <= _MOST["float"]


def _fits(plain: Any, value: Any, name: str) -> bool:
    if plain is int:
        return _is_count(value) and value >= (name in _AT_LEAST_ONE)
    if plain is float:
        return _is_rate(value) and (value <= 1 or not name.endswith("_share"))
    if plain is str and name.endswith("dtype"):
        return type(value) is str and value in DTYPES
    return plain in (str, bool) and type(value) is plain


def _table(plain: Any, value: Mapping[Any, Any], name: str, where: str) -> dict[Any, Any]:
    """Texts by name (sources), or rates by number of GPUs; numbers in ascending order."""
    keys, _ = typing.get_args(plain)
    if keys is str:
        for key, text in value.items():
            if type(text) is not str:
                raise GapscopeError(f"{where}: {name}.{key} is {text!r}, expected text.")
        return dict(value)
    read = {}
    for key, rate in value.items():
        try:
            number = int(key)
        except ValueError:
            raise GapscopeError(f"{where}: {name} has the key {key!r}, expected a number of GPUs.") from None
        if number < 2 or not _is_rate(rate):
            raise GapscopeError(f"{where}: {name}.{key} is {rate!r}, expected {_RATE} for each number of GPUs from 2.")
        read[number] = float(rate)
    return dict(sorted(read.items()))
