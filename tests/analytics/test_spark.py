"""Data frames of Spark: the same sums as in memory, from several workers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from diffsketch import Account, Answer
from diffsketch.analytics import Terms
from diffsketch.errors import ArgumentError, DataError
from tests.analytics.tables import COLUMNS, TERMS, check_no_key_is_favoured, check_sums
from tests.helpers.refusals import refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

sql = pytest.importorskip("pyspark.sql")
from diffsketch.analytics.spark import PeopleFrame  # noqa: E402 - not without pyspark

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark runs on Java"),
]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Spark's local runner with two workers, which meet over the loopback alone."""
    settings = {
        "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "3",
        "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
        # Short queries: the time goes to compilers of what runs once.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.codegen.wholeStage": "false",
    }  # fmt: skip
    session = sql.SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def people(spark: SparkSession) -> DataFrame:
    rows = list(zip(*(column.tolist() for column in COLUMNS.values()), strict=True))
    return spark.createDataFrame(rows, list(COLUMNS)).repartition(5)


def test_sums_are_those_of_the_data_in_memory(people: DataFrame) -> None:
    assert people.rdd.getNumPartitions() == 5
    check_sums(PeopleFrame(people, person="who"))


def test_no_key_is_favoured(spark: SparkSession) -> None:
    keys = spark.range(100_000, numPartitions=3)
    frame = keys.selectExpr("id div 10 AS person", "id % 10 AS key")
    check_no_key_is_favoured(PeopleFrame(frame, person="person"))


def test_top_list_and_account(people: DataFrame) -> None:
    account = Account()
    answer = PeopleFrame(people).counts("city", Terms(1.0, account=account), top=2)
    assert (answer.question, len(answer), account.rounds) == ("top 2", 2, 1)
    assert str(answer.epsilon).endswith("(proven; client unit, replace, central trust)")


@pytest.mark.parametrize(
    ("column", "error", "words"),
    [
        ("if(who = 7, 'x y', '3')", ArgumentError, "'age' of the data frame.* number.* 'x y'"),
        ("nullif(who, 7)", ArgumentError, "'age'.* got nothing"),
        ("raise_error('broken')", DataError, "the data frame cannot be read: .*broken"),
    ],
)
def test_what_is_wrong_is_named_and_costs_nothing(
    people: DataFrame, column: str, error: type[Exception], words: str
) -> None:
    account, frame = Account(), people.selectExpr("who", f"{column} AS age")
    terms = Terms(1.0, account=account)
    refused(error, words, PeopleFrame(frame).mean, ["age"], (0, 100), terms)
    if "nullif" in column:
        frame = frame.toDF("key", "id")
        refused(ArgumentError, "'id'.* id of a person", PeopleFrame(frame, person="id").counts,
                "key", terms)  # fmt: skip
    assert account.rounds == 0


def test_names_are_free_again(people: DataFrame, spark: SparkSession) -> None:
    """Two questions at a time, and nothing is left in the catalogue."""
    table = PeopleFrame(people)
    with table.session() as first, PeopleFrame(people).session() as second:
        first.keep("sums", "SELECT 1 AS x")
        second.keep("sums", "SELECT 2 AS x")
        assert [row[0] for row in first.rows("SELECT x FROM sums")] == [1]
    answer: Answer = table.mean(["age"], (0, 100), TERMS)
    assert answer.people == people.count()
    assert spark.catalog.listTables("global_temp") == []
    refused(ArgumentError, "'nobody'", PeopleFrame, people, person="nobody")
