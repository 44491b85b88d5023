"""The state of a `GroupMean` as tensors, numbers and texts, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from diffsketch.training.identity import difference
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.training.participation import Participation

__all__ = ["GroupState"]

_ACCOUNTS = "participation."


@dataclass(frozen=True, eq=False)
class GroupState:
    """What a mean has to keep between rounds.

    Attributes:
        accounts: What the rounds so far have cost.
        round_index: Rounds that were begun.
        memory: That of error feedback: what this rank has not sent yet, scaled.
        sent: Rounds that were sent, by the object that sent them: its random name.
        account: Name of the account file, if there is one.
    """

    accounts: Participation
    round_index: int
    memory: Tensor | None
    sent: Mapping[str, int]
    account: str = ""

    def packed(self, settings: str) -> dict[str, Any]:
        """As tensors, numbers and texts, with what it belongs to."""
        found: dict[str, Any] = {"settings": settings, "round_index": self.round_index}
        found |= {"sent": json.dumps(dict(self.sent)), "account": self.account}
        if self.memory is not None:
            found["memory"] = self.memory.clone()
        accounts = self.accounts.state()
        return found | {f"{_ACCOUNTS}{name}": value for name, value in accounts.items()}

    @classmethod
    def unpacked(
        cls, state: Mapping[str, Any], settings: str, *, dim: int, accounts: Participation
    ) -> GroupState:
        """What `packed` was called on.

        Args:
            state: From `packed`.
            settings: What it has to belong to.
            dim: Coordinates of a vector.
            accounts: Whose budget is to hold.

        Raises:
            ArgumentError: It is no state at all.
            MismatchError: It belongs to other settings, or lacks something.
        """
        if not isinstance(state, Mapping):
            raise ArgumentError(f"state must be a mapping, got {type(state).__name__}")
        if state.get("settings") != settings:
            why = difference(settings, str(state.get("settings")))
            raise MismatchError(f"the state must be of the same mean, but {why}")
        needed = ("round_index", "sent", "account", f"{_ACCOUNTS}rounds", f"{_ACCOUNTS}claim")
        if missing := [name for name in needed if name not in state]:
            raise MismatchError(f"the state must have {', '.join(missing)}")
        memory = state.get("memory")
        if memory is not None and tuple(memory.shape) != (dim,):
            raise MismatchError(f"memory must have the shape {(dim,)}, got {tuple(memory.shape)}")
        paid = {
            name.removeprefix(_ACCOUNTS): value
            for name, value in state.items()
            if name.startswith(_ACCOUNTS)
        }
        kept = None if memory is None else memory.clone()
        try:
            sent = {str(name): int(rounds) for name, rounds in json.loads(state["sent"]).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise MismatchError(f"sent must be what a state has, got {error}") from error
        restored = accounts.restored(paid)
        return cls(restored, int(state["round_index"]), kept, sent, str(state["account"]))
