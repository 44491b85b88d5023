"""Any feed-forward module, all workers at once: torch.func's `vmap` of `grad`, traced once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import log_softmax

from diffsketch.errors import ArgumentError
from diffsketch.training.local.batched import Batched

__all__ = ["Functional"]

_MOST_TRACES = 64

Gradient: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Functional(Batched):
    """Trains cohorts of any module whose examples do not depend on each other.

    The gradient of all workers is traced to a list of plain tensor operations, once for each shape
    of a batch; later calls run that list and pay nothing for torch.func, which is half of the time
    of small cohorts. The first trace of a process takes a second or two, others a tenth.

    Args:
        model: Its structure and constant buffers are taken (a copy), not its weights.

    Raises:
        ArgumentError: Training it would change buffers or draw random numbers.
    """

    examples_at_once = 1280  # enough to keep a core busy, few enough to stay in cache

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._frozen = [n for n, p in model.named_parameters() if not p.requires_grad]
        self._traces: OrderedDict[tuple[Any, ...], Gradient] = OrderedDict()

    def _gradient(self, current: Tensor, inputs: Tensor, labels: Tensor, places: Tensor) -> Tensor:
        key = (current.dim(), inputs.shape, inputs.dtype, inputs.device)
        trace = self._traces.get(key)
        if trace is None:
            trace = self._traces[key] = self._trace(current, inputs, labels, places)
            if len(self._traces) > _MOST_TRACES:
                self._traces.popitem(last=False)
        self._traces.move_to_end(key)
        return trace(current, inputs, labels, places)

    def _trace(self, *arguments: Tensor) -> Gradient:
        # Imported here: it takes a second, which those who train something else need not wait for.
        from torch.fx.experimental.proxy_tensor import make_fx

        shared = arguments[0].dim() == 1
        gradients = vmap(grad(self._loss), in_dims=(None if shared else 0, 0, 0, 0))

        def flat(current: Tensor, inputs: Tensor, labels: Tensor, places: Tensor) -> Tensor:
            split = dict(zip(self._layout.names, self._layout.split(current), strict=True))
            found = gradients(split, inputs, labels, places)
            for name in self._frozen:
                found[name] = torch.zeros_like(found[name])
            return torch.cat([found[name].flatten(1) for name in self._layout.names], 1)

        try:
            graph = make_fx(flat)(*arguments)
        except RuntimeError as error:
            raise ArgumentError(
                "model cannot be trained for all workers at once (torch.func says: "
                f"{str(error).splitlines()[0]}); use the trainer 'loop'"
            ) from error
        graph.graph.eliminate_dead_code()
        graph.recompile()
        return graph

    def _loss(
        self, named: dict[str, Tensor], inputs: Tensor, labels: Tensor, places: Tensor
    ) -> Tensor:
        """Mean cross-entropy over the places that are taken.

        Written out, since torch's own handles labels to be ignored, in a dozen operations more.
        """
        scores = functional_call(self._model, named, (inputs,))
        found = log_softmax(scores, 1).gather(1, labels.unsqueeze(1)).squeeze(1)
        return -(found * places).sum()
