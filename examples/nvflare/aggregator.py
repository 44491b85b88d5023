"""The server's side: it adds messages up, decodes their mean, and takes a step with momentum."""

from __future__ import annotations

import numpy as np
import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from task import KEY, METHOD, Net

from diffsketch.privacy import Account
from diffsketch.wire import Message, WireError


class SketchAggregator(ModelAggregator):
    """Steps of SGD with the private mean gradient. Momentum is post-processing, and costs nothing.

    Args:
        learning_rate: Factor of the mean.
        momentum: Factor of the step before.
    """

    def __init__(self, learning_rate: float = 2.0, momentum: float = 0.5) -> None:
        super().__init__()
        self.learning_rate, self.momentum = learning_rate, momentum
        self._last = torch.zeros(METHOD.dim)
        self._messages: dict[str, Message] = {}
        self._paid = Account()

    @property
    def _round(self) -> int:
        """Index of the round, as the server's workflow counts."""
        index: int = self.fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
        return index

    def reset_stats(self) -> None:
        """Forget the messages of the round before."""
        self._messages = {}

    def accept_model(self, model: FLModel) -> None:
        """Take a site's message, if it is one of this round."""
        site, index = str(model.meta["client_name"]), self._round
        try:
            data = np.asarray(model.params["message"], np.uint8).tobytes()
            self._messages[site] = Message.from_bytes(
                data, METHOD.message_format, round_index=index,
                fingerprint=KEY.seed(index).fingerprint, count=1,
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, WireError) as error:
            self.warning(f"{site} is left out: {error}")

    def aggregate_model(self) -> FLModel:
        """Make the change of the weights. Without a message there is none."""
        step, count = torch.zeros_like(self._last), len(self._messages)
        if count:
            seed = KEY.seed(self._round)
            total = torch.stack([message.cells for message in self._messages.values()]).sum(0)
            mean = METHOD.decode(total, seed, count=count)
            self._last = self.momentum * self._last + mean
            step = -self.learning_rate * self._last
            self._paid.charge(METHOD.claim_for(count, seed))
        sent = count * METHOD.wire_bytes
        self.info(
            f"round {self._round}: {count} sites, {sent:,} bytes up, {self._paid.epsilon(1e-5)}"
        )
        named = dict(Net().named_parameters())
        parts = torch.split(step, [parameter.numel() for parameter in named.values()])
        change = {
            name: part.view_as(parameter).numpy()
            for (name, parameter), part in zip(named.items(), parts, strict=True)
        }
        return FLModel(params_type=ParamsType.DIFF, params=change, current_round=self._round)
