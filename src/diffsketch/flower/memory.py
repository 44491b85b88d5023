"""What a client keeps between messages: in Flower's `Context.state`, which dies with its SuperNode.

The model of the last round (so that the next download is small), the arrays that the client keeps
to itself, the last round that it answered, and its account.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context

from diffsketch.flower.account import Account
from diffsketch.flower.records import NO_MODEL
from diffsketch.privacy.accounting.accountant import Budget

__all__ = ["Memory"]

_VALUES, _MODEL, _OWN = "diffsketch.memory", "diffsketch.model", "diffsketch.own"
_NEVER = -1


@dataclass(frozen=True, eq=False)
class Memory:
    """A value, read at the beginning of a message and written before its reply.

    Attributes:
        series: Of the strategy that rounds and versions are counted in.
        version: Of the model.
        model: None if there is none.
        answered: The last round that a message was sent for; -1 for none.
        account: None if nothing is known of it.
        own: Arrays that the client keeps to itself, as its app left them; None if there are none.
    """

    series: bytes
    version: int = NO_MODEL
    model: ArrayRecord | None = None
    answered: int = _NEVER
    account: Account | None = None
    own: ArrayRecord | None = None

    @classmethod
    def read(cls, context: Context, series: bytes, budget: Budget | None) -> Memory:
        """What is known. Of another series only the account counts."""
        values: Any = context.state.config_records.get(_VALUES)
        if values is None:
            return cls(series)
        text = str(values["account"])
        account = Account.of_text(text, budget) if text else None
        if values["series"] != series:
            return cls(series, account=account)
        model = context.state.array_records.get(_MODEL)
        version = NO_MODEL if model is None else int(values["version"])
        answered = int(values["answered"])
        own = context.state.array_records.get(_OWN)
        return cls(series, version, model, answered, account, own)

    def write(self, context: Context) -> None:
        """Keep it for the next message."""
        text = "" if self.account is None else self.account.to_text()
        context.state[_VALUES] = ConfigRecord(
            {
                "series": self.series,
                "version": self.version,
                "answered": self.answered,
                "account": text,
            }
        )
        if self.model is not None:
            context.state[_MODEL] = self.model
        if self.own is not None:
            context.state[_OWN] = self.own

    def with_model(self, model: ArrayRecord, version: int) -> Memory:
        """With another model."""
        return replace(self, model=model, version=version)

    def with_own(self, own: ArrayRecord) -> Memory:
        """With what the app has made of the client's own arrays."""
        return replace(self, own=own)

    def with_answer(self, round_index: int, account: Account) -> Memory:
        """After a message."""
        return replace(self, answered=round_index, account=account)
