"""Accounts of clients: where a client finds its own, and the server's accounts of all of them."""

from __future__ import annotations

import hashlib
import hmac
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path

from diffsketch.errors import DataError, MismatchError
from diffsketch.flower.records import NO_MODEL, Refusal, Request, member_digest
from diffsketch.privacy.accounting.account import Account
from diffsketch.privacy.accounting.budget import Allowance, Budget, BudgetExceeded, weaker
from diffsketch.privacy.claim import Claim, Epsilon
from diffsketch.wire import WireError

_WAIT = 60.0  # seconds for a lock that others hold for milliseconds
_MOST_ROUNDS = 10_000  # that a client without a memory assumes to have taken part in


def sign_statement(account: Account, key: bytes) -> bytes:
    """Serialise an account with an HMAC (SHA-256) under the client's own key."""
    text = zlib.compress(account.to_text().encode())  # series repeat the texts of their claims
    return _tag(text, key) + text


def verify_statement(statement: bytes, key: bytes) -> Account:
    """Read a statement that the client has made itself.

    Raises:
        WireError: It has not, or it was changed.
    """
    tag, text = statement[:32], statement[32:]
    if not hmac.compare_digest(tag, _tag(text, key)):
        raise WireError("the statement of this client's account was not made with its own key")
    try:
        return Account.from_text(zlib.decompress(text))
    except (zlib.error, DataError) as error:  # of an older version of this package
        raise WireError(f"the statement of this client's account: {error}") from error


def _tag(text: bytes, key: bytes) -> bytes:
    return hmac.new(key, b"diffsketch account\n" + text, hashlib.sha256).digest()


def open_account(
    claim: Claim,
    request: Request,
    *,
    member: str,
    remembered: Account | None = None,
    key: bytes | None = None,
    path: Path | None = None,
    budget: Budget | None = None,
) -> Account:
    """Find a client's account: what it remembers, has on disk and has left with the server.

    The three are copies of one account, and merged: series that only one of them has are added.
    What is remembered goes on in its series; without a memory a new one begins. Where nothing is
    known at all, the client may have taken part in every round so far, and is charged for them.

    Guarantees (`tests/flower/test_accounts.py`): an account never has less than what was charged to
    the copies that it has met; of processes that charge one file, none misses what another has
    paid; a lost file does not make the client forget what its statement says.

    Args:
        claim: Of the message that is asked for.
        request: The server's, with the client's own statement.
        member: The client's name.
        remembered: From the SuperNode's memory; None if it has none.
        key: The client's own, for statements.
        path: Of the file. It is the one place where no server can lose or replace the account.
        budget: Where to stop; that of the file, if there is one.

    Raises:
        Refusal: Earlier rounds are beyond the budget, cannot be counted yet, or are about another
            kind of privacy.
        WireError: The statement is not this client's.
        DataError: The file is not an account.
        MismatchError: The file has another budget.
    """
    merged, stated = Account(budget), None
    if request.statement and key is not None:
        stated = verify_statement(request.statement, key)
    is_new = stated is remembered is None and (path is None or not path.exists())
    if is_new:
        _check_countable(request, member=member, has_key=key is not None)
    with refusing():
        if stated is not None:
            merged.merge(stated)
        if remembered is not None:
            merged.resume(remembered)
        if is_new and request.round_index:
            merged.charge(claim, rounds=request.round_index)
        if path is None:
            return merged
    # A new file has all of it from the start: an empty one would say that nothing was sent.
    account = Account.open(path, budget=budget, first=merged, wait=_WAIT)
    with refusing():
        account.resume(merged)
    return account


@contextmanager
def refusing() -> Iterator[None]:
    """Turn what an account does not allow into a `Refusal`."""
    try:
        yield
    except BudgetExceeded as error:
        raise Refusal("budget", str(error)) from error
    except MismatchError as error:
        raise Refusal(
            "account",
            "this client's account is about another kind of privacy than the plan, and the two "
            f"cannot be added: {error}. Use a plan of the account's kind, or give this one an "
            "account of its own, and count both",
        ) from error


def _check_countable(request: Request, *, member: str, has_key: bool) -> None:
    """Refuse if a statement may still come, or there are more rounds than can be assumed."""
    digests = {request.known[place : place + 8] for place in range(0, len(request.known), 8)}
    if has_key and member_digest(member) in digests:
        raise Refusal("statement", "this client has no memory and needs its statement first")
    if request.round_index > _MOST_ROUNDS:
        reason = f"this client has no memory of {request.round_index} rounds, which are too many"
        raise Refusal("statement", reason)


