"""The order of jobs, and how far they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffsketch.reproduction import work
from diffsketch.reproduction.costs import seconds_of, wall_seconds
from diffsketch.reproduction.jobs import Job
from diffsketch.reproduction.loading import load
from diffsketch.reproduction.store import Store
from diffsketch.reproduction.work import Piece, State, do_jobs, in_order, pieces_of
from tests.reproduction import tiny


def test_jobs_are_named_by_the_first_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.register(monkeypatch)
    folder = tiny.both(tmp_path / "settings")
    both = [load(name, reduced=False, folder=folder) for name in ("one", "two")]
    labels = [piece.label for piece in pieces_of(both)]
    assert labels == [
        "one, plain, seed 0", "one, plain, seed 1", "one, sketch, seed 0", "one, sketch, seed 1",
        "two, sum, seed 0",
    ]  # fmt: skip
    seen: list[State] = []
    do_jobs(
        both, Store(tmp_path / "cache"), processes=1, command=["x"], show=seen.append,
        stop=lambda: False,
    )  # fmt: skip
    assert (seen[0].done, seen[0].experiments, seen[0].now) == (0.0, 0, ())
    assert ("one, sketch, seed 1",) in [state.now for state in seen]
    assert seen[-1].done == pytest.approx(seen[-1].total)
    assert seen[-1].experiments == 2
    shares = [state.done for state in seen]
    assert shares == sorted(shares)


def test_long_jobs_come_first() -> None:
    seconds = [1.0, 30.0, 1.0, 50.0, *[1.0] * 200]
    pieces = [Piece(Job("run", {}, seed), str(seed), one) for seed, one in enumerate(seconds)]
    ordered = [int(piece.label) for piece in in_order(pieces, 2)]
    assert ordered == [3, 1, 0, 2, *range(4, 204)]


def test_costs_grow_with_the_work() -> None:
    def seconds(**settings: str | int) -> float:
        return seconds_of(Job("run", settings, 0))

    assert seconds(rounds=100) < seconds(rounds=1000)
    assert seconds(rounds=100) < seconds(rounds=100, padding=10000)
    assert seconds(rounds=100) < seconds(rounds=100, correction="shared")
    assert seconds(rounds=100) < seconds(rounds=100, task="shakespeare")
    lstm = seconds(rounds=100, task="shakespeare")
    assert lstm < seconds(rounds=100, task="shakespeare", model="gru")
    jobs = [Job("run", {"rounds": 1000}, seed) for seed in range(4)]
    assert wall_seconds(jobs, 1) > wall_seconds(jobs, 2) > wall_seconds(jobs, 4)
    assert wall_seconds(jobs, 4) == wall_seconds(jobs, 100)


def test_processes_with_another_source_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.register(monkeypatch)
    one = load("one", reduced=True, folder=tiny.both(tmp_path / "settings"))
    answers = iter([{"source": "before"}, {"source": "after"}])
    monkeypatch.setattr(work, "made_by", lambda _: next(answers))
    outcome = do_jobs(
        [one], Store(tmp_path / "cache"), processes=1, command=["x"], show=lambda _: None,
        stop=lambda: False,
    )  # fmt: skip
    (failure,) = outcome.failures
    assert failure.reason == "the source of diffsketch was changed while the command began"
    assert (outcome.made, outcome.interrupted) == (0, False)
    assert not (tmp_path / "cache").exists()
