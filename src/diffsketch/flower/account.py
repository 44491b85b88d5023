"""What a client has paid so far, in its own books, and a statement of it that others may keep.

The client's own account decides whether it answers: a server may forget, or lie. Where a client
keeps nothing over a restart, the server keeps its account for it: bytes with an HMAC under a key
that only the client has, handed back with each request. Nobody else can make or change one. That
an *older* statement is handed back can be noticed only by a client that remembers: a client that
keeps no file trusts the server not to take an old one. A client that has neither a memory nor a
statement counts every earlier round of the run as if it had taken part.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import DataError, MismatchError
from diffsketch.files import (
    LockBusy,
    LockLost,
    LockUnavailable,
    locked_beside,
    prepare_output,
    replace_file,
    synchronise,
)
from diffsketch.training.participation import Participation
from diffsketch.privacy.accounting.accountant import Budget
from diffsketch.privacy.claim import Claim, Epsilon, Scope
from diffsketch.wire import WireError

__all__ = ["Account", "AccountFile", "plain_value", "unpacked_state"]

_FORMAT = 1
_SEAL_BYTES = 32
_SELF = np.zeros(1, np.int64)
_WAIT = 60.0  # seconds for a lock that others hold for milliseconds


@dataclass(frozen=True, eq=False)
class Account:
    """A value: `after` gives the account after one more message.

    Guarantees (`tests/flower/test_flower_books.py`): a statement that was changed, cut or made
    with another key is refused; an account comes back exactly; the budget is never exceeded.

    Attributes:
        paid: What was released, as an account of one client.
        serial: Messages so far, or rounds that count as if: of two accounts the higher is newer.
    """

    paid: Participation
    serial: int = 0

    @classmethod
    def new(cls, budget: Budget | None) -> Account:
        """Of a client that has sent nothing."""
        return cls(Participation(1, budget))

    @classmethod
    def most_spent(cls, accounts: Sequence[Account]) -> Account:
        """Of each price the most that one of these accounts says, since each may lack something.

        Raises:
            MismatchError: They are about different things.
        """
        newest = max(accounts, key=lambda one: one.serial)
        state = newest.paid.state()
        for one in accounts:
            if one.scope != newest.scope and one.serial:
                raise MismatchError(
                    f"accounts of one client must be about the same: {newest.scope}, got "
                    f"{one.scope}"
                )
            for name, value in one.paid.state().items():
                known = state.setdefault(name, value)
                if isinstance(value, Tensor) and isinstance(known, Tensor):
                    state[name] = value if value.sum() > known.sum() else known
        return replace(newest, paid=newest.paid.restored(state))

    @property
    def scope(self) -> Scope | None:
        """What its messages were about; None before the first."""
        return None if self.paid.claim is None else self.paid.claim.scope

    def after(self, claim: Claim, *, rounds: int = 1) -> Account:
        """With so many more messages of this claim.

        Raises:
            BudgetExceeded: They would cost too much.
        """
        paid = self.paid
        for _ in range(rounds):
            paid = paid.after(claim, _SELF)
        return replace(self, paid=paid, serial=self.serial + rounds)

    def epsilon(self, delta: float) -> Epsilon:
        """What the client has paid."""
        return self.paid.epsilon(delta)

    def to_text(self) -> str:
        """As JSON."""
        state = {name: plain_value(value) for name, value in self.paid.state().items()}
        return json.dumps({"format": _FORMAT, "serial": self.serial, "paid": state})

    @classmethod
    def of_text(cls, text: str, budget: Budget | None) -> Account:
        """From `to_text`, under a budget of whatever size.

        Raises:
            WireError: It is no such text.
        """
        try:
            data = json.loads(text)
            good = data["format"] == _FORMAT and isinstance(data["serial"], int)
            paid = Participation(1, budget).restored(unpacked_state(data["paid"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise WireError(f"not an account: {error}") from error
        if not good:
            raise WireError(f"not an account of format {_FORMAT}")
        return cls(paid, data["serial"])

    def sealed(self, key: bytes) -> bytes:
        """The statement: the text with an HMAC (SHA-256) of it."""
        text = self.to_text().encode()
        return _seal(text, key) + text

    @classmethod
    def opened(cls, statement: bytes, key: bytes, budget: Budget | None) -> Account:
        """From a statement that the client has made itself.

        Raises:
            WireError: It has not, or it was changed.
        """
        seal, text = statement[:_SEAL_BYTES], statement[_SEAL_BYTES:]
        if not hmac.compare_digest(seal, _seal(text, key)):
            raise WireError("the statement of this client's account was not made with its own key")
        return cls.of_text(text.decode(), budget)


class AccountFile:
    """A client's account on its own disk: the one place where no server can lose or replace it.

    Guarantees (`tests/flower/test_flower_account.py`): of processes that read, charge and write
    under `locked`, none misses what another has paid.

    Args:
        path: The file; made when it is first written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def read(self, budget: Budget | None) -> Account | None:
        """The account; None if there is no file, which says nothing of what was paid.

        Raises:
            DataError: There is a file and it is not an account. Nothing is sent then.
        """
        try:
            return Account.of_text(self.path.read_text(encoding="utf-8"), budget)
        except FileNotFoundError:
            return None
        except (WireError, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.path} must be the account of this client: {error}") from error

    def write(self, account: Account) -> None:
        """Replace the file, all at once, before anything is sent."""
        prepare_output(self.path.parent)
        replace_file(self.path, account.to_text().encode())
        synchronise(self.path.parent)  # or a crash could bring the old account back

    @contextmanager
    def locked(self, wait: float = _WAIT) -> Iterator[None]:
        """Nobody else reads, charges and writes meanwhile. Leaves an empty file beside the account.

        Raises:
            DataError: Another process does, for too long; or the lock cannot be held. Nothing may
                be sent then.
        """
        prepare_output(self.path.parent)
        try:
            with locked_beside(self.path, wait=wait):
                yield
        except LockLost as error:
            raise DataError(f"{error}, and another process may have charged as well") from error
        except (LockBusy, LockUnavailable) as error:
            raise DataError(str(error)) from error


def unpacked_state(state: Mapping[str, Any]) -> dict[str, Tensor | str]:
    """A `Participation.state()` from lists of numbers."""
    return {
        name: value
        if isinstance(value, str)
        else torch.tensor(value, dtype=torch.int64 if name == "rounds" else torch.float64)
        for name, value in state.items()
    }


def plain_value(value: Tensor | str) -> object:
    """Of a `Participation.state()`, as JSON takes it."""
    return value if isinstance(value, str) else value.tolist()


def _seal(text: bytes, key: bytes) -> bytes:
    return hmac.new(key, b"diffsketch account\n" + text, hashlib.sha256).digest()