class ClientRegistry:
    """The server's accounts of all clients, which come and go under changing node ids.

    Guarantees (`tests/flower/test_accounts.py`): no client's account is ever less than what a
    message was requested for; a node that turns out to be a known client adds to its account, and
    several nodes of one client pay for each; no node is asked that its budget does not allow. Only
    a node that was selected before it said who it is can bring its client beyond the budget: that
    is counted, and the client is not asked again.
    """

    def __init__(self, budget: Budget | None, planned: Claim) -> None:
        self._allowance, self._planned = Allowance(budget), planned
        self._accounts: dict[str, Account] = {}  # by `_name`
        self._members: dict[int, str] = {}  # clients by node, once they have said so
        self._versions: dict[int, int] = {}  # of the nodes' models
        self._statements: dict[str, bytes] = {}
        self._pending: tuple[Claim, tuple[int, ...]] | None = None

    def unaffordable(self, claim: Claim, nodes: Iterable[int]) -> dict[int, str]:
        """Nodes whose clients cannot pay a further round, each with all of its nodes, and why."""
        self.settle_round()
        asked: Counter[str] = Counter()
        reasons: dict[int, str] = {}
        for node in nodes:
            name = self._name(node)
            if reason := self._shortfall(name, claim, asked[name] + 1):
                reasons[node] = reason
            else:
                asked[name] += 1
        return reasons

    def begin_round(self, claim: Claim, nodes: Iterable[int]) -> None:
        """Begin a round: whoever is asked may send a message, and pays whatever comes of it."""
        self.settle_round()
        self._pending = claim, tuple(nodes)

    def over_budget(self, claim: Claim) -> frozenset[int]:
        """Nodes of the round whose clients, by now known by name, cannot pay this claim."""
        nodes = () if self._pending is None else self._pending[1]
        payers = Counter(map(self._name, nodes))
        poor = {name for name, count in payers.items() if self._shortfall(name, claim, count)}
        return frozenset(node for node in nodes if self._name(node) in poor)

    def settle_round(self, claim: Claim | None = None) -> None:
        """Charge the round that was begun, if one was: this claim, or the planned one."""
        if self._pending is not None:
            planned, nodes = self._pending
            self._accounts = self._after(claim or planned, nodes)
            self._pending = None

    def epsilon(self, delta: float) -> Epsilon:
        """Epsilon that the run has cost the client who paid most."""
        # Most clients have spent the same: compose once for each sum.
        by_cost = {str(account.spent): account for account in self._all_paid().values()}
        accounts = by_cost.values() or [Account(planned=self._planned)]
        return max((account.epsilon(delta) for account in accounts), key=float)

    @property
    def claim(self) -> Claim:
        """Claim that holds for all rounds."""
        claims = [account.claim for account in self._all_paid().values() if account.rounds]
        return reduce(weaker, [claim for claim in claims if claim is not None] or [self._planned])

    def version_of(self, node: int) -> int:
        """Version of the model that a node is known to have."""
        return self._versions.get(node, NO_MODEL)

    def statement_for(self, node: int) -> tuple[bytes, bytes]:
        """A node's statement; or, if its client is not known, digests of all who have one."""
        if member := self._members.get(node):
            return self._statements.get(member, b""), b""
        return b"", b"".join(sorted(map(member_digest, self._statements)))

    def update(self, node: int, *, member: str, version: int, statement: bytes) -> None:
        """Record who a node says that it is, and what it has."""
        self._versions[node] = version
        if member != self._members.get(node, ""):
            # What it paid before it said who it is. What it paid as another client stays there: a
            # node that changes its name takes nothing away from anybody's account.
            before = self._accounts.pop(f"node {node}", None)
            self._members[node] = member
            if before is not None:
                self._account(self._name(node)).merge(before)
        if statement:
            self._statements[member] = statement

    def to_text(self) -> str:
        """Serialise accounts and statements as JSON, for the next run with these clients."""
        statements = {name: value.hex() for name, value in self._statements.items()}
        # A node that has not said who it is may still have its id in the next run, and say it then.
        accounts = {name: account.to_text() for name, account in self._all_paid().items()}
        return json.dumps({"accounts": accounts, "statements": statements})

    def load_text(self, text: str) -> None:
        """Add what `to_text` gave, of an earlier run or of another server with the same file."""
        try:
            data = json.loads(text)
            accounts = {
                name: Account.from_text(account, budget=self._allowance)
                for name, account in data["accounts"].items()
            }
            statements = {name: bytes.fromhex(text) for name, text in data["statements"].items()}
        except (DataError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"the record must be one of this strategy's: {error}") from error
        for name, account in accounts.items():
            if name in self._accounts:
                self._accounts[name].merge(account)
            else:
                self._accounts[name] = account
        self._statements = statements | self._statements

    def _name(self, node: int) -> str:
        member = self._members.get(node)
        return f"member {member}" if member else f"node {node}"

    def _account(self, name: str) -> Account:
        """Account of a client or node by its name; a new one if there is none."""
        if name not in self._accounts:
            self._accounts[name] = Account(self._allowance, planned=self._planned)
        return self._accounts[name]

    def _shortfall(self, name: str, claim: Claim, count: int) -> str:
        """Say why a client cannot pay `count` messages of this claim; empty if it can."""
        if self._allowance.budget is None:
            return ""
        try:
            self._account(name).check(claim, count)
        except BudgetExceeded as error:
            return str(error)
        return ""

    def _after(self, claim: Claim, nodes: Iterable[int]) -> dict[str, Account]:
        """Accounts after a round whose messages were requested, whatever the budget is."""
        accounts = dict(self._accounts)
        for name, count in Counter(map(self._name, nodes)).items():
            accounts[name] = paid = self._account(name).twin()
            try:
                paid.charge(claim, count)
            except BudgetExceeded:  # asked as an unknown node: counted, and not asked again
                beyond = Account()
                beyond.charge(claim, count)
                paid.merge(beyond)
        return accounts

    def _all_paid(self) -> dict[str, Account]:
        """Accounts with the round that was begun."""
        return self._accounts if self._pending is None else self._after(*self._pending)
