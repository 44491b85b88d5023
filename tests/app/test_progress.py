"""What is shown while a run trains: a bar on a terminal, lines elsewhere, and warnings once."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from diffsketch.app import session as progress
from diffsketch.app.session import Status, Totals, epsilon_in_words, in_words, showing
from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit
from diffsketch.training.local.closed_form import ClosedForm
from tests.app.commands import invoke, read, uncoloured

SCOPE = Scope(Unit.CLIENT, Relation.REPLACE, Trust.DISTRIBUTED)
SPENT = Epsilon(3.2002, 1e-5, 7, Basis.PROVEN, SCOPE)


def status(done: int) -> Status:
    totals = Totals(bytes_up=1_234_000, bytes_down=567)
    return Status(done, 10, 0.5, 0.875, totals, lambda: SPENT)


def shown(console: Console) -> str:
    stream = console.file
    assert isinstance(stream, io.StringIO)
    return uncoloured(stream.getvalue())


def test_words() -> None:
    assert in_words(status(1)) == (
        "loss 0.5 | accuracy 87.5% | up 1.23 MB, down 567 B | "
        "eps 3.21 at 1e-05 (proven; client, replace, distributed)"
    )
    nothing = Epsilon(math.inf, 1e-5, 7, Basis.NONE, SCOPE)
    assert epsilon_in_words(nothing) == "no claim"
    lost = Epsilon(math.inf, 1e-5, 7, Basis.PROVEN, SCOPE)
    assert epsilon_in_words(lost) == (
        "proven per round, nothing at 1e-05 over 7 rounds (client, replace, distributed)"
    )


@pytest.mark.parametrize("width", [40, 80])
def test_bar_on_a_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_BAR_SECONDS", 0.0)
    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    with showing(console, rounds=10) as show:
        for done in range(1, 11):
            show(status(done))
    text = " ".join(shown(console).split())
    assert "round 10/10" in text
    assert "━" in text
    assert "at 1e-05 (proven; client, replace, distributed)" in re.sub(r"\s+", " ", text)
    assert "…" not in text


def test_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=40)
    with showing(console, rounds=10) as show:
        for done in range(1, 11):
            show(status(done))
    assert shown(console).splitlines() == [f"round 10/10 | {in_words(status(10))}"]
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    console = Console(file=io.StringIO(), width=40)
    with showing(console, rounds=10) as show:
        for done in range(1, 11):
            show(status(done))
    assert len(shown(console).splitlines()) == 10


def test_worker_that_is_broken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ClosedForm.gradients

    def broken(self: ClosedForm, weights: Tensor, *rest: Any) -> Tensor:
        vectors = real(self, weights, *rest)
        return torch.cat([vectors[:1] * math.nan, vectors[1:]])

    monkeypatch.setattr(ClosedForm, "gradients", broken)
    path = tmp_path / "run"
    arguments = ["run", "--workers", "3", "--samples", "10", "--rounds", "6", "--method", "none"]
    result = invoke(*arguments, "--output", path, columns=200)
    assert result.exit_code == 0, result.output
    warnings = [line for line in result.output.splitlines() if line.startswith("warning: round")]
    assert len(warnings) == 3  # and not one for each round
    assert "'worker-0'" in warnings[0]
    assert "left out of the mean" in warnings[0]
    summary = read(path / "summary.json")
    assert (summary["left_out"], summary["messages"]) == (6, 12)
    assert summary["accuracy"] > 0
