"""The runs, as SQL sees them. The only module that imports duckdb.

One in-memory database per :class:`Store`, locked to the store roots, with one cursor per call: DuckDB connections
are not to be shared between threads, cursors are cheap. Requests become a table at the first use of a run; the
other tables stay views over the bundle's Parquet. What is made of a large run is kept in files (``derived.py``) and is
a view over them, so memory does not grow with the runs. A run id names its content, so answers are kept while they fit.

SQL lives in ``dashboard/queries/*.sql``. Values are bound; ``{alias.thing}`` stands for a table of the run that a
caller names ``alias`` and is filled from fixed sets, here and in ``metrics.py``, never from text of a user.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from dashboard.catalogue import Catalogue, RunEntry, Signature
from dashboard.deadline import limited
from dashboard.kept.answers import Lasting
from dashboard.kept.derived import ROW_GROUP, Derived, is_large
from dashboard.kept.memory import Kept
from dashboard.metrics import METRICS, Metric, Population
from engine.bundle import Bundle
from engine.bundle.schema import TABLES
from engine.errors import GapscopeError

QUERIES = Path(__file__).parent / "queries"
ROW_CAP = 100_000
TIME_LIMIT_S = 30.0
MAKING_LIMIT_S = 300.0
"""For tables that are made once: a large run takes longer than a question may."""
PREPARING_LIMIT_S = 3600.0
"""The same where nobody waits for it, and the machine may have other work."""
MEMORY_LIMIT = "600MB"
SPILL_LIMIT = "20GB"
"""Of disk, for what does not fit into memory while it is worked out."""

_TABLE_OF = {
    "population": "requests",
    "pairs": "requests",
    "stages": "requests",
    "token_gaps": "chunks",
    "chunk_gaps": "chunks",
    "block_moves": "kv_events",
    "block_copies": "kv_events",
    "known_blocks": "requests",
    "passes_in": "passes",
    "block_hashes": "requests",
}
"""The table of a bundle that something in a query is made of, where it is not named like one."""
WORKED_OUT = ("stages", "token_gaps", "chunk_gaps", "block_moves", "block_copies", "known_blocks")
"""Tables that are made of a run's at their first use, by ``queries/_<name>.sql``."""
_COLUMNS = frozenset(m.column for m in METRICS.values())
_PART = re.compile(r"\{part\.(\w+)\}")
_PLACE = re.compile(r"\{(\w+)\.(\w+)\}")
_PARAMETER = re.compile(r"\$([a-z_]\w*)")
_OF_REQUESTS = re.compile(r"\{\w+\.(?:population|pairs)\}|\$role\b")
"""What of a query depends on more of a population than its phase."""
_DIGEST = re.compile(r"-([0-9a-f]{12})$")


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of an answer with what stands beside them.

    ``sql`` is what ran, with its bound values as comments. ``truncated`` says that the row cap cut the answer.
    ``not_recorded`` is a sentence when a table that the question needs is absent; there are no rows then.
    """

    table: pa.Table
    sql: str
    truncated: bool = False
    not_recorded: str | None = None

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def rows(self) -> list[dict[str, Any]]:
        """The rows as dicts; NULL is None."""
        return list(self.table.to_pylist())

    def array(self, column: str) -> np.ndarray[Any, Any]:
        """One column as an array; NULL numbers become NaN."""
        return np.asarray(self.table.column(column).to_numpy(zero_copy_only=False))

    def one(self) -> dict[str, Any]:
        """The only row."""
        assert self.table.num_rows == 1, f"{self.table.num_rows} rows where one was expected"
        return dict(self.table.to_pylist()[0])


class Store:
    """Runs under several roots: catalogue, verified bundles and queries. Safe to use from threads.

    A store that is ``preparing`` has nobody who waits for it: tables and answers may take their time, and every answer
    is kept in a file that may be, as what it was quickly made of is not in the memory of the next server.
    """

    def __init__(self, roots: Sequence[Path | str], preparing: bool = False) -> None:
        self.catalog = Catalogue([Path(root) for root in roots])
        self.roots = self.catalog.roots
        self._spill = TemporaryDirectory(prefix="gapscope-spill-", ignore_cleanup_errors=True)
        self._database = _locked_database(self.roots, self._spill.name)
        self._derived = Derived(self.roots) if self.roots else None
        self._lasting = Lasting(self.roots[-1], all_of_them=preparing) if self.roots else None
        self._making_limit_s = PREPARING_LIMIT_S if preparing else MAKING_LIMIT_S
        self._least_limit_s = PREPARING_LIMIT_S if preparing else 0.0
        self._lock = RLock()
        self._making = RLock()  # of tables: two sessions that make the same one at once are in each other's way
        self._loaded: dict[str, tuple[Signature, frozenset[str]]] = {}
        self._answers = Kept()
        self._tables = Kept(most=1_000_000)  # those that were worked out: they stay as long as the database does

    def close(self) -> None:
        """Close the database; the store is not used afterwards."""
        self._database.close()
        self._spill.cleanup()

    def catalogue(self) -> list[RunEntry]:
        """Every run of the roots, whatever its state."""
        return self.catalog.entries()

    def find(self, ref: str) -> RunEntry:
        """The run with this id or unique beginning of one."""
        return self.catalog.find(ref)

    def bundle(self, run_id: str) -> Bundle:
        """The bundle of a run, verified.

        Raises:
            GapscopeError: absent, malformed or altered.
        """
        return self.catalog.bundle(run_id)[0]

    def steady(self) -> AbstractContextManager[None]:
        """A block in which the files of each run are looked at once, for many questions in a row."""
        return self.catalog.steady()

    def tables(self, run_id: str) -> frozenset[str]:
        """Names of the tables that the run recorded."""
        return self._load(run_id)

    def query(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        *,
        runs: Mapping[str, str],
        population: Population | None = None,
        metric: Metric | None = None,
        row_cap: int | None = ROW_CAP,
        time_limit_s: float = TIME_LIMIT_S,
        keep: bool = True,
    ) -> Result:
        """Answer the question in ``queries/<name>.sql``.

        ``params`` are bound, ``runs`` names the run behind each alias of the query. ``{alias.population}`` and
        ``{alias.passes_in}`` are the requests and passes of ``population`` (passes without what a rank waited for the
        slowest of its step), ``{alias.pairs}`` the ids of the source-turns that its phases share with the other run of
        the query; ``{alias.stages}`` says what the time of each request went to, ``{alias.block_moves}`` what became of
        each block, and by whom; ``{alias.block_hashes}`` are the requests as stored, block hashes included;
        ``{metric.column}`` is that of ``metric``.
        ``row_cap`` None reads every row: for statistics, which a cut would falsify; the time limit still holds.
        The answer is kept unless ``keep`` is false (for callers that keep what they make of it).

        Raises:
            GapscopeError: a run that is absent or altered, or the time limit.
        """
        if population is not None and not _OF_REQUESTS.search(_text(name)):
            population = Population(population.phase)  # of passes: which requests are meant makes no difference
        key = (name, tuple(sorted(runs.items())), population, metric and metric.name, row_cap, _frozen(params or {}))
        for run_id in runs.values():
            self._load(run_id)  # notices files that changed before an old answer is given

        def ask() -> Result:
            limit_s = max(time_limit_s, self._least_limit_s)
            return self._ask(name, runs, population, metric, row_cap, limit_s, params or {})

        answer: Result = self.remember(key, ask, runs=tuple(runs.values())) if keep else ask()
        return answer

    def remember(self, key: Any, make: Callable[[], Any], runs: Sequence[str] = ()) -> Any:
        """The kept answer under ``key``, or what ``make()`` gives, kept; the least recently used go first.

        ``runs`` are those of the key where nothing but them, the key and this program is behind the answer: it is kept
        in a file as well where one of them is large.
        """

        def found() -> Any:
            lasting = self._lasting if any(map(self.is_large, runs)) else None
            return make() if lasting is None else lasting.get(key, make)

        return self._answers.get(key, found)

    def is_large(self, run_id: str) -> bool:
        """Whether files are kept of what is made of a run."""
        bundle = self.bundle(run_id)
        return is_large(bundle.rows(one) for one in TABLES)

    def _ask(
        self,
        name: str,
        runs: Mapping[str, str],
        population: Population | None,
        metric: Metric | None,
        row_cap: int | None,
        time_limit_s: float,
        params: Mapping[str, Any],
    ) -> Result:
        text, bound, shown, missing = self._filled(name, runs, population, metric, params)
        if missing:
            return Result(pa.table({}), text, not_recorded=missing[0])
        asked = text if row_cap is None else f"FROM (\n{text}\n) LIMIT {row_cap + 1}"
        table = self._run(asked, bound, time_limit_s, name)
        cut = row_cap is not None and table.num_rows > row_cap
        return Result(table.slice(0, row_cap) if cut else table, shown, cut)

    def text(self, name: str, *, runs: Mapping[str, str], population: Population, metric: Metric | None = None) -> str:
        """The SQL of a question as it stands beside its answer, without asking it."""
        for run_id in runs.values():
            self._load(run_id)
        text, _, shown, missing = self._filled(name, runs, population, metric, {})
        return text if missing else shown

    def _filled(
        self,
        name: str,
        runs: Mapping[str, str],
        population: Population | None,
        metric: Metric | None,
        params: Mapping[str, Any],
    ) -> tuple[str, dict[str, Any], str, list[str]]:
        """A question's SQL and bound values, both as they are shown, and sentences on tables that are absent."""
        values = dict(params)
        if population is not None:
            values |= {"phases": list(population.phases), "role": population.role}
        notes: dict[str, str] = {}
        missing: list[str] = []

        def place(found: re.Match[str]) -> str:
            alias, thing = found.groups()
            if alias == "metric":
                if metric is None or metric.column not in _COLUMNS:
                    raise ValueError(f"query {name} needs a known metric")
                return metric.column
            run_id = runs[alias]
            table = _TABLE_OF.get(thing, thing)
            if table not in self._load(run_id):
                missing.append(f"Not recorded: run {run_id} has no table {table}.")
                return "(SELECT NULL)"
            relation = _relation(run_id, table)
            notes[relation] = f"{table}.parquet of run {run_id}"
            if thing == table:
                return relation
            if thing == "block_hashes":
                return f"raw_{relation}"
            if thing in WORKED_OUT:
                return self._worked_out(run_id, thing)
            if population is None:
                raise ValueError(f"query {name} needs a population")
            if thing == "passes_in":
                own = "duration_ns - coalesce(wait_ns, 0) AS duration_ns"  # without waiting for the slowest rank
                return f"(SELECT * REPLACE ({own}) FROM {relation} WHERE phase IN {_words(population.pass_phases)})"
            other = next((one for one in runs.values() if one != run_id), run_id)
            if thing == "pairs":
                return self._matched(run_id, population.shared_with(other))
            if population.matched and population.counterpart is None and len(runs) > 1:
                return self._members(run_id, population.shared_with(other))
            return self._members(run_id, population)

        text = _PLACE.sub(place, _text(name))
        used = set(_PARAMETER.findall(text))
        bound = {key: value for key, value in values.items() if key in used}
        shown = [f"-- {relation}: {note}" for relation, note in sorted(notes.items())]
        shown += [f"-- ${key} = {value!r}" for key, value in sorted(bound.items())]
        return text, bound, "\n".join([*shown, text.strip()]), missing

    def _members(self, run_id: str, population: Population) -> str:
        """SQL of the requests of a population; membership that depends on the other side is a table, made once."""
        requests = _relation(run_id, "requests")
        where = f"phase IN {_words(population.phases)}"
        if population.role != "any":
            where += f" AND agent_depth {'=' if population.role == 'root' else '<>'} 0"
        if not population.matched:
            return f"(SELECT * FROM {requests} WHERE {where})"
        shared = self._matched(run_id, population)
        return f"(SELECT * FROM {requests} WHERE {where} AND request_number IN (SELECT request_number FROM {shared}))"

    def _matched(self, run_id: str, population: Population) -> str:
        """SQL of the source-turns that a matched population shares with its counterpart: the numbers of the requests.

        The table behind it is made once for two runs and a phase, whichever of them is asked about and by which rule.
        """
        if population.counterpart is None:
            raise ValueError("a matched population needs its counterpart: Population.for_side")
        first, second = sorted((run_id, population.counterpart))
        table = f"matched_{_digest(first)}_{_digest(second)}_{population.phase}"

        def make() -> bool:
            source = text = _text("_matched")
            for place, one in (("{first}", first), ("{second}", second)):
                recorded = "requests" in self._load(one)
                text = text.replace(place, _relation(one, "requests") if recorded else "no_requests")
            name = table.replace(f"_{_digest(first)}", "")
            self._create(first, name, table, text, source, {"phases": list(population.phases)})
            return True

        with self._making:
            self._tables.get(("matched", table), make)
        own, other = ("first", "second") if run_id == first else ("second", "first")
        found = f"SELECT {own}_number AS request_number, {other}_number AS other_number FROM {table}"
        if population.subset == "matched":
            return f"({found})"
        most = population.tolerance_tokens if population.subset == "matched_near" else 0
        return f"({found} WHERE input_apart <= {int(most)} AND output_apart <= {int(most)})"

    def work_out(self, run_id: str, name: str) -> None:
        """Make one of ``WORKED_OUT`` of a run, which is made at its first use; of a large run it stays in a file."""
        self._worked_out(run_id, name)

    def _worked_out(self, run_id: str, name: str) -> str:
        """A table that is made of the run's, once; those that the run lacks are empty in it."""
        table = f"{name}_{_digest(run_id)}"
        recorded = self._load(run_id)

        def make() -> bool:
            text = _text(f"_{name}")
            for one in TABLES:
                relation = _relation(run_id, one) if one in recorded else f"no_{one}"
                text = text.replace(f"{{{one}}}", relation).replace(f"{{raw_{one}}}", f"raw_{relation}")
            for one in WORKED_OUT:
                if f"{{{one}}}" in text:
                    text = text.replace(f"{{{one}}}", self._worked_out(run_id, one))
            known = {"block_size": self.bundle(run_id).identity.value("capacity", "block_size")}
            bound = {key: value for key, value in known.items() if key in set(_PARAMETER.findall(text))}
            self._create(run_id, name, table, text, _text(f"_{name}"), bound)
            return True

        with self._making:
            self._tables.get((name, run_id, recorded), make)
        return table

    def _create(
        self, run_id: str, name: str, relation: str, text: str, source: str, bound: dict[str, Any] | None = None
    ) -> None:
        """Make ``relation`` of a run by ``text``; of a large run it is a view over a file, which may be there already.

        ``source`` is the SQL by which the file is known, without names of this process.
        """
        path = None
        if self._derived is not None and self.is_large(run_id):
            path = self._derived.found(run_id, name, source)
            if path is None:
                watched = limited(cursor := self._database.cursor(), self._making_limit_s)
                with closing(cursor), _told(name, self._making_limit_s), watched:
                    made = cursor.sql(text, params=_wide(bound)) if bound else cursor.sql(text)
                    path = self._derived.keep(run_id, name, source, made.to_arrow_reader(ROW_GROUP))
        with closing(self._database.cursor()) as cursor:
            if path is not None:
                cursor.read_parquet(str(path)).create_view(relation, replace=True)
                return
        self._run(f"CREATE OR REPLACE TABLE {relation} AS {text}", bound or {}, self._making_limit_s, name)

    def _run(self, sql: str, params: dict[str, Any], time_limit_s: float, name: str) -> pa.Table:
        with closing(self._database.cursor()) as cursor, _told(name, time_limit_s), limited(cursor, time_limit_s):
            relation = cursor.sql(sql, params=_wide(params)) if params else cursor.sql(sql)
            return pa.table({}) if relation is None else _plain(relation.to_arrow_table())

    def _load(self, run_id: str) -> frozenset[str]:
        """Make the run's tables known to SQL, once; names of those it has."""
        with self._lock:
            bundle, signature = self.catalog.bundle(run_id)
            known = self._loaded.get(run_id)
            if known and known[0] == signature:
                return known[1]
            with closing(self._database.cursor()) as cursor:
                for table in TABLES:
                    if table in bundle.tables:
                        path = bundle.path.resolve() / f"{table}.parquet"
                        try:
                            self._register(cursor, run_id, table, str(path))
                        except duckdb.Error as error:
                            raise GapscopeError(
                                f"Run {run_id}: table {table} cannot be read ({str(error).splitlines()[0]}); expected "
                                "the columns of docs/bundle.md. Write the run again."
                            ) from None
            tables = frozenset(bundle.tables)
            self._loaded[run_id] = (signature, tables)
            return tables

    def _register(self, cursor: duckdb.DuckDBPyConnection, run_id: str, table: str, path: str) -> None:
        """Make one table of a run known to SQL. Its requests are worked on once, its passes at each question."""
        relation = _relation(run_id, table)
        if table not in ("requests", "passes"):
            _whole(cursor, table, path).create_view(relation, replace=True)
            return
        raw, text = f"raw_{relation}", _text(f"_{table}")
        _whole(cursor, table, path).create_view(raw, replace=True)
        if table == "requests":
            self._create(run_id, table, relation, text.replace("{raw}", raw), text)
        else:
            cursor.execute(f"CREATE OR REPLACE VIEW {relation} AS {text.replace('{raw}', raw)}")


