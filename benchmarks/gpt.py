"""A small byte-level GPT, text that every machine has, and steps of training that are quick.

The model's parameters are one flat vector, so that whoever exchanges gradients or weights copies
nothing. On CUDA it computes in bfloat16 (the vector stays in float32), its forward and backward
pass are compiled and recorded once as a CUDA graph, and so is a step of AdamW: many short steps
would otherwise wait for Python.
"""

from __future__ import annotations

import hashlib
import math
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import (
    cross_entropy,
    gelu,
    layer_norm,
    one_hot,
    scaled_dot_product_attention,
)

__all__ = [
    "GPT",
    "SIZES",
    "Size",
    "Text",
    "Trainer",
    "draw_starts",
    "installed_sources",
    "schedule",
]

TEXT_BYTES = 60_000_000
LARGEST_FILE = 500_000  # bytes: larger ones are generated, and would outweigh all others
HELD_OUT = 6  # of 256 files
VOCABULARY = 256
CLIP = 1.0  # norm of a gradient
BETAS, DECAY = (0.9, 0.95), 0.1
MUON_MOMENTUM, MUON_POLYNOMIAL = 0.95, (3.4445, -4.775, 2.0315)
WARM_UP = 3  # calls before one is recorded


@dataclass(frozen=True)
class Text:
    """Bytes to learn from and to judge by, from different files.

    Attributes:
        train: uint8.
        held_out: uint8.
        files: How many there are.
        digest: SHA-256 of both, in this order.
    """

    train: Tensor
    held_out: Tensor
    files: int
    digest: str

    def facts(self) -> dict[str, Any]:
        """Sizes and digest."""
        sizes = {"train_bytes": len(self.train), "held_out_bytes": len(self.held_out)}
        return sizes | {"files": self.files, "sha256": self.digest}

    def to(self, device: torch.device) -> Text:
        """Return the same on a device."""
        return Text(self.train.to(device), self.held_out.to(device), self.files, self.digest)


def installed_sources(limit: int = TEXT_BYTES, roots: Iterable[Path] | None = None) -> Text:
    """Collect the Python sources of the standard library and of installed packages.

    In the order of a hash of their paths, up to `limit` bytes, without copies of a file and without
    very large ones. The hash also says which files are held out.
    """
    if roots is None:
        paths = sysconfig.get_paths()
        roots = [Path(paths[name]) for name in ("stdlib", "purelib")]
    found: dict[str, Path] = {}
    for root in roots:
        for path in root.rglob("*.py"):
            name = path.relative_to(root).as_posix()
            if "site-packages" not in name:
                found.setdefault(hashlib.sha256(name.encode()).hexdigest(), path)
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    seen, size = set(), 0
    for key in sorted(found):
        data = found[key].read_bytes()
        content = hashlib.sha256(data).digest()
        if content not in seen and 0 < len(data) <= LARGEST_FILE:
            seen.add(content)
            parts[int(key[-2:], 16) < HELD_OUT].append(data)
            size += len(data)
        if size >= limit:
            break
    train, held_out = (b"".join(part) for part in parts)
    digest = hashlib.sha256(train + held_out).hexdigest()
    return Text(_bytes(train), _bytes(held_out), len(seen), digest)


