"""The benchmark of error feedback trains as it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks import feedback
from tests.helpers.results import results_of

bench: Any = feedback


def test_uncompressed_is_plain_sgd() -> None:
    setting, sending = bench.Setting(8, 0.3), bench.SENDINGS[0]
    found = bench.loss_after(setting, sending, steps=3, seed=1)
    images, labels = bench._examples()
    model = bench.perceptron((8, 8), 1)
    generator = torch.Generator().manual_seed(1001)
    for _ in range(3):
        drawn = torch.randint(len(labels), (bench.RANKS, bench.BATCH), generator=generator)
        rows = drawn.flatten()
        loss: Any = cross_entropy(model(images[rows]), labels[rows])
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.3 * cast(torch.Tensor, parameter.grad)
    with torch.no_grad():
        expected = float(cross_entropy(model(images[:10_000]), labels[:10_000]))
    assert found == pytest.approx(expected, rel=1e-4)
    fewer = bench.loss_after(setting, sending, steps=2, seed=1)
    assert fewer != pytest.approx(expected, rel=1e-4)


def test_ranks_send_all_in_the_end() -> None:
    """What was applied and what is kept add up to the vectors, and feedback is what keeps it."""
    sending = bench.Sending("feedback", immediate=0.3)
    ranks = bench.Ranks(600, bench.Setting(8, 0.1, compression=6), sending, seed=0)
    generator = torch.Generator().manual_seed(0)
    applied, given = torch.zeros(600), torch.zeros(600)
    for _ in range(5):
        vectors = list(torch.randn(bench.RANKS, 600, generator=generator))
        applied += ranks.mean(vectors)
        given += torch.stack(vectors).mean(0)
    kept = torch.stack([cast(torch.Tensor, memory.error) for memory in ranks._memories]).mean(0)
    assert torch.allclose(applied + kept, given, atol=1e-4)
    assert not torch.allclose(applied, given, atol=0.1)


def test_quick_run_writes_every_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SETTINGS", (bench.Setting(8, 0.1),))
    found = results_of(bench.main, "--quick", tmp_path)
    assert [one["sending"] for one in found["found"]] == [one.name for one in bench.SENDINGS]
    assert all(0 < one["loss"] < 3 for one in found["found"])
