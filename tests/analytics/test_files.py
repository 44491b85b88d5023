"""Files of people: the same sums as in memory, and rows that are wrong are named."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from diffsketch import Account, Answer
from diffsketch.analytics import Terms
from diffsketch.analytics.files import PeopleFile
from diffsketch.errors import ArgumentError, DataError
from tests.analytics.tables import COLUMNS, TERMS, check_no_key_is_favoured, check_sums
from tests.helpers.refusals import refused


@pytest.fixture(scope="module", params=["csv", "csv.gz", "tsv", "parquet"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The columns in a file whose name has characters that DuckDB takes for a pattern."""
    file = tmp_path_factory.mktemp("files") / f"it's [1] *.{request.param}"
    if request.param == "parquet":
        plain = file.with_name("x.parquet")
        lists = ", ".join(f'unnest(?) AS "{name}"' for name in COLUMNS)
        with duckdb.connect() as connection:
            columns = [held.tolist() for held in COLUMNS.values()]
            connection.execute(f"COPY (SELECT {lists}) TO '{plain}'", columns)
        return plain.rename(file)
    mark = "\t" if request.param == "tsv" else ","
    lines = [mark.join(COLUMNS)]
    for row in zip(*(held.tolist() for held in COLUMNS.values()), strict=True):
        cells = (str(cell).replace('"', '""') for cell in row)
        lines.append(mark.join(f'"{c}"' if re.search('[",\n]', c) else c for c in cells))
    content = ("\ufeff" + "\n".join(lines)).encode()
    file.write_bytes(gzip.compress(content) if request.param == "csv.gz" else content)
    return file


@pytest.mark.parametrize("person", [None, "who"])
def test_sums_are_those_of_the_data_in_memory(path: Path, person: str | None) -> None:
    check_sums(PeopleFile(path, person=person))


def test_no_key_is_favoured(tmp_path: Path) -> None:
    file = tmp_path / "keys.csv"
    rows = (f"{person},{key}" for person in range(10_000) for key in range(10))
    file.write_text("\n".join(["person,key", *rows]))
    check_no_key_is_favoured(PeopleFile(file, person="person"))


def test_top_and_thresholds(tmp_path: Path) -> None:
    file = tmp_path / "top.csv"
    cities = ["Rome"] * 3000 + ["Bath"] * 2000 + ["Ys"] * 1000 + ["Thule"]
    file.write_text("\n".join(["city", *cities]))
    answer = PeopleFile(file).counts("city", TERMS, top=2)
    assert answer.names == ("Rome", "Bath")
    assert answer.question == "top 2"
    assert PeopleFile(file).counts("city", TERMS).names == ("Rome", "Bath", "Ys")


BAD: dict[str, tuple[bytes, type[Exception], str]] = {
    "text": (b"age\n1\n2\nx y\n", ArgumentError, "'age' of .* finite number.* 'x y' in row 3"),
    "thousands": (b'age\n1\n"1,200"\n', ArgumentError, "'1,200' in row 2"),
    "infinite": (b"age\n1\ninf\n", ArgumentError, "got 'inf' in row 2"),
    "nan": (b"age\nnan\n", ArgumentError, "got 'nan' in row 1"),
    "empty": (b"age,x\n1,2\n,2\n", ArgumentError, "'age'.* got nothing in row 2"),
    "no person": (b"age,id\n1,a\n2,\n3,a\n", ArgumentError, "'id'.* id of a person.* row 2"),
    "nan person": (b"city,id\na,1.0\nb,nan\n", ArgumentError, "'id'.* 'nan' in row 2"),
    "no key": (b"city,id\na,1\n,1\n", ArgumentError, "'city'.* a value.* nothing in row 2"),
    "no column": (b"Age\n1\n", ArgumentError, "column 'age' .*did you mean Age"),
    "two columns": (b"age,age\n1,2\n", ArgumentError, "'age' .*two have that name"),
    "short row": (b"age,b\n1,2\n3\n", DataError, "Line: 3"),
    "long row": (b"age,b\n1,2\n3,4,5\n", DataError, "Line: 3"),
    "open quote": (b'age,b\n1,2\n"3,4\n', DataError, "unterminated quote"),
    "no rows": (b"age\n", DataError, "has no rows"),
    "no bytes": (b"", ArgumentError, "column 'age'"),
    "latin": ("city\nZürich\n".encode("latin1"), DataError, "(?i)utf-8"),
    "binary": (b"PK\x03\x04\xff\xfe\n", DataError, "Parquet, or CSV in UTF-8"),
    "half parquet": (b"PAR1abc", DataError, "cannot be read"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_named_and_costs_nothing(case: str, tmp_path: Path) -> None:
    """Counts of cities, or else the mean of ages; people have ids where there is such a column."""
    content, error, words = BAD[case]
    file, terms = tmp_path / "people.csv", Terms(1.0, account=Account())
    file.write_bytes(content)

    def ask() -> Answer:
        people = PeopleFile(file, person="id" if b",id\n" in content else None)
        if content.startswith(b"city"):
            return people.counts("city", terms)
        return people.mean(["age"], (0, 100), terms)

    refused(error, words, ask)
    assert terms.account is not None
    assert terms.account.rounds == 0


def test_other_mistakes_cost_nothing(tmp_path: Path) -> None:
    file, account = tmp_path / "people.csv", Account()
    file.write_text("age,b\n1,2\n")
    people, terms = PeopleFile(file), Terms(1.0, account=account)
    refused(ArgumentError, "low < high", people.mean, ["age"], (5, 1), terms)
    refused(ArgumentError, "once each", people.mean, ["age", "age"], (0, 1), terms)
    refused(ArgumentError, "levels", people.quantiles, "age", [2.0], (0, 1), terms)
    refused(ArgumentError, "keys_per_person", people.counts, "age", terms, keys_per_person=0)
    refused(ArgumentError, "top must be", people.counts, "age", terms, top=0)
    local = replace(terms, trust="local")
    refused(ArgumentError, "trust must be central", people.counts, "age", local)
    refused(ArgumentError, "column 'nobody'", PeopleFile, file, person="nobody")
    refused(OSError, "No such file", PeopleFile, tmp_path / "https://none/x.csv")
    assert account.rounds == 0


def test_titles_that_look_like_sql(tmp_path: Path) -> None:
    title = 'a"; DROP TABLE x; --'
    for name in ("x.csv", "x.parquet"):
        file = tmp_path / name
        quoted = title.replace('"', '""')
        if name.endswith("csv"):
            file.write_text(f'"{quoted}",b\n1,2\n')
        else:
            duckdb.execute(f"COPY (SELECT 1 AS \"{quoted}\") TO '{file}'")
        with pytest.warns(UserWarning, match="worse than nothing"):
            answer = PeopleFile(file).mean([title], (0, 2), TERMS)
        assert answer.names == (title,)


def test_progress_is_told_and_no_file_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    file, seen = tmp_path / "long.csv", list[float]()
    file.write_text("age\n" + "55\n" * 300_000)
    PeopleFile(file, progress=seen.append).mean(["age"], (0, 100), TERMS)
    assert seen
    assert all(0 <= share <= 1 for share in seen)
    assert [item.name for item in tmp_path.iterdir()] == ["long.csv"]


def test_a_question_can_be_interrupted(tmp_path: Path) -> None:
    file = tmp_path / "long.csv"
    file.write_text("age\n" + "55\n" * 300_000)

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    account = Account()
    with pytest.raises(KeyboardInterrupt):
        PeopleFile(file, progress=stop).mean(["age"], (0, 100), Terms(1.0, account=account))
    assert account.rounds == 0
