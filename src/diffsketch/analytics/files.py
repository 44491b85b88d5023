"""CSV and Parquet files of people, larger than memory: read by DuckDB."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from diffsketch.analytics.queries import PeopleTable
from diffsketch.errors import DataError
from diffsketch.files import cores

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_DELIMITERS = ",;\t|"
_MEMORY = "2GB"  # of DuckDB, which then writes to the disk; 25 million persons need over 1 GB
_BEFORE = (
    "SET enable_progress_bar = true",
    "SET enable_progress_bar_print = false",
    "CREATE MACRO rint(x) AS round_even(x, 0)",
    # Twice, as the first ends with an exclusive or of the salt: that would favour some keys.
    "CREATE MACRO salted(a, b, salt) AS hash(hash(a, b, salt))",
)


class PeopleFile(PeopleTable):
    """A CSV or Parquet file of people.

    CSV files begin with the titles of their columns, are in UTF-8 and may be gzipped (`.gz`); what
    separates columns is the comma, semicolon, tab or bar of that first line. What does not fit into
    memory goes to a temporary directory (in `TMPDIR`), and is removed with it.

    Args:
        path: The file.
        person: Title of the column with the person of each row; without it each row is a person.
        progress: Called now and then with the share of a pass over the file that is done.

    Raises:
        ArgumentError: The file has no such column, or two.
        DataError: The file cannot be read.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        person: str | None = None,
        progress: Callable[[float], object] | None = None,
    ) -> None:
        self.name, self._path, self.person = str(path), Path(path), person
        self._progress = progress
        with self._path.open("rb") as stream:
            is_parquet = stream.read(4) == b"PAR1"
        # DuckDB takes these characters in a name for a pattern of names.
        place = _quoted(re.sub(r"[*?\[]", r"[\g<0>]", str(self._path.absolute())))
        if is_parquet:
            self.source = f"read_parquet({place}, hive_partitioning=false)"
            with self.session() as engine:
                described = engine.rows(f"DESCRIBE SELECT * FROM {self.source}")
                self.columns = [(title, kind) for title, kind, *_ in described]
            self.source += f" AS t({', '.join(f'c{i}' for i in range(len(self.columns)))})"
        else:
            delimiter, titles = self._header()
            self.columns = [(title, "VARCHAR") for title in titles]
            kinds = {f"c{i}": kind for i, (_, kind) in enumerate(self.columns)}
            # Nothing is guessed: where rows do not fit a guess, DuckDB may skip them silently.
            self.source = (
                f"read_csv({place}, auto_detect=false, header=true, delim={_quoted(delimiter)}, "
                f"quote='\"', escape='\"', hive_partitioning=false, columns={kinds})"
            )
        if person is not None:
            self._place(person)

    def _header(self) -> tuple[str, list[str]]:
        """Return the character that separates columns, and their titles."""
        opened: Any = gzip.open if self._path.suffix == ".gz" else open
        try:
            with opened(self._path, "rt", encoding="utf-8-sig", newline="") as stream:
                line = stream.readline()
        except (UnicodeDecodeError, gzip.BadGzipFile) as error:
            raise DataError(f"{self.name} must be Parquet, or CSV in UTF-8: {error}") from error
        titles = {mark: next(csv.reader([line], delimiter=mark), [""]) for mark in _DELIMITERS}
        delimiter = max(titles, key=lambda mark: len(titles[mark]))
        return delimiter, titles[delimiter]

    @contextmanager
    def session(self) -> Iterator[_DuckDB]:
        """Open DuckDB, which reads no network and leaves nothing behind."""
        import duckdb

        with TemporaryDirectory(prefix="diffsketch-") as spill:
            settings: Any = {
                "temp_directory": spill, "threads": cores(), "memory_limit": _MEMORY,
                "preserve_insertion_order": False, "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            }  # fmt: skip
            try:
                with duckdb.connect(config=settings) as connection:
                    for statement in _BEFORE:
                        connection.execute(statement)
                    yield _DuckDB(connection, self.source, self._progress)
            except duckdb.Error as error:
                text = re.split(r"\n\s*(?:Possible|file = )", str(error))[0]
                raise DataError(f"{self.name} cannot be read: {text}") from error


class _DuckDB:
    """Runs queries in a thread, as Python sees Ctrl-C only between calls."""

    def __init__(
        self,
        connection: DuckDBPyConnection,
        source: str,
        progress: Callable[[float], object] | None,
    ) -> None:
        self._connection, self._source, self._progress = connection, source, progress

    def _run(self, query: str) -> DuckDBPyConnection:
        with ThreadPoolExecutor(1) as worker:
            future = worker.submit(self._connection.execute, query)
            try:
                done: object = None
                while not done:
                    if self._progress is not None:
                        self._progress(max(0.0, self._connection.query_progress() / 100))
                    done = wait([future], timeout=0.1).done
            except BaseException:
                self._connection.interrupt()
                raise
            return future.result()

    def rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        result = self._run(query)
        while piece := result.fetchmany(1 << 14):
            yield from piece

    def keep(self, name: str, query: str) -> None:
        self._run(f"CREATE TABLE {name} AS {query}")

    def first(self, column: str, value: str) -> tuple[str, Any] | None:
        self._run("SET preserve_insertion_order = true")
        numbered = f"SELECT row_number() OVER () AS place, {column}, {value} AS value"
        row = self._run(
            f"SELECT * FROM (SELECT * FROM ({numbered} FROM {self._source}) WHERE value IS NULL "
            "LIMIT 1)"
        ).fetchone()
        return None if row is None else (f" in row {row[0]:,} after the titles", row[1])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def parquet(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """Columns as the content of a Parquet file."""
    import duckdb

    with TemporaryDirectory(prefix="diffsketch-") as folder, duckdb.connect() as connection:
        path = Path(folder) / "answer.parquet"
        lists = ", ".join(f'unnest(?) AS "{title}"' for title in columns)
        query = f"COPY (SELECT {lists}) TO {_quoted(str(path))}"
        connection.execute(query, [list(values) for values in columns.values()])
        return path.read_bytes()
