"""How long does it take to compose many rounds, to calibrate noise and to charge an account?

    python -m benchmarks.accounting --json benchmark-accounting.json
    python -m benchmarks.accounting --quick

Composing 10,000 rounds, alike or not, should take less than 5 s. dp-accounting's own accountant,
on its fixed grid, composes the same rounds for comparison. Times are the least of a few runs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dp_accounting.pld import PLDAccountant

from benchmarks.report import print_table, readable
from benchmarks.timing import environment
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.account import Account
from diffsketch.privacy.accounting.budget import Budget, BudgetExceeded, gaussian_multiplier
from diffsketch.privacy.accounting.events import epsilon_for
from diffsketch.privacy.accounting.losses import as_dp_event
from diffsketch.privacy.claim import ProvenClaim, Relation, Scope, Trust, Unit

GOAL_SECONDS = 5.0
ROUNDS = 10_000
DELTA = 1e-5
SCOPE = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.CENTRAL)


@dataclass(frozen=True)
class Case:
    """Rounds to compose, and whether dp-accounting takes part."""

    name: str
    event: events.Event
    peer: bool = True


def sampled(rate: float, multiplier: float, rounds: int) -> events.Event:
    event = events.poisson_sampled(rate, events.gaussian(multiplier))
    return events.repeated(event, rounds)


def cases(rounds: int) -> list[Case]:
    hundredth = rounds // 100
    noise = np.linspace(0.8, 2.0, 100)
    rng = np.random.default_rng(0)
    return [
        Case("Gaussian", events.repeated(events.gaussian(50.0), rounds)),
        Case("Laplace", events.repeated(events.laplace(50.0), rounds)),
        Case("sampled, q=0.01, z=1", sampled(0.01, 1.0, rounds)),
        Case("sampled, q=1/600, z=1", sampled(1 / 600, 1.0, rounds)),
        Case("sampled, q=0.01, z=20", sampled(0.01, 20.0, rounds)),
        Case("sampled, q=0.001, z=0.3", sampled(0.001, 0.3, rounds)),
        Case(
            "100 noise levels, equally often",
            events.composed(*(sampled(0.01, float(z), hundredth) for z in noise)),
        ),
        Case(
            "100 noise levels, never equally often",
            events.composed(
                *(sampled(0.01, float(z), hundredth - 49 + i) for i, z in enumerate(noise))
            ),
            peer=False,
        ),
        Case(
            "each round of its own",
            events.composed(*(sampled(0.01, float(z), 1) for z in rng.uniform(0.8, 2.0, rounds))),
            peer=False,
        ),
    ]


def least_seconds(run: Callable[[], float], repeat: int) -> tuple[float, float]:
    """The result of a run, and the least time that one took."""
    best, value = float("inf"), 0.0
    for _ in range(repeat):
        start = time.perf_counter()
        value = run()
        best = min(best, time.perf_counter() - start)
    return value, best


def compose(rounds: int, repeat: int) -> list[dict[str, Any]]:
    results = []
    for case in cases(rounds):
        value, seconds = least_seconds(partial(epsilon_for, case.event, DELTA), repeat)
        result: dict[str, Any] = {"name": case.name, "value": value, "seconds": seconds}
        if case.peer:
            theirs, seconds = least_seconds(partial(peer, case.event), 1)
            result |= {"peer_value": theirs, "peer_seconds": seconds}
        results.append(result)
        print(f"  {case.name}: {readable(result['seconds'])}")
    return results


def peer(event: events.Event) -> float:
    accountant = PLDAccountant()
    for leaf, count in events.leaves(event):
        accountant.compose(as_dp_event(leaf), count)
    return float(accountant.get_epsilon(DELTA))


def exhaust(account: Account, claim: ProvenClaim, most: int) -> float:
    try:
        for _ in range(most):
            account.charge(claim)
    except BudgetExceeded:
        pass
    return float(account.rounds)


def spend(rounds: int) -> list[dict[str, Any]]:
    """Rounds one by one until a budget is used up, and noise for a target."""
    claim = ProvenClaim(SCOPE, events.poisson_sampled(0.01, events.gaussian(1.0)), "noise")
    budget = Budget(epsilon=6.0, delta=DELTA)
    todo: list[tuple[str, Callable[[], float]]] = [
        ("rounds left of a budget", lambda: Account(budget).rounds_left(claim)),
        ("rounds until it is used up", lambda: exhaust(Account(budget), claim, rounds)),
        ("noise multiplier", lambda: gaussian_multiplier(epsilon=6.0, delta=DELTA, rounds=rounds)),
        (
            "noise multiplier, q=0.01",
            lambda: gaussian_multiplier(epsilon=6.0, delta=DELTA, rounds=rounds, rate=0.01),
        ),
    ]
    results = []
    for name, run in todo:
        value, seconds = least_seconds(run, 1)
        results.append({"name": name, "value": value, "seconds": seconds})
    with tempfile.TemporaryDirectory() as folder:
        book = Account.open(Path(folder) / "account.json")
        count, seconds = least_seconds(lambda: exhaust(book, claim, 200), 1)
        results.append({"name": "one charge in a file", "value": 1, "seconds": seconds / count})
    return results


def show(composed: Sequence[dict[str, Any]], spent: Sequence[dict[str, Any]], rounds: int) -> None:
    rows = [
        [r["name"], f"{r['value']:.5g}", readable(r["seconds"])]
        + (
            [f"{r['peer_value']:.5g}", readable(r["peer_seconds"])]
            if "peer_value" in r
            else ["-"] * 2
        )
        for r in composed
    ]
    headers = ["", "epsilon", "time", "dp-accounting", "time"]
    print_table(f"{rounds:,} rounds composed, delta = {DELTA:g}", headers, rows)
    rows = [[r["name"], f"{r['value']:.5g}", readable(r["seconds"])] for r in spent]
    print_table("Spending and calibration", ["", "result", "time"], rows)
    slowest = max(composed, key=lambda r: float(r["seconds"]))
    print(f"slowest: {slowest['name']}, {readable(slowest['seconds'])}")
    if rounds == ROUNDS:
        met = "met" if slowest["seconds"] < GOAL_SECONDS else "MISSED"
        print(f"goal of {readable(GOAL_SECONDS)}: {met}")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each composition")
    parser.add_argument("--quick", action="store_true", help="5,000 rounds and one run")
    parser.add_argument("--json", type=Path, help="where to write all results")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    rounds, repeat = (ROUNDS // 2, 1) if options.quick else (ROUNDS, options.repeat)
    facts = environment(torch.device("cpu"))
    facts["versions"]["dp-accounting"] = metadata.version("dp-accounting")
    if (load := facts["hardware"]["load_average"]) > 0.5:
        print(f"  note: other work is running, load {load:.1f}: the times may be far too long")
    composed, spent = compose(rounds, repeat), spend(rounds)
    show(composed, spent, rounds)
    if options.json:
        found = {"rounds": rounds, "delta": DELTA, "composed": composed, "spent": spent}
        options.json.write_text(json.dumps(facts | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
