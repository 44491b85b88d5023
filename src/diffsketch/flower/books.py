"""A client's books for one message: what it knows of its account, and the charge that is kept."""

from __future__ import annotations

from dataclasses import dataclass

from diffsketch.flower.account import Account, AccountFile
from diffsketch.flower.records import Request
from diffsketch.flower.refusals import Refusal, member_digest
from diffsketch.errors import MismatchError
from diffsketch.privacy.accounting.accountant import Budget, BudgetExceeded
from diffsketch.privacy.claim import Claim

__all__ = ["Books"]

_MOST_ROUNDS = 10_000  # that a client without a memory counts as if it had taken part


@dataclass(frozen=True, eq=False)
class Books:
    """Where a client finds what it has paid, and keeps it.

    A file that is not there says nothing: then what the client remembers and its own statement at
    the server count, and without any of them all earlier rounds of the run.

    Guarantees (`tests/flower/test_flower_account.py`): a lost file does not make the client forget
    what its statement says; two messages at once are both paid for.

    Attributes:
        member: The client's name.
        budget: What it may pay at most.
        key: Its own, for statements.
        file: Where it keeps the account.
    """

    member: str
    budget: Budget | None
    key: bytes | None
    file: AccountFile | None

    def check(self, claim: Claim, request: Request, *, remembered: Account | None) -> None:
        """See that a message can be paid, before there is one.

        Raises:
            Refusal: It cannot.
            WireError: The statement is not this client's.
            DataError: The file is not an account.
        """
        self._after(claim, request, remembered)

    def charge(self, claim: Claim, request: Request, *, remembered: Account | None) -> Account:
        """Pay, and write it down, before the message leaves. Raises what `check` does."""
        if self.file is None:
            return self._after(claim, request, remembered)
        # Another process may have paid from the same file since it was looked at.
        with self.file.locked():
            account = self._after(claim, request, remembered)
            self.file.write(account)
        return account

    def statement(self, account: Account) -> bytes:
        """What the server may keep of it; empty if there is no key."""
        return b"" if self.key is None else account.sealed(self.key)

    def _after(self, claim: Claim, request: Request, remembered: Account | None) -> Account:
        """The account after one more message, if it can be paid."""
        try:
            return self._account(claim, request, remembered).after(claim)
        except BudgetExceeded as error:
            raise Refusal("budget", str(error)) from error
        except MismatchError as error:
            raise Refusal(
                "account",
                "this client's account is about another kind of privacy than the plan, and the two "
                f"cannot be added: {error}. Use a plan of the account's kind, or give this one "
                "an account of its own, and count both",
            ) from error

    def _account(self, claim: Claim, request: Request, remembered: Account | None) -> Account:
        """The most that the client remembers, has on disk, or has left with the server."""
        found = [] if remembered is None else [remembered]
        on_disk = None if self.file is None else self.file.read(self.budget)
        if on_disk is not None:
            found.append(on_disk)
        if request.statement and self.key is not None:
            found.append(Account.opened(request.statement, self.key, self.budget))
        if found:
            return found[0] if len(found) == 1 else Account.most_spent(found)
        known = {request.known[place : place + 8] for place in range(0, len(request.known), 8)}
        if self.key is not None and member_digest(self.member) in known:
            raise Refusal("statement", "this client has no memory and needs its statement first")
        if request.round_index > _MOST_ROUNDS:
            raise Refusal("statement", "this client has no memory of so many rounds")
        # Nothing is known: it may have taken part in every round so far.
        return Account.new(self.budget).after(claim, rounds=request.round_index)