def _bytes(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


@dataclass(frozen=True)
class Size:
    """Layers, width, heads and context of a model."""

    layers: int
    width: int
    heads: int
    context: int


SIZES = {
    "small": Size(2, 64, 2, 64),
    "1M": Size(5, 128, 4, 128),
    "10M": Size(6, 384, 6, 256),
    "60M": Size(10, 704, 11, 256),
}


class GPT:
    """A decoder without biases, whose parameters are views of one vector.

    Attributes:
        size: Its sizes.
        shapes: Of its parameters, in the order of the vector.
        dim: Length of the vector.
    """

    def __init__(self, size: Size) -> None:
        self.size = size
        width = size.width
        block = [(width,), (3 * width, width), (width, width)]
        block += [(width,), (4 * width, width), (width, 4 * width)]
        ends = [(VOCABULARY, width), (size.context, width)]
        self.shapes: list[tuple[int, ...]] = [*ends, *block * size.layers, (width,), ends[0]]
        self._sizes = [math.prod(shape) for shape in self.shapes]
        self.dim = sum(self._sizes)

    def initial(self, seed: int) -> Tensor:
        """Draw parameters. Scales of the norms are offsets from 1, so that decay is harmless."""
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.zeros(self.dim)
        for view in self.views(drawn):
            if view.dim() == 2:
                view.normal_(0.0, 0.02, generator=generator)
        return drawn

    def views(self, flat: Tensor) -> list[Tensor]:
        """Parameters of one vector, or of `(workers, dim)`."""
        parts = torch.split(flat, self._sizes, dim=-1)
        lead = flat.shape[:-1]
        return [part.view(*lead, *shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def loss(self, flat: Tensor, tokens: Tensor) -> Tensor:
        """Compute each worker's mean cross-entropy in nats a byte, and add them up.

        All workers' layers are batched products, which fill a GPU better than one after another.

        Args:
            flat: `(workers, dim)`.
            tokens: `(workers, sequences, context + 1)`.
        """
        size, views = self.size, iter(self.views(flat))
        inputs, targets = tokens[..., :-1], tokens[..., 1:]
        workers, count, length = inputs.shape
        # A product, since the gradient of so small an embedding takes longer than all of a layer.
        hidden = one_hot(inputs.flatten(1), VOCABULARY).to(flat.dtype) @ next(views)
        hidden = hidden + next(views)[:, :length].repeat(1, count, 1)
        for _ in range(size.layers):
            first, qkv, out, second, up, down = (next(views) for _ in range(6))
            heads = _norm(hidden, first) @ qkv.mT
            heads = heads.view(workers * count, length, 3, size.heads, -1)
            query, key, value = heads.permute(2, 0, 3, 1, 4)
            mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
            hidden = hidden + mixed.transpose(1, 2).reshape(hidden.shape) @ out.mT
            hidden = hidden + gelu(_norm(hidden, second) @ up.mT, approximate="tanh") @ down.mT
        logits = _norm(hidden, next(views)) @ next(views).mT
        return workers * cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def _norm(hidden: Tensor, scale: Tensor) -> Tensor:
    return layer_norm(hidden, hidden.shape[-1:]) * (1 + scale[:, None])


class Trainer:
    """All workers on one device: gradients and AdamW steps, recorded on CUDA.

    Args:
        model: The model.
        text: On the device.
        workers: How many there are.
        sequences: Of a worker's batch.
        compiled: Whether PyTorch compiles the model; only on CUDA.
        muon: Whether matrices of the layers are stepped by Muon, and all else by AdamW.

    Attributes:
        weights: `(workers, dim)`.
        grads: `(workers, dim)`: gradients of the last `backward`, which the next `step` applies.
    """

    def __init__(
        self, model: GPT, text: Text, workers: int, sequences: int, *, compiled: bool = False,
        muon: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.text = model, text
        self._muon = range(2, len(model.shapes) - 2) if muon else range(0)
        device = text.train.device
        self.weights = torch.zeros(workers, model.dim, device=device)
        self.grads = torch.zeros_like(self.weights)
        self._parameter, self._rate = nn.Parameter(self.weights), torch.zeros((), device=device)
        self._optimizer = torch.optim.AdamW(
            [self._parameter], lr=self._rate, betas=BETAS, weight_decay=DECAY,
            fused=True, capturable=device.type == "cuda",
        )  # fmt: skip
        self._memory = {name: torch.zeros_like(self.weights) for name in ("exp_avg", "exp_avg_sq")}
        self._memory["step"] = torch.zeros((), device=device)
        self._optimizer.state[self._parameter] = dict(self._memory)
        if muon:
            self._memory["momentum"] = torch.zeros_like(self.weights)
        self._starts = torch.zeros(workers, sequences, dtype=torch.int64, device=device)
        self._span = torch.arange(model.size.context + 1, device=device)
        self._low = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._loss: Callable[[Tensor, Tensor], Tensor] = model.loss
        if compiled and device.type == "cuda":
            self._loss = torch.compile(model.loss, fullgraph=True, dynamic=False)
        self._backward = self._recorded(self._compute_gradients)
        self._step = self._recorded(self._apply_gradients)

    def restart(self, weights: Tensor) -> None:
        """Begin anew, all workers with these weights."""
        self.weights.copy_(weights)
        for value in self._memory.values():
            value.zero_()

    def backward(self, starts: Tensor) -> None:
        """Compute `grads` on `(workers, sequences)` that start at these places of the text."""
        self._starts.copy_(starts)
        self._backward()

    def step(self, rate: float) -> None:
        """Clip each worker's gradient and apply it with AdamW."""
        self._rate.fill_(rate)
        self._step()

    def held_out_loss(self, weights: Tensor, *, batches: int, sequences: int = 64) -> float:
        """Compute the loss on the same sequences of the text that was held out, every time."""
        generator = torch.Generator().manual_seed(99)
        total = torch.zeros((), device=weights.device)
        text, last = self.text.held_out, len(self.text.held_out) - len(self._span)
        low = weights.to(self._low)[None]
        with torch.no_grad():
            for _ in range(batches):
                starts = torch.randint(last, (sequences, 1), generator=generator)
                tokens = text[starts.to(weights.device) + self._span]
                total += self.model.loss(low, tokens[None].long())
        return float(total) / batches

    def _compute_gradients(self) -> None:
        tokens = self.text.train[self._starts[..., None] + self._span].long()
        loss = self._loss(self._parameter.to(self._low), tokens)
        (found,) = torch.autograd.grad(loss, self._parameter)
        self.grads.copy_(found)

    def _apply_gradients(self) -> None:
        with torch.no_grad():
            norms = torch.linalg.vector_norm(self.grads, dim=1, keepdim=True)
            self._parameter.grad = self.grads.mul_((CLIP / norms).clamp(max=1.0))
            updates = [(index, self._muon_update(index)) for index in self._muon
                       if len(self.model.shapes[index]) == 2]  # fmt: skip
        self._optimizer.step()
        with torch.no_grad():
            views = self.model.views(self.weights)
            for index, update in updates:
                views[index].copy_(update)

    def _muon_update(self, index: int) -> Tensor:
        """Compute what a matrix is after a step of `torch.optim.Muon`, of all workers at once."""
        weights, grads, momentum = (
            self.model.views(values)[index]
            for values in (self.weights, self.grads, self._memory["momentum"])
        )
        momentum.lerp_(grads, 1 - MUON_MOMENTUM)
        update = grads.lerp(momentum, MUON_MOMENTUM).to(torch.bfloat16)
        wide = update.shape[-2] <= update.shape[-1]
        update = update if wide else update.mT
        update = update / torch.linalg.matrix_norm(update, keepdim=True).clamp(min=1e-7)
        first, second, third = MUON_POLYNOMIAL
        for _ in range(5):
            gram = update @ update.mT
            update = first * update + (second * gram + third * gram @ gram) @ update
        update = update if wide else update.mT
        # Scaled to the size of AdamW's steps, so that one learning rate suits both.
        rate = self._rate * (0.2 * math.sqrt(max(self.model.shapes[index])))
        stepped: Tensor = weights * (1 - self._rate * DECAY) - rate * update
        return stepped

    def _recorded(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return a function that does the same work, on CUDA as one graph."""
        if self._rate.device.type != "cuda":
            return work
        stream: Any = torch.cuda.Stream  # untyped in some versions of torch
        side = stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay


def draw_starts(
    text: Text, context: int, shape: tuple[int, int, int], generator: torch.Generator
) -> Tensor:
    """Draw the sequences of all steps: `(steps, workers, sequences)` places in the text.

    Each worker has a part of the text to itself.
    """
    _, workers, _ = shape
    part = len(text.train) // workers
    device = text.train.device
    drawn = torch.randint(part - context - 1, shape, generator=generator, device=device)
    return drawn + part * torch.arange(workers, device=device)[:, None]


def schedule(steps: int, peak: float) -> Sequence[float]:
    """Learning rates: a linear warm-up over 2% of the steps, then a cosine to a tenth."""
    warm_up = max(1, steps // 50)
    return [
        peak * min(1.0, (t + 1) / warm_up) * (0.1 + 0.45 * (1 + math.cos(math.pi * t / steps)))
        for t in range(steps)
    ]
