"""How well does error feedback learn, by how much of a gradient it sends at once?

    python -m benchmarks.feedback --json benchmarks/results/feedback.json
    python -m benchmarks.feedback --quick

Two-layer perceptrons on MNIST, trained by two ranks with 32 images each, whose messages one process
makes and sums: the loss on the training images after 500 steps, for gradients as they are, for
sketches without feedback, for feedback with several `immediate` (`diffsketch.methods.feedback` says
what that is), and for cells of few bits, of which there are more in as many bytes. Batches are the
same for all. Nothing is timed.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.ddp_worker import perceptron, pixels
from benchmarks.one_thread import save
from benchmarks.report import print_table
from benchmarks.timing import environment
from diffsketch.methods.base import Method, build_method
from diffsketch.methods.feedback import ErrorFeedback
from diffsketch.methods.plain import PlainSketch
from diffsketch.privacy.noise import CohortNoise, NoiseKey
from diffsketch.sketch.hashing import SketchKey
from diffsketch.training.data import load_mnist

RANKS, BATCH, STEPS, SEEDS = 2, 32, 500, 3
DIVERGED = 10.0  # a loss beyond which numbers say nothing


@dataclass(frozen=True)
class Setting:
    """A line of the table: hidden units of both layers, and how they are trained."""

    width: int
    rate: float
    compression: float = 50
    momentum: float = 0.0


@dataclass(frozen=True)
class Sending:
    """A column: compressed, with feedback, and its `immediate` (None for the rule), or not."""

    name: str
    compressed: bool = True
    feedback: bool = True
    immediate: float | None = None
    bits: int = 32  # of a cell; fewer make more cells of the same bytes


SETTINGS = (
    *(Setting(128, rate) for rate in (0.1, 0.3, 0.5, 0.8)),
    Setting(128, 0.05, momentum=0.9),
    *(Setting(512, rate) for rate in (0.1, 0.5)),
    Setting(512, 0.5, compression=500),
)
SENDINGS = (
    Sending("uncompressed", compressed=False),
    Sending("no feedback", feedback=False),
    Sending("b = a", immediate=1e-9),  # raised to `a`
    Sending("b = 0.1", immediate=0.1),
    Sending("b = 0.2", immediate=0.2),
    Sending("b = 0.3", immediate=0.3),
    Sending("b = 0.5", immediate=0.5),
    Sending("b = 1", immediate=1.0),
    Sending("by the rule"),
    Sending("4 bits, no feedback", feedback=False, bits=4),
    Sending("4 bits, by the rule", bits=4),
    Sending("2 bits, no feedback", feedback=False, bits=2),
    Sending("2 bits, by the rule", bits=2),
)


class Ranks:
    """The mean of gradients as a process group would find it."""

    def __init__(self, dim: int, setting: Setting, sending: Sending, seed: int) -> None:
        bits = sending.bits
        cols = max(1, math.floor(32 * dim / (bits * setting.compression)))
        choice: dict[str, object] = {}
        if sending.compressed:
            choice = {"rows": 1, "cols": cols, "bits": bits}
        name = "sketch" if sending.compressed else "none"
        self._method: Method = build_method(name, dim=dim, cohort=RANKS, settings=choice)
        self._key, self._round = SketchKey.from_integer(seed), 0
        self._memories: list[ErrorFeedback] = []
        if sending.compressed and sending.feedback:
            claim = self._method.claim_for(RANKS, self._key.seed(0))
            self._memories = [
                ErrorFeedback(self._method, claim, immediate=sending.immediate)
                for _ in range(RANKS)
            ]

    def mean(self, vectors: Sequence[Tensor]) -> Tensor:
        """One round: vectors become messages, what is not sent is kept, messages are summed."""
        seed, messages, method = self._key.seed(self._round), [], self._method
        if isinstance(method, PlainSketch) and method.grid is not None and not self._round:
            limits = [method.limit_for(vector) or 1.0 for vector in vectors]
            method = self._method = method.at_clip(statistics.geometric_mean(limits))
        for rank, vector in enumerate(vectors):
            mixed = self._memories[rank].mixed(vector) if self._memories else vector
            noise = CohortNoise(NoiseKey(bytes(32)), [rank], round_index=self._round)
            message = method.encode(mixed, seed, noise).messages
            if self._memories and isinstance(method, PlainSketch):
                self._memories[rank].keep(vector, mixed, message, seed, method)
            messages.append(message)
        self._round += 1
        total = torch.stack(messages).sum(0).reshape(method.total_format.shape)
        self._method = method.after(total, count=RANKS)
        return method.decode(total, seed, count=RANKS)


def loss_after(setting: Setting, sending: Sending, *, steps: int, seed: int) -> float:
    """Of the first 10,000 training images; infinite if training diverged."""
    images, labels = _examples()
    model = perceptron((setting.width, setting.width), seed)
    parameters = list(model.parameters())
    ranks = Ranks(sum(one.numel() for one in parameters), setting, sending, seed)
    optimizer = torch.optim.SGD(parameters, lr=setting.rate, momentum=setting.momentum)
    generator = torch.Generator().manual_seed(1000 + seed)
    for _ in range(steps):
        drawn = torch.randint(len(labels), (RANKS, BATCH), generator=generator)
        gradients = [_gradient(model, images[own], labels[own]) for own in drawn]
        if not all(bool(torch.isfinite(one).all()) for one in gradients):
            return math.inf
        _assign(parameters, ranks.mean(gradients))
        optimizer.step()
    with torch.no_grad():
        loss = float(cross_entropy(model(images[:10_000]), labels[:10_000]))
    return loss if loss < DIVERGED else math.inf


@lru_cache
def _examples() -> tuple[Tensor, Tensor]:
    train = load_mnist(None, split="train")
    return pixels(train.inputs), train.labels.long()


def _gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    loss = cross_entropy(model(images), labels)
    return torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(model.parameters()))])


def _assign(parameters: Sequence[nn.Parameter], gradient: Tensor) -> None:
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        parameter.grad = gradient[start:stop].reshape(parameter.shape)
        start = stop


def run(settings: Sequence[Setting], *, steps: int, seeds: int) -> dict[str, Any]:
    """Every setting with every way of sending."""
    found = []
    for setting in settings:
        for sending in SENDINGS:
            losses = [loss_after(setting, sending, steps=steps, seed=k) for k in range(seeds)]
            mean = statistics.mean(losses)
            found.append(
                {"setting": asdict(setting), "sending": sending.name,
                 "losses": [loss if math.isfinite(loss) else None for loss in losses],
                 "loss": mean if math.isfinite(mean) else None}
            )  # fmt: skip
        _print_line(setting, found[-len(SENDINGS) :])
    return {"steps": steps, "seeds": seeds, "found": found}


def _print_line(setting: Setting, found: Sequence[dict[str, Any]]) -> None:
    numbers = [
        [one["sending"], "diverges" if one["loss"] is None else f"{one['loss']:.3f}"]
        for one in found
    ]
    momentum = f", momentum {setting.momentum:g}" if setting.momentum else ""
    title = f"{setting.width} units, {setting.compression:g}x, rate {setting.rate:g}{momentum}"
    print_table(title, ["", "loss"], numbers)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--quick", action="store_true", help="one setting, few steps, one seed")
    options = parser.parse_args(arguments)
    quick = options.quick
    settings, steps, seeds = (SETTINGS[:1], 5, 1) if quick else (SETTINGS, STEPS, SEEDS)
    facts = environment(torch.device("cpu"))
    save(facts | run(settings, steps=steps, seeds=seeds), options.json)


if __name__ == "__main__":
    main()
