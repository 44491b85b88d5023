"""A rank's account in a file: what was sent is counted, whatever checkpoint training goes on from.

A checkpoint knows the rounds up to the time at which it was made. Whoever goes back to it sends the
rounds after it a second time, with new noise, and both times count. The file is a `Ledger`: it is
written before a message is sent, and no checkpoint takes it back.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.files import replace_file
from diffsketch.privacy.accounting.accountant import Budget
from diffsketch.privacy.accounting.ledger import Ledger
from diffsketch.privacy.claim import Claim, Epsilon, ProvenClaim

__all__ = ["RankAccount", "account_path"]


def account_path(path: str | Path, rank: int) -> Path:
    """The file of a rank, beside the one that is named for all.

    >>> account_path("books/account.json", 3).as_posix()
    'books/account-3.json'
    """
    path = Path(path)
    return path.with_name(f"{path.stem}-{rank}{path.suffix}")


class RankAccount:
    """What one rank has sent under a claim, in a file that is opened, or made.

    The file has a random name, in a file beside it, by which a state knows it again.

    Guarantees (`tests/ddp/test_group_account.py`): rounds that were charged stay charged when
    an older state is loaded; rounds of a state that the file lacks are charged; the budget is never
    exceeded.

    Args:
        path: The file.
        claim: Of each round.
        budget: Where to stop.

    Raises:
        ArgumentError: The claim is not proven, so that there is nothing to add up.
        MismatchError: The file has another budget, or is about something else.
        DataError: The file is damaged, or cannot be written.
    """

    def __init__(self, path: Path, claim: Claim, budget: Budget | None) -> None:
        if not isinstance(claim, ProvenClaim):
            raise ArgumentError(
                f"account_file must not be given where nothing is proven: got a claim that is "
                f"{claim.basis} ({claim})"
            )
        self._claim, exists = claim, path.exists()
        self._ledger = (
            Ledger.open(path, claim.scope)
            if exists
            else Ledger.create(path, claim.scope, budget=budget)
        )
        name = path.with_suffix(".name")
        if not exists or not name.exists():
            replace_file(name, secrets.token_hex(8).encode())
        self.name = name.read_text(encoding="ascii")
        if self._ledger.budget != budget:
            raise MismatchError(
                f"budget must be that of {path}, {self._ledger.budget}, got {budget}"
            )

    def charge(self) -> None:
        """Count one round. Send it only after this has returned.

        Raises:
            BudgetExceeded: It would be too much. Nothing was charged.
            DiffSketchError: The file could not be written.
        """
        self._ledger.charge(self._claim)

    def take_over(self, rounds: int, account: str) -> None:
        """Count the rounds of a state that the file has not.

        It may be younger than the state; a state of another file, or of none, counts in full.

        Args:
            rounds: Of the state.
            account: Name of the file that they were counted in.

        Raises:
            BudgetExceeded: The state has more than the budget allows.
        """
        missing = rounds - (self._ledger.rounds if account == self.name else 0)
        if missing > 0:
            self._ledger.charge(self._claim, missing)

    def epsilon(self, delta: float) -> Epsilon:
        """What all rounds in the file amount to."""
        return self._ledger.epsilon(delta)