@contextmanager
def _told(name: str, time_limit_s: float) -> Iterator[None]:
    """Say in a sentence that a query was stopped, for its time or for its memory."""
    try:
        yield
    except duckdb.InterruptException:
        raise GapscopeError(
            f"Query {name} took longer than {time_limit_s:g} s and was stopped: expected a narrower question; "
            "choose a smaller population or time range."
        ) from None
    except duckdb.OutOfMemoryException:
        raise GapscopeError(
            f"Query {name} needs more than {MEMORY_LIMIT} of memory and was stopped: expected a narrower question; "
            "choose a smaller population or time range."
        ) from None


def _locked_database(roots: Sequence[Path], spill: str) -> duckdb.DuckDBPyConnection:
    """A database that reads the roots and nothing else; the order of these statements matters."""
    database = duckdb.connect(":memory:")
    database.execute("SET allowed_directories = $roots", {"roots": [str(root) for root in roots]})
    for statement in (
        f"SET memory_limit = '{MEMORY_LIMIT}'",
        "SET threads = 2",
        f"SET temp_directory = '{spill}'",
        f"SET max_temp_directory_size = '{SPILL_LIMIT}'",
        "SET parquet_metadata_cache = true",
        "SET autoinstall_known_extensions = false",
        "SET autoload_known_extensions = false",
        "SET enable_external_access = false",
        "SET lock_configuration = true",
    ):
        database.execute(statement)
    for name, table in TABLES.items():
        _create_empty(database, name, table.schema)
    return database


