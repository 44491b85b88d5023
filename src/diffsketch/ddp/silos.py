"""Training in silos over torch.distributed, with a claim about their records."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from diffsketch.ddp.group import GroupMean
from diffsketch.ddp.weights import named_digest, trained
from diffsketch.errors import check
from diffsketch.methods.base import Method
from diffsketch.privacy.claim import Claim
from diffsketch.silos.gradients import Loss, RecordGradients
from diffsketch.silos.messages import record_method
from diffsketch.silos.records import Records
from diffsketch.sketch.hashing import HashSeed


class SiloSteps(GroupMean):
    """Steps of an optimizer with the private mean gradient of the records of all ranks.

        silo = SiloSteps(model, optimizer, Records(images, labels), method, key=key)
        for _ in range(150):
            silo.step()

    Each rank is a silo with its own records. In a step it draws a batch in secret, bounds every
    record's gradient, adds its noise, and takes part in one round of a `GroupMean`, with whose
    account, budget, gate and errors it shares everything. All ranks then take the same step of
    the optimizer: momentum and Adam are post-processing, and cost nothing. Draw no batches of your
    own, and compute nothing else from the records that others see, such as a loss.

    Models have to be the same on all ranks, and are compared in each round.

    Guarantees (`tests/ddp/test_silos.py`): ranks keep one model; each is charged before its records
    are looked at, and the budget stops the step; a record that is not finite, or fails, counts as
    zeros, and nothing else shows.

    Args:
        model: The module: not wrapped in DDP, which would sum gradients without noise.
        optimizer: Of its parameters.
        records: Those of this rank's silo.
        method: With `unit="example"` or `"person"`, and a cohort of all ranks.
        loss: Loss of scores and labels, a mean over the batch; cross-entropy if None.
        options: Those of `GroupMean`, `key` among them.

    Raises:
        ArgumentError: The method is for whole clients, or the model mixes records.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, records: Records,
        method: Method, *, loss: Loss | None = None, **options: Any,
    ) -> None:  # fmt: skip
        plain = not isinstance(model, nn.parallel.DistributedDataParallel)
        check(plain, "model", "not be wrapped in DDP, which sums gradients without noise", model)
        record_method(method)
        self._model, self._optimizer, self._records = model, optimizer, records
        self._gradients = RecordGradients(model, loss=loss)
        super().__init__(method, **options)

    def step(self) -> None:
        """Take one step: a round, and the optimizer's step with its mean gradient.

        Raises:
            BudgetExceeded: The round would cost too much. Nothing was drawn or sent.
            MismatchError: Ranks disagree, or have different models. All ranks raise.
        """
        parameters = trained(self._model)
        weights = list(parameters.values())
        # In the place of a vector, which is made of the records behind the gate.
        place = weights[0].new_zeros(self.method.dim, dtype=torch.float32)
        mean = self.mean(place, layout=named_digest(parameters))
        parts = torch.split(mean, [parameter.numel() for parameter in weights])
        for parameter, part in zip(weights, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)
        self._optimizer.step()

    def _released(self, vector: Tensor, seed: HashSeed, claim: Claim) -> tuple[Tensor, bool]:
        """The message of a batch of records, paid for, with the server's noise at rank 0."""
        method, charge = self.method, partial(self._account.charge, claim)
        message = self._records.message(self._gradients, method, seed, claim, charge=charge)
        return self._with_servers_noise(message.to(vector.device), claim), True
