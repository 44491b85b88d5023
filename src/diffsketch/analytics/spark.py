"""People in a data frame of Spark, spread over many machines.

The rows stay where they are: executors make sums of whole numbers of them by the SQL of `queries`,
and only sums reach the process that adds the noise and answers.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from diffsketch.analytics.queries import PeopleTable
from diffsketch.errors import DataError

# The hash begins with the salt: each key's place in the order is a new one for each question.
_SALTED = (
    "CREATE TEMPORARY FUNCTION salted(a STRING, b STRING, salt BIGINT) RETURNS BIGINT "
    "RETURN xxhash64(salt, a, b)"
)


class PeopleFrame(PeopleTable):
    """A data frame of Spark with the rows of people: four questions, as for a file.

    Whoever runs Spark sees the rows and the sums without noise, so the trust must be central. A bad
    row is named by its column and value alone, as rows of a data frame have no order.

    Args:
        frame: The data frame. It is read once or twice for each question.
        person: Title of the column with the person of each row; without it each row is a person.

    Raises:
        ArgumentError: The frame has no such column, or two.
    """

    name = "the data frame"

    def __init__(self, frame: DataFrame, *, person: str | None = None) -> None:
        self.person = person
        self.columns = [(field.name, field.dataType.simpleString()) for field in frame.schema]
        self._frame = frame.toDF(*(f"c{place}" for place in range(len(self.columns))))
        self._view = f"diffsketch_{secrets.token_hex(8)}"
        self.source = f"global_temp.{self._view}"
        if person is not None:
            self._place(person)

    @contextmanager
    def session(self) -> Iterator[_Spark]:
        """Open a session of its own, whose names and settings are nobody else's."""
        spark = self._frame.sparkSession.newSession()
        engine = _Spark(spark, self.source)
        self._frame.createGlobalTempView(self._view)
        try:
            # As in the standard, whatever the cluster's default: an overflow is no silent number.
            spark.conf.set("spark.sql.ansi.enabled", "true")
            spark.sql(_SALTED)
            yield engine
        except PySparkException as error:
            text = str(error).partition("\n")[0]
            raise DataError(f"{self.name} cannot be read: {text}") from error
        finally:
            for kept in engine.kept:
                kept.unpersist()
            spark.catalog.dropGlobalTempView(self._view)


class _Spark:
    """Runs queries; what is kept lies on the executors' disks."""

    def __init__(self, spark: SparkSession, source: str) -> None:
        self._spark, self._source = spark, source
        self.kept: list[DataFrame] = []

    def rows(self, query: str) -> Iterator[Sequence[Any]]:
        yield from self._spark.sql(query).toLocalIterator()

    def keep(self, name: str, query: str) -> None:
        self.kept.append(self._spark.sql(query).persist(StorageLevel.DISK_ONLY))
        self.kept[-1].createOrReplaceTempView(name)

    def first(self, column: str, value: str) -> tuple[str, Any] | None:
        bad = f"SELECT {column} FROM {self._source} WHERE {value} IS NULL LIMIT 1"
        row = self._spark.sql(bad).first()
        return None if row is None else ("", row[0])
