"""How long do questions about a large file of people take, and how much memory?

    python -m benchmarks.people_files                   # 10^8 rows, a CSV of 3 GB
    python -m benchmarks.people_files --rows 1000000 --parquet

Each command is a process of its own, as a user runs it. Seconds are of the wall, and of all threads
together; memory is the process's peak, which is not to grow with the file.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import duckdb

from diffsketch.files import cores

COMMANDS = {
    "mean": ("--columns", "age,income", "--bounds", "0:120,0:250000"),
    "count": ("--column", "city", "--top", "20"),
    "quantiles": ("--column", "income", "--bounds", "0:250000"),
    "mean, with --person": (
        "--columns", "age,income", "--bounds", "0:120,0:250000", "--person", "person",
    ),
    "count, with --person": ("--column", "city", "--top", "20", "--person", "person"),
}  # fmt: skip


TABLE = """
    SELECT hash(i // 4) % 1000000007 AS person, (20 + 50 * random())::INT AS age,
    round(exp(10.3 + 0.5 * sqrt(-2 * ln(1 - random())) * cos(6.2831853 * random())), 2) AS income,
    'city ' || exp(9.2 * random())::INT AS city FROM range(ROWS) t(i)
"""  # four rows for a person, and cities by Zipf's law


def write(path: Path, rows: int) -> None:
    """Write the table as the ending of its name says."""
    duckdb.execute(f"COPY ({TABLE.replace('ROWS', str(rows))}) TO '{path}'")


def measure(command: str, path: Path) -> str:
    """Seconds of the wall and of processors, and peak memory of a command."""
    name, start = command.partition(",")[0], time.perf_counter()
    arguments = ["-m", "diffsketch", name, str(path), *COMMANDS[command], "--epsilon", "1"]
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    process = os.posix_spawn(
        sys.executable, [sys.executable, *arguments], os.environ, file_actions=silent
    )
    _, status, used = os.wait4(process, 0)
    if status:
        raise SystemExit(f"{command} failed")
    computed = used.ru_utime + used.ru_stime
    return (
        f"{command:<22} {time.perf_counter() - start:.0f} s ({computed:.0f} s of processors), "
        f"{used.ru_maxrss / 1e3:,.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=10**8)
    parser.add_argument("--parquet", action="store_true")
    parser.add_argument("--only", choices=list(COMMANDS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("people.parquet" if options.parquet else "people.csv")
        write(path, options.rows)
        size = path.stat().st_size / 1e9
        print(f"{options.rows:,} rows, {size:.2f} GB, {cores()} cores", flush=True)
        for command in [options.only] if options.only else COMMANDS:
            print(measure(command, path), flush=True)


if __name__ == "__main__":
    main()
