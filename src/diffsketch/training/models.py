"""Built-in models, and weights as one flat vector."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from diffsketch.errors import ArgumentError, MismatchError, check


@dataclass(frozen=True)
class WeightLayout:
    """Place of each parameter of a model in its flat weights: in `named_parameters`' order."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, model: nn.Module) -> WeightLayout:
        """Make the layout of a model; a shared parameter is in it once."""
        # A shared parameter comes once, so its gradient is counted once.
        parameters = dict(model.named_parameters())
        check(bool(parameters), "model", "have parameters", type(model).__name__)
        for name, parameter in parameters.items():
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                raise ArgumentError(
                    f"model must have its weights, got a lazy {name!r}: call it with a batch first"
                )
            real = parameter.dtype in (torch.float32, torch.float16, torch.bfloat16)
            check(real, name, "be float32, float16 or bfloat16", parameter.dtype)
        return cls(tuple(parameters), tuple(p.shape for p in parameters.values()))

    @cached_property
    def sizes(self) -> list[int]:
        """Number of entries of each parameter."""
        return [shape.numel() for shape in self.shapes]

    @cached_property
    def dim(self) -> int:
        """Length of the weights."""
        return sum(self.sizes)

    def split(self, weights: Tensor) -> tuple[Tensor, ...]:
        """Split `(dim,)` into views of the parameters; of `(workers, dim)`, one for each worker."""
        lead = weights.shape[:-1]
        parts = torch.split_with_sizes(weights, self.sizes, dim=-1)
        return tuple(
            part.view(*lead, *shape) for part, shape in zip(parts, self.shapes, strict=True)
        )

    def check_weights(self, weights: Tensor) -> None:
        """Raise unless these are flat weights of the model."""
        check(weights.dtype == torch.float32, "weights", "be float32", weights.dtype)
        if weights.shape != (self.dim,):
            raise MismatchError(
                f"weights must have the shape ({self.dim},), got {tuple(weights.shape)}"
            )


def flatten(model: nn.Module) -> Tensor:
    """Copy all parameters of a model into one vector, float32 whatever the model's type.

    Guarantees: `load` gives them back (`test_flatten_and_load_round_trip`).

    >>> flatten(LogisticRegression()).shape
    torch.Size([7850])
    """
    WeightLayout.of(model)
    return torch.cat([parameter.detach().flatten().float() for parameter in model.parameters()])


def unflatten(model: nn.Module, weights: Tensor) -> dict[str, Tensor]:
    """Split flat weights into the parameters of a model by name: views, not copies."""
    layout = WeightLayout.of(model)
    layout.check_weights(weights)
    return dict(zip(layout.names, layout.split(weights), strict=True))


def load(model: nn.Module, weights: Tensor) -> None:
    """Set the parameters of a model to flat weights, rounded to the model's type."""
    with torch.no_grad():
        for name, value in unflatten(model, weights).items():
            model.get_parameter(name).copy_(value)


def working_copy(model: nn.Module, *, keep_local: bool = False) -> nn.Module:
    """Copy a model for training: in float32, since sums of many float16 updates lose bits.

    With `keep_local`, layers that would keep running statistics normalise by each batch instead.
    """
    # The caller's module is never trained, nor changed by what is switched off here.
    model = copy.deepcopy(model)
    if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        model = model.float()
    for module in model.modules():
        if keep_local and isinstance(module, _NormBase) and module.track_running_stats:
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return model


class LogisticRegression(nn.Linear):
    """Scores `weight x + bias` of each class: 7,850 parameters for MNIST.

    It starts from zero: the loss is convex, so no symmetry has to be broken, and all seeds start
    alike. Whole numbers are not scaled, so scale pixels beforehand.

    >>> LogisticRegression()(torch.zeros(5, 28, 28)).shape
    torch.Size([5, 10])
    """

    def __init__(self, features: int = 784, classes: int = 10) -> None:
        check(features >= 1, "features", "be >= 1", features)
        check(classes >= 2, "classes", "be >= 2", classes)
        # Without memory at first: there, it does not draw from the global generator.
        super().__init__(features, classes, device="meta")
        self.weight = nn.Parameter(torch.zeros(classes, features))
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute scores `(batch, classes)` of inputs `(batch, ...)`."""
        return super().forward(inputs.flatten(1).to(self.weight.dtype))


class CharLSTM(nn.Module):
    """The character model for Shakespeare: an LSTM with exactly the paper's 39,720 parameters.

    The next character from a window of characters: embedding, two recurrent layers, dense. Two
    layers of 52, an embedding of 7 and a vocabulary of 90, as TensorFlow Federated has it (86
    characters and 4 marks); the task's characters are the first 80. One bias for each gate, where
    torch's own layers have two that only add up; the second goes to the same kernels as zeros.

    >>> flatten(CharLSTM()).shape
    torch.Size([39720])
    """

    def __init__(
        self, *, hidden: int = 52, letters: int = 90, embedding: int = 7, seed: int = 0
    ) -> None:
        super().__init__()
        self.hidden = hidden
        self.embedding = nn.Parameter(torch.empty(letters, embedding))
        for layer, size in enumerate((embedding, hidden)):
            rows = 4 * hidden  # four gates
            self.register_parameter(f"input_{layer}", nn.Parameter(torch.empty(rows, size)))
            self.register_parameter(f"recurrent_{layer}", nn.Parameter(torch.empty(rows, hidden)))
            self.register_parameter(f"bias_{layer}", nn.Parameter(torch.empty(rows)))
        self.output = nn.Parameter(torch.empty(letters, hidden))
        self.output_bias = nn.Parameter(torch.empty(letters))
        check(type(seed) is int, "seed", "be an int", seed)
        # A generator of its own: runs must not depend on who has used the global one.
        generator, bound = torch.Generator().manual_seed(seed), hidden**-0.5
        with torch.no_grad():
            for parameter in list(self.parameters())[1:]:  # as torch's own layers do
                parameter.uniform_(-bound, bound, generator=generator)
            self.embedding.normal_(generator=generator)

    def forward(self, windows: Tensor) -> Tensor:
        """Compute scores `(batch, letters)` of the character after windows `(batch, length)`."""
        # Time first, as torch's fused kernels take it.
        inputs = functional.embedding(windows.t().long(), self.embedding)
        if inputs.is_cuda:
            # cuDNN copies weights that are not contiguous, and warns at each call; ours have no
            # place for its second bias.
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="RNN module weights are not part of")
                last = self._recur(inputs)[-1]
        else:
            last = self._recur(inputs)[-1]
        return functional.linear(last, self.output, self.output_bias)

    def _recur(self, inputs: Tensor) -> Tensor:
        """Compute the upper layer's output `(length, batch, hidden)`."""
        # One state for each of the two layers, zero at the start of every window.
        start = inputs.new_zeros(2, inputs.shape[1], self.hidden)
        weights: list[Tensor] = []  # in the order in which torch's fused kernels take them
        for layer in range(2):
            # By attribute: torch.func puts plain tensors in the place of parameters.
            weights += [getattr(self, f"{kind}_{layer}") for kind in ("input", "recurrent", "bias")]
            # The second bias of torch's layers.
            weights.append(torch.zeros_like(weights[-1]))
        grad = torch.is_grad_enabled()
        return torch.lstm(inputs, (start, start), weights, True, 2, 0.0, grad, False, False)[0]