def _create_empty(database: duckdb.DuckDBPyConnection, name: str, schema: pa.Schema) -> None:
    """``no_<name>``: what stands for a table that a run lacks, where a question can do without."""
    empty = database.from_arrow(schema.empty_table())
    empty.create(f"raw_no_{name}")
    if name in ("requests", "passes"):
        database.execute(f"CREATE TABLE no_{name} AS {_text(f'_{name}').replace('{raw}', f'raw_no_{name}')}")
    else:
        database.execute(f"CREATE VIEW no_{name} AS FROM raw_no_{name}")


def _digest(run_id: str) -> str:
    found = _DIGEST.search(run_id)
    if not found:
        raise GapscopeError(f"Run id {run_id!r}: expected a slug, a dash and 12 hex digits.")
    return found.group(1)


def _relation(run_id: str, table: str) -> str:
    assert table in TABLES, table
    return f"{table}_{_digest(run_id)}"


def _whole(cursor: duckdb.DuckDBPyConnection, table: str, path: str) -> duckdb.DuckDBPyRelation:
    """The file with every column of the schema: one that an earlier version did not know is NULL."""
    file, schema = cursor.read_parquet(path), cursor.table(f"raw_no_{table}")
    held = set(file.columns)
    types = zip(schema.columns, schema.types, strict=True)
    lacking = [f"NULL::{type_} AS {name}" for name, type_ in types if name not in held]
    return file.project(", ".join(["*", *lacking])) if lacking else file


