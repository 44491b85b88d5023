"""Which models local training refuses, because their result would depend on more than weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from diffsketch.errors import ArgumentError

__all__ = ["StateWatch", "check_model"]


def check_model(model: nn.Module) -> None:
    """Raise if training the model changes buffers or draws random numbers.

    Buffers that stay as they are, a table of positions for one, are fine.

    Raises:
        ArgumentError: It has a layer with running statistics, which no method would average, or
            one that draws from the global generator.
    """
    for name, module in model.named_modules():
        where = f"model's layer {name or 'itself'!r} ({type(module).__name__})"
        if isinstance(module, _NormBase) and module.track_running_stats:
            raise ArgumentError(
                f"{where} must not keep running statistics, which only weights' owners could "
                "average: use GroupNorm or LayerNorm, or track_running_stats=False"
            )
        dropout = isinstance(module, _DropoutNd) and module.p > 0
        between = isinstance(module, nn.RNNBase) and module.dropout > 0
        if dropout or between or isinstance(module, nn.RReLU):
            raise ArgumentError(
                f"{where} must not draw random numbers while training: they would come from the "
                "global generator, and a run could not be repeated; set its probability to 0"
            )


class StateWatch:
    """Notices what `check_model` cannot see: a model that changes its buffers or draws numbers."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._buffers = self._versions()
        self._generator: Tensor | None = torch.get_rng_state()

    def _versions(self) -> dict[str, tuple[int, int]]:
        # Torch counts the in-place changes of a tensor; another tensor has another identity.
        return {name: (id(b), b._version) for name, b in self._model.named_buffers()}

    def check(self) -> None:
        """Raise if buffers have changed since the start; the first time, also for drawn numbers.

        Raises:
            ArgumentError: One of both has happened.
        """
        versions = self._versions()
        if versions != self._buffers:
            changed = {n for n, v in versions.items() if self._buffers.get(n) != v}
            names = ", ".join(sorted(changed | (self._buffers.keys() - versions.keys())))
            raise ArgumentError(f"model must not change its buffers while training: {names}")
        if self._generator is not None and not torch.equal(self._generator, torch.get_rng_state()):
            raise ArgumentError("model must not draw from torch's global generator while training")
        self._generator = None
