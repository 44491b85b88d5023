"""A GRU of the paper's size for Shakespeare, with its gradient by hand.

At the paper's learning rate (0.8) it trains worse than `CharLSTM`, which is why no figure has it.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from diffsketch.training.local import Functional
from diffsketch.training.models import CharLSTM


class CharGRU(CharLSTM):
    """Two GRU layers of 60, 80 letters by 8: exactly the paper's 39,720 parameters too.

    The reset gate acts on the recurrent product, as in torch and cuDNN:
    `tanh(input x + bias + reset * (recurrent h))`.

    >>> sum(parameter.numel() for parameter in CharGRU().parameters())
    39720
    """

    gates: ClassVar[int] = 3

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(hidden=60, letters=80, embedding=8, seed=seed)

    def _fused(self, inputs: Tensor, start: Tensor, *rest: Any) -> Tensor:
        return torch.gru(inputs, start, *rest)[0]


class BatchedGRU(Functional):
    """Trains cohorts of `CharGRU`: the fastest measured from one device on.

    Each worker's products are one of a batch, and a layer's products with its inputs, and those of
    its gradients, are done for all characters of a window at once.
    """

    examples_at_once = 400  # a worker's states are large: some megabytes each

    def _gradient(self, current: Tensor, inputs: Tensor, labels: Tensor, places: Tensor) -> Tensor:
        workers, size, length = inputs.shape
        split = self._layout.split(current.expand(workers, -1) if current.dim() == 1 else current)
        embedding, first, second = split[0], _Layer(*split[1:4]), _Layer(*split[4:7])
        output, output_bias = split[7], split[8]
        letters = one_hot(
            inputs.transpose(1, 2).reshape(workers, -1).long(), embedding.shape[1]
        ).float()
        embedded = torch.bmm(letters, embedding).view(workers, length, size, -1)
        below, kept_below = _forward(first, embedded)
        above, kept_above = _forward(second, below)
        last = above[:, -1]

        scores = torch.baddbmm(output_bias.unsqueeze(1), last, output.transpose(1, 2))
        residual = _score_gradient(scores, labels, places)
        outer = torch.zeros_like(above)
        outer[:, -1] = torch.bmm(residual, output)
        of_below, *second_found = _backward(second, below, above, kept_above, outer)
        of_embedded, *first_found = _backward(first, embedded, below, kept_below, of_below)
        found = [
            torch.bmm(letters.transpose(1, 2), of_embedded.view(workers, length * size, -1)),
            *first_found,
            *second_found,
            torch.bmm(residual.transpose(1, 2), last),
            residual.sum(1),
        ]
        return torch.cat([part.flatten(1) for part in found], 1)


class _Layer(NamedTuple):
    """Weights of one layer of all workers; gates in torch's order: reset, update, new."""

    inputs: Tensor
    recurrent: Tensor
    bias: Tensor


class _Kept(NamedTuple):
    """Values for a step's gradient: the state before, gates, recurrent part of new, and new."""

    before: Tensor
    gates: Tensor
    recurrent: Tensor
    new: Tensor


def _forward(layer: _Layer, inputs: Tensor) -> tuple[Tensor, list[_Kept]]:
    """States `(workers, length, batch, hidden)` of inputs `(workers, length, batch, ...)`.

    r, z = sigmoid(inputs + recurrent),  n = tanh(input + r * recurrent),  h = n + z (h - n)
    """
    workers, length, size, _ = inputs.shape
    hidden = layer.recurrent.shape[2]
    rows = inputs.reshape(workers, length * size, -1)
    products = torch.baddbmm(layer.bias.unsqueeze(1), rows, layer.inputs.transpose(1, 2))
    products = products.view(workers, length, size, -1)
    recurrent = layer.recurrent.transpose(1, 2)
    states = inputs.new_empty(workers, length, size, hidden)
    state, kept = inputs.new_zeros(workers, size, hidden), []
    for step in range(length):
        own, product = products[:, step], torch.bmm(state, recurrent)
        gates = torch.sigmoid(own[:, :, : 2 * hidden] + product[:, :, : 2 * hidden])
        again = product[:, :, 2 * hidden :]
        new = torch.tanh(torch.addcmul(own[:, :, 2 * hidden :], gates[:, :, :hidden], again))
        kept.append(_Kept(state, gates, again, new))
        state = torch.lerp(new, state, gates[:, :, hidden:])
        states[:, step] = state
    return states, kept


def _backward(
    layer: _Layer, inputs: Tensor, states: Tensor, kept: list[_Kept], outer: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the inputs and of the layer's weights, from those of the states."""
    workers, length, size, hidden = states.shape
    of_inputs = states.new_empty(workers, length, size, 3 * hidden)  # of the products, each kind
    of_recurrent = torch.empty_like(of_inputs)
    carried = states.new_zeros(workers, size, hidden)
    for step in range(length - 1, -1, -1):
        before, gates, recurrent, new = kept[step]
        reset, update = gates[:, :, :hidden], gates[:, :, hidden:]
        whole = carried + outer[:, step]
        of_new = whole * (1 - update) * (1 - new * new)
        of_gates = torch.cat((of_new * recurrent, whole * (before - new)), 2) * gates * (1 - gates)
        of_inputs[:, step, :, : 2 * hidden] = of_gates
        of_inputs[:, step, :, 2 * hidden :] = of_new
        each = torch.cat((of_gates, of_new * reset), 2)
        of_recurrent[:, step] = each
        carried = torch.baddbmm(whole * update, each, layer.recurrent)
    of_inputs, of_recurrent = of_inputs.flatten(1, 2), of_recurrent.flatten(1, 2)
    shifted = torch.cat((torch.zeros_like(states[:, :1]), states[:, :-1]), 1).flatten(1, 2)
    return (
        torch.bmm(of_inputs, layer.inputs).view(inputs.shape),
        torch.bmm(of_inputs.transpose(1, 2), inputs.reshape(workers, length * size, -1)),
        torch.bmm(of_recurrent.transpose(1, 2), shifted),
        of_inputs.sum(1),
    )


def _score_gradient(scores: Tensor, labels: Tensor, places: Tensor) -> Tensor:
    """Compute the gradient of the loss by the scores `(workers, batch, classes)`."""
    residual = torch.softmax(scores, 2)
    minus_one = residual.new_full((1, 1, 1), -1.0).expand(*labels.shape, 1)
    residual.scatter_add_(2, labels.unsqueeze(2), minus_one)
    return residual.mul_(places.unsqueeze(2))