def _words(names: Sequence[str]) -> str:
    """A list of fixed names as SQL. Written out, not bound: the planner then skips what they exclude."""
    quoted = [f"'{name}'" for name in names]
    return f"({', '.join(quoted)})"


@cache
def _text(name: str) -> str:
    """The text of a query; ``{part.name}`` stands for what several share, kept in ``_name.sql``."""
    text = (QUERIES / f"{name}.sql").read_text(encoding="utf-8")
    return _PART.sub(lambda found: _text(f"_{found[1]}").rstrip(), text)


def _wide(params: dict[str, Any]) -> dict[str, Any]:
    """Whole numbers as 64 bits: DuckDB binds small ones as 32, and the difference of two moments may not fit those."""
    return {name: duckdb.LongValue(value) if type(value) is int else value for name, value in params.items()}


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple(sorted((k, _frozen(v)) for k, v in value.items()))
    return tuple(_frozen(v) for v in value) if isinstance(value, (list, tuple)) else value


def _plain(table: pa.Table) -> pa.Table:
    """Sums come as 128-bit decimals: counts and nanoseconds fit 64 bits."""
    for index, column in enumerate(table.schema):
        if pa.types.is_decimal(column.type):
            target = pa.int64() if column.type.scale == 0 else pa.float64()
            table = table.set_column(index, column.name, table.column(index).cast(target))
    return table
