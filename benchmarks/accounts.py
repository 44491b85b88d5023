"""How long do the books take: a charge of an account, and the accounts of a round's clients?

    python -m benchmarks.accounts --json benchmark-accounts.json
    python -m benchmarks.accounts --quick

A charge should take at most 2 ms after 10^5 rounds of two claims in turn, or of fifty. The accounts
of a round are new arrays, so their time grows with the number of clients: it should stay far below
a millisecond for 10^5. Medians, and the mean time of the processor, which does not wait for the
disk or for other programs; the first row is the disk alone: to write and synchronise a small file
and its name.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.report import print_table, readable
from benchmarks.timing import environment
from diffsketch.files import replace_file, synchronise
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.account import Account
from diffsketch.privacy.accounting.budget import Budget
from diffsketch.privacy.claim import ProvenClaim, Relation, Scope, Trust, Unit
from diffsketch.training.state import Participation

SCOPE = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
GOAL_SECONDS = 2e-3
COHORT = 100


def claims(kinds: int) -> list[ProvenClaim]:
    noise = (events.gaussian(500.0 + 20 * kind) for kind in range(kinds))
    return [ProvenClaim(SCOPE, event, "Gaussian noise") for event in noise]


def timed(steps: int, step: Callable[[int], object]) -> dict[str, float]:
    seconds, start = [], time.process_time()
    for index in range(steps):
        before = time.perf_counter()
        step(index)
        seconds.append(time.perf_counter() - before)
    cpu = (time.process_time() - start) / steps
    return {"seconds": statistics.median(seconds), "cpu_s": cpu}


def charge(folder: Path, kinds: int, rounds: int, steps: int, *, budget: bool) -> dict[str, Any]:
    path = folder / f"{kinds}-{rounds}-{budget}.json"
    book = Account.open(path, budget=Budget(1e3, 1e-5) if budget else None)
    mixed = claims(kinds)
    for claim in mixed:
        book.charge(claim, rounds // kinds)
    found = timed(steps, lambda index: book.charge(mixed[index % kinds]))
    size = path.stat().st_size
    return {"kinds": kinds, "rounds": rounds, "budget": budget, "bytes": size, **found}


def disk(folder: Path, steps: int) -> dict[str, float]:
    def write(_: int) -> None:
        replace_file(folder / "bare", bytes(500))
        synchronise(folder)

    return timed(steps, write)


def accounts(clients: int, steps: int) -> dict[str, Any]:
    rng, mixed = np.random.default_rng(0), claims(3)
    book = Participation(clients)

    def after(index: int) -> None:
        nonlocal book
        book = book.after(mixed[index % 3], cohorts[index])

    cohorts = [np.unique(rng.integers(0, clients, COHORT)) for _ in range(steps)]
    return {"clients": clients, **timed(steps, after)}


def times(found: Mapping[str, Any]) -> list[str]:
    return [readable(found["seconds"]), readable(found["cpu_s"])]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print tables, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and clients")
    parser.add_argument("--json", type=Path, help="where to write all results")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; by default temporary")
    chosen = parser.parse_args(argv)
    sizes, steps = ([10**2, 10**3], 20) if chosen.quick else ([10**2, 10**5], 500)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        charged = [
            charge(Path(folder), kinds, rounds, steps, budget=budget)
            for kinds in (2, 50)
            for rounds in sizes
            for budget in (False, True)
        ]
        bare = disk(Path(folder), steps)
    paid = [accounts(clients, steps) for clients in (sizes[0], 10**4 if chosen.quick else 10**5)]
    rows = [["-", "-", "-", "500", *times(bare)]]
    rows += [
        [f"{r['kinds']}", f"{r['rounds']:,}", "yes" if r["budget"] else "no", f"{r['bytes']:,}",
         *times(r)]
        for r in charged
    ]  # fmt: skip
    headers = ["claims", "rounds", "budget", "bytes", "median", "processor"]
    print_table("A charge of an account", headers, rows)
    rows = [[f"{r['clients']:,}", *times(r)] for r in paid]
    print_table(f"Accounts after {COHORT} took part", ["clients", "median", "processor"], rows)
    met = "met" if max(r["seconds"] for r in charged) <= GOAL_SECONDS else "MISSED"
    print(f"goal of {readable(GOAL_SECONDS)} a charge: {met}")
    if chosen.json:
        found = {
            **environment(torch.device("cpu")),
            "disk": bare,
            "charges": charged,
            "accounts": paid,
        }
        chosen.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
