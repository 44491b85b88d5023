"""The benchmark of a transformer trains as it says, and its peers send what they claim."""

from __future__ import annotations

import ast
import json
import math
import typing
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpt as tiny_gpt
from benchmarks import transformer, transformer_peers

bench: Any = transformer
gpt: Any = tiny_gpt
peers: Any = transformer_peers
WORKERS, DEVICE = 3, torch.device("cpu")


def vectors(dim: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(WORKERS, dim, generator=torch.Generator().manual_seed(seed))


def sent_and_given(exchange: Any, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What four means have applied, and what they were of."""
    applied, given = torch.zeros(dim), torch.zeros(dim)
    for seed in range(4):
        given += vectors(dim, seed=seed).mean(0)
        applied += exchange.mean(vectors(dim, seed=seed))
    return applied, given


def random_text() -> Any:
    data = torch.randint(256, (900,), generator=torch.Generator().manual_seed(1)).byte()
    return gpt.Text(data, data, 1, "")


def test_text_is_split_by_file(tmp_path: Path) -> None:
    for index in range(300):
        (tmp_path / f"{index}.py").write_text(f"file_{index % 290} = 0\n")
    text = gpt.installed_sources(10**6, [tmp_path])
    train, held_out = (bytes(part.tolist()).split() for part in (text.train, text.held_out))
    names = [one for one in train + held_out if one.startswith(b"file")]
    assert sorted(names) == sorted({f"file_{index}".encode() for index in range(290)})
    assert 0 < text.held_out.numel() < text.train.numel() / 10
    assert gpt.installed_sources(10**6, [tmp_path]).digest == text.digest
    assert len(gpt.installed_sources(100, [tmp_path]).train) < 130


def test_steps_are_adamw_with_a_clip() -> None:
    """Two workers, who have different sequences, do what a plain loop does with each."""
    model, text = gpt.GPT(gpt.Size(1, 8, 2, 6)), random_text()
    trainer = gpt.Trainer(model, text, 2, 3)
    trainer.restart(model.initial(3))
    parameters = [torch.nn.Parameter(model.initial(3)) for _ in range(2)]
    optimizers = [
        torch.optim.AdamW([one], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1) for one in parameters
    ]
    for step in range(3):
        starts = torch.tensor([[3, 70, 200], [400, 450, 470]]) + step
        trainer.backward(starts)
        trainer.step(0.01)
        for weights, optimizer, own in zip(parameters, optimizers, starts.tolist(), strict=True):
            tokens = torch.stack([text.train[at : at + 7] for at in own]).long()
            optimizer.zero_grad()
            model.loss(weights[None], tokens[None]).backward()
            torch.nn.utils.clip_grad_norm_([weights], 1.0)
            optimizer.step()
    assert torch.allclose(
        trainer.weights, torch.stack([one.detach() for one in parameters]), atol=1e-5
    )
    assert not torch.allclose(trainer.weights[0], trainer.weights[1], atol=1e-3)
    loss = trainer.held_out_loss(model.initial(3), batches=1)
    assert loss == pytest.approx(math.log(256), abs=0.05)


@pytest.mark.parametrize("name", ["top", "chunks", "power"])
def test_what_is_not_sent_is_kept(name: str) -> None:
    """With feedback that does not decay, what was applied and what is kept are all there was."""
    shapes = [(30,), (96, 64), (64, 80), (20, 3)]
    dim = sum(math.prod(shape) for shape in shapes)
    exchange = {
        "top": lambda: peers.TopK(dim, WORKERS, 20, DEVICE),
        "chunks": lambda: peers.ChunkTopK(shapes, WORKERS, 64, DEVICE, decay=1.0),
        "power": lambda: peers.PowerSGD(shapes, 2, DEVICE),
    }[name]()
    applied, given = sent_and_given(exchange, dim)
    kept = exchange._error if name == "power" else exchange._error.mean(0)
    assert torch.allclose(applied + kept, given, atol=1e-4)
    assert 0.05 < kept.norm() / given.norm() < 2
    assert exchange.up < 4 * dim / 3
    assert exchange.down == exchange.up * (1 if name == "power" else WORKERS - 1)


def test_chunks_send_the_largest() -> None:
    shapes = [(5000,), (10,)]
    exchange = peers.ChunkTopK(shapes, 1, 16, DEVICE)
    (vector,) = vectors(5010)[:1]
    found = exchange.mean(vector.clone()[None])
    assert (found[:4096] != 0).sum() == (found[4096:5000] != 0).sum() == 16
    assert (found[5000:] != 0).all()  # a parameter shorter than that is sent whole
    largest = vector[:4096].abs().topk(16).indices
    assert set(largest.tolist()) == set(found[:4096].nonzero().flatten().tolist())
    assert (found * vector >= 0).all()
    assert len(found[:5000].unique()) <= 5  # two bits, and nothing
    assert exchange.up == (16 + 16 + 10) * 14 / 8 + 2 * 16


def test_power_iteration_finds_a_low_rank() -> None:
    """A matrix of that rank is found in two steps, where another is not."""
    low = torch.randn(90, 2, generator=torch.Generator().manual_seed(1))
    matrix = (low @ torch.randn(2, 80, generator=torch.Generator().manual_seed(2))).flatten()
    for rank, exact in ((2, True), (1, False)):
        exchange = peers.PowerSGD([(90, 80)], rank, DEVICE)
        found = exchange.mean(matrix.repeat(WORKERS, 1))
        assert torch.allclose(found, matrix, atol=1e-3) == exact
        assert exchange.up == 4 * rank * 170


def test_outer_steps_are_those_of_sgd() -> None:
    """Workers take steps by themselves, and SGD takes one on the mean of what they did."""
    model, text = gpt.GPT(gpt.Size(1, 8, 2, 6)), random_text()
    starts = gpt.draw_starts(text, 6, (5, WORKERS, 2), torch.Generator().manual_seed(5))
    for worker in range(WORKERS):  # each has a part of the text
        own = starts[:, worker]
        assert 300 * worker <= own.min() <= own.max() < 300 * worker + 293
    center, expected = model.initial(1), torch.nn.Parameter(model.initial(1))
    trainer, exchange = gpt.Trainer(model, text, WORKERS, 2), peers.Dense(model.dim)
    rates = [0.01] * 5  # the last one is left over
    steps = bench.local_steps(trainer, exchange, center, starts, rates, 2, (0.7, 0.6))
    assert list(steps) == [2, 4]
    outer = torch.optim.SGD([expected], lr=0.7, momentum=0.6, nesterov=True)
    trainer.restart(expected.detach())
    for first in (0, 2):
        trainer.weights.copy_(expected.detach())
        for step in (first, first + 1):
            trainer.backward(starts[step])
            trainer.step(0.01)
        expected.grad = expected.detach() - trainer.weights.mean(0)
        outer.step()
    assert torch.allclose(center, expected, atol=1e-5)


def test_muon_is_that_of_pytorch() -> None:
    """Layers' matrices of two workers step as `torch.optim.Muon` steps them, all else by AdamW."""
    model, text = gpt.GPT(gpt.Size(1, 8, 2, 6)), random_text()
    trainer, starts = gpt.Trainer(model, text, 2, 3, muon=True), torch.tensor([[3, 70], [400, 450]])
    trainer.restart(model.initial(3))
    for step in range(2):
        before, index = trainer.weights.clone(), 3  # the first layer's product of all heads
        trainer.backward(starts.repeat(1, 2)[:, :3] + step)
        trainer.step(0.01)
        if step == 0:
            parameters = [torch.nn.Parameter(model.views(row)[index].clone()) for row in before]
            optimizers: list[Any] = [
                torch.optim.Muon([one], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
                for one in parameters
            ]
        for row, parameter, optimizer in zip(trainer.grads, parameters, optimizers, strict=True):
            parameter.grad = model.views(row)[index].clone()
            optimizer.step()
    start = model.views(model.initial(3))[3]
    for row, parameter in zip(trainer.weights, parameters, strict=True):
        off = (model.views(row)[3] - parameter).norm()
        assert off < 0.1 * (parameter - start).norm()  # iterations in bfloat16 differ by as much


def test_few_bits_keep_what_is_not_sent() -> None:
    for bits, options in ((1, {}), (2, {}), (2, {"share": 4}), (2, {"share": 4, "cyclic": True})):
        exchange = peers.Rounded(9000, WORKERS, bits, DEVICE, **options)
        applied, given = sent_and_given(exchange, 9000)
        assert torch.allclose(applied + exchange._error.mean(0), given, atol=1e-4)
        assert (applied != 0).float().mean() > (0.6 if options.get("share") else 0.99)
        sizes = 4 * (1 if options else 3)
        length = 9000 // options.get("share", 1)
        assert (exchange.up, exchange.down) == (
            length * bits / 8 + sizes, length * (bits + 2) / 8 + sizes
        )  # fmt: skip


def test_rows_are_tuned_alike() -> None:
    """The best rate is none of the outermost, and the outer step is chosen with it."""
    for name, best, outer in (("diloco", 8e-3, (0.5, 0.6)), ("none", 5e-4, (1.0, 0.0))):
        row = bench.ROWS[name]
        runs: list[dict[str, Any]] = []
        while (following := bench.next_try(row, runs)) is not None:
            rate, tried = following
            loss = abs(math.log2(rate / best)) + 0.1 * (tried != outer)
            runs.append({"rate": rate, "outer": list(tried), "loss": loss})
        chosen, rates = bench.best_of(runs), sorted({run["rate"] for run in runs})
        assert chosen["rate"] == pytest.approx(best)
        assert tuple(chosen["outer"]) == outer
        assert rates[0] < chosen["rate"] / 1.9
        assert rates[-1] > chosen["rate"] * 1.4
        assert len(runs) == len({(run["rate"], *run["outer"]) for run in runs}) < 14


@pytest.mark.slow
def test_runs_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of both kinds train, and what there is already is not run again."""
    parts = [Path(module.__file__ or "").read_bytes() for module in (ast, typing, json.decoder)]
    train, held_out = (torch.frombuffer(bytearray(data), dtype=torch.uint8)
                       for data in (parts[0] + parts[1], parts[2]))  # fmt: skip
    monkeypatch.setattr(bench, "installed_sources", lambda _: gpt.Text(train, held_out, 3, ""))
    monkeypatch.setitem(gpt.SIZES, "small", gpt.Size(1, 32, 2, 32))
    monkeypatch.setattr(bench, "RATES", (1e-3, 1e-2))
    monkeypatch.setattr(bench, "OUTER", bench.OUTER[:2])
    common = "--steps 45 --tuning-steps 15 --seeds 0 --sequences 2 --workers 2 --batches 1 "
    common += f"--device cpu --out {tmp_path}"
    rows = ["none", "sketch-2-bits", "local-4x2", "sparseloco-64", "private"]
    bench.main([*common.split(), "--rows", *rows[:2]])
    first = bench.read_results(tmp_path)
    bench.main([*common.split(), "--rows", *rows])
    results = bench.read_results(tmp_path)
    assert results[: len(first)] == first
    runs = {run["row"]: run for run in results if run["seed"] == 0}
    assert list(runs) == rows
    assert max(runs[row]["loss"] for row in ("none", "sketch-2-bits", "local-4x2")) < 4.5
    assert runs["private"]["loss"] == pytest.approx(math.log(256), abs=0.1)  # noise hides all
    assert 7.8 < runs["private"]["epsilon"] <= 8
    dense = 4 * gpt.GPT(gpt.SIZES["small"]).dim * 45
    assert dense / runs["local-4x2"]["up"] == pytest.approx(960, rel=0.1)
    assert runs["local-4x2"]["up"] == runs["local-4x2"]["down"]
    assert runs["sparseloco-64"]["up"] == runs["sparseloco-64"]["down"]  # of the only other one
