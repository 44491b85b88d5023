"""State of a run: model, accounts of the clients and sums; and the identity that it belongs to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import MismatchError, check_whole
from diffsketch.privacy.accounting.budget import (
    Allowance,
    Budget,
    Prices,
    prices_of,
    stated_epsilon,
    weaker,
)
from diffsketch.privacy.claim import Claim, Epsilon, claim_from_json, claim_to_json
from diffsketch.privacy.noise import NoiseKey
from diffsketch.training.models import working_copy
from diffsketch.training.rounds import ModelState, Published
from diffsketch.training.tasks import Loss, Task, scores_of

Indices: TypeAlias = npt.NDArray[np.int64]
_Paid: TypeAlias = npt.NDArray[np.float64]  # (2, clients): sums, and their rounding errors

EVERYONE: Indices = np.zeros(1, np.int64)
"""Index of the single account where every round counts for all clients."""
# Names in a saved state: of accounts, of what was paid, and of fields that are stored unchanged.
_ACCOUNTS, _PAID = "participation.", "participation.paid."
_PLAIN = ("round_index", "bytes_up", "bytes_down", "ended")
_PROBED = 16  # examples that a loss is tried with
_DIGEST_BYTES = 16  # collisions need 2**64 attempts

_prices = lru_cache(maxsize=16)(prices_of)  # pure, and most rounds repeat the claim before


@dataclass(frozen=True, eq=False)
class Participation:
    """Accounts of all simulated clients, as arrays. An immutable value: `after` returns a new one.

    Prices, epsilon and the stop at the budget are those of `Account`, which is the account of one
    party; here they are arrays, as a simulation may have thousands of clients in every round, and
    values, as a round that fails must leave no trace.

    Guarantees (`tests/training/test_clients.py`): epsilon is that of an `Account` that is charged
    the rounds of the busiest client if all rounds are alike, and never less than that of any
    client; the budget is never exceeded, and a round is refused before it is run; accounts that
    are restored under a budget that they exceed still say what was paid.

    Args:
        clients: Number of clients; 1 if every round counts for everyone.
        budget: Where to stop, if anywhere.
        planned: Expected claim of a round: what accounts without rounds are about.

    >>> from diffsketch.privacy.accounting import events
    >>> from diffsketch.privacy.claim import ProvenClaim, Relation, Scope, Trust, Unit
    >>> scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
    >>> claim = ProvenClaim(scope, events.gaussian(2.0), "Gaussian noise")
    >>> accounts = Participation(clients=3)
    >>> for cohort in ([0, 1], [1, 2], [0, 1]):
    ...     accounts = accounts.after(claim, np.array(cohort))
    >>> print(accounts.epsilon(1e-5))
    epsilon = 3.709 at delta = 1e-05 over 3 rounds (proven; client unit, replace, local trust)
    """

    clients: int
    budget: Budget | None = None
    planned: Claim | None = field(default=None, repr=False)
    # Set by `replace` only; the arrays are never changed in place.
    rounds: Indices = field(default=None, repr=False, kw_only=True)  # type: ignore[arg-type]
    _paid: Mapping[str, _Paid] = field(default_factory=dict, repr=False, kw_only=True)
    _weakest: Claim | None = field(default=None, repr=False, kw_only=True)
    _allowance: Allowance | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.rounds is None:
            check_whole("clients", self.clients, least=1)
            object.__setattr__(self, "rounds", np.zeros(self.clients, np.int64))
        if self._allowance is None:
            object.__setattr__(self, "_allowance", Allowance(self.budget))

    @property
    def claim(self) -> Claim | None:
        """Weakest claim of all rounds; before the first, what is planned."""
        return self.planned if self._weakest is None else self._weakest

    def after(self, claim: Claim, cohort: Indices) -> Participation:
        """Return the accounts after the cohort takes part in a round. Call it before the round.

        Raises:
            BudgetExceeded: A client would have paid more than the budget.
            MismatchError: The claim has another scope than those of other rounds.
        """
        weakest = claim if claim is self._weakest else weaker(claim, self._weakest)
        # Copies: whoever holds the value before must not see this round, which may still fail.
        rounds, accounts = self.rounds.copy(), dict(self._paid)
        rounds[cohort] += 1
        for name, price in _prices(claim).items():
            paid = accounts[name].copy() if name in accounts else np.zeros((2, self.clients))
            paid[:, cohort] = _added(paid[:, cohort], price)
            accounts[name] = paid
        after = replace(self, rounds=rounds, _paid=accounts, _weakest=weakest)
        # Only the busiest client can be the first beyond the budget. Each price's maximum on its
        # own may be of different clients, so this errs towards stopping early.
        if self._allowance is not None:
            self._allowance.check(weakest, after._most_paid(), releases=int(rounds.max()))
        return after

    def _most_paid(self) -> Prices:
        """Return the largest sum over clients, for each price on its own."""
        return {name: float(paid.sum(axis=0).max()) for name, paid in self._paid.items()}

    def epsilon(self, delta: float) -> Epsilon:
        """Return the epsilon of the client who paid most, as `Account.epsilon` states it."""
        return stated_epsilon(self.claim, self._most_paid(), int(self.rounds.max()), delta)

    def saved(self) -> dict[str, Tensor | str]:
        """Return tensors, and the weakest claim as text, under names of a run's state."""
        claim = None if self._weakest is None else claim_to_json(self._weakest)
        arrays = {"rounds": self.rounds, **{f"paid.{name}": p for name, p in self._paid.items()}}
        saved = {f"{_ACCOUNTS}{name}": torch.from_numpy(a.copy()) for name, a in arrays.items()}
        return {**saved, f"{_ACCOUNTS}claim": json.dumps(claim)}

    def restored(self, saved: Mapping[str, Any]) -> Participation:
        """Restore accounts from what `saved` returned, among the entries of a state.

        Raises:
            MismatchError: They are of another number of clients.
        """
        names = {name.removeprefix(_PAID): name for name in saved if name.startswith(_PAID)}
        names["rounds"] = f"{_ACCOUNTS}rounds"
        arrays = {name: saved[full].numpy().copy() for name, full in names.items()}
        for name, value in arrays.items():
            # Also catches a state of secret samples, which has one account, in a run where each
            # client has its own.
            if value.shape[-1:] != (self.clients,):
                raise MismatchError(f"{name} must be of {self.clients} clients, got {value.shape}")
        claim = json.loads(saved[f"{_ACCOUNTS}claim"])
        weakest = None if claim is None else claim_from_json(claim)
        return replace(self, rounds=arrays.pop("rounds"), _paid=arrays, _weakest=weakest)


def _added(paid: _Paid, price: float) -> _Paid:
    """Add a price to each sum of a cohort, and what rounding takes off (Knuth's two-sum).

    Without the second row, thousands of rounds would cost more, or less, than as many times the
    price.
    """
    # The rows are a sum and its correction, so that 20,000 rounds cost 20,000 times the price to 13
    # digits: noise that is made for exactly the budget would else be refused its last round.
    high, low = paid
    total = high + price
    added = total - high
    return np.stack([total, low + ((high - (total - added)) + (price - added))])


@dataclass(eq=False)
class Aggregate:
    """The sum of a cohort's messages."""

    total: Tensor  # without the server's noise
    count: int = 0  # number of messages
    broken: tuple[int, ...] = ()  # devices whose vectors were not finite, ascending
    vectors: Tensor | None = None  # of all workers, for error correction
    noised: Tensor | None = None  # as in `Encoded`, of all messages
    saturated: int | None = None  # cells beyond their limit, for cells of few bits


@dataclass(frozen=True, eq=False)
class RoundResult:
    """Outcome of a round."""

    round_index: int
    cohort: Tensor  # indices of the devices that were drawn
    published: Published  # with `Simulation.advance`, all that a device needs
    bytes_up: int  # by the devices, headers included
    bytes_down: int  # to the devices, headers included
    claim: Claim
    # Workers whose vectors were not finite: left out of the mean, or counted as zeros with their
    # noise if the claim is proven.
    left_out: tuple[str, ...]
    summed: Aggregate
    drift: float | None  # `relative_drift`, where workers' models may drift
    downloads: int  # devices that received something: as many vectors, without compression


@dataclass(frozen=True)
class RunProgress:
    """Sums over all rounds so far."""

    messages: int = 0
    validated: int = 0  # messages that their workers checked by Theorem 1
    noised: int = 0  # validated messages that needed noise
    rounded: int = 0  # cells that were rounded to few bits
    saturated: int = 0  # rounded cells that were beyond the limit
    left_out: int = 0  # or zeros, since vectors were not finite
    downloads: int = 0  # without compression, a vector each time

    def after(self, result: RoundResult) -> RunProgress:
        """Count a round."""
        summed, count, noised = result.summed, result.summed.count, result.summed.noised
        cells = 0 if summed.saturated is None else count * result.published.total.numel()
        return RunProgress(
            self.messages + count,
            self.validated + (0 if noised is None else count),
            self.noised + (0 if noised is None else int(noised.sum())),
            self.rounded + cells,
            self.saturated + (summed.saturated or 0),
            self.left_out + len(result.left_out),
            self.downloads + result.downloads,
        )

    @property
    def saturated_share(self) -> float | None:
        """Share of the rounded cells that were beyond the limit."""
        return self.saturated / self.rounded if self.rounded else None

    @property
    def noised_share(self) -> float | None:
        """Share of the validated messages that needed noise."""
        return self.noised / self.validated if self.validated else None


@dataclass(frozen=True, eq=False)
class RunState:
    """State of a run, replaced in one assignment, so that a failed round leaves no trace."""

    round_index: int  # rounds that changed the model
    model: ModelState
    participation: Participation
    synced: Indices  # rounds that each device's model contains
    bytes_up: int = 0
    bytes_down: int = 0
    # Why there can be no further round. The accounts have the diverged round, the model has not.
    ended: str = ""
    clip: float | None = None  # of the next round, for methods whose clip adapts
    progress: RunProgress = field(default_factory=RunProgress)

    def saved(self) -> dict[str, Any]:
        """Return all of it: tensors, numbers and texts, of which nothing changes with the state."""
        tensors = {"weights": self.model.weights, "synced": torch.from_numpy(self.synced)}
        tensors |= {f"memory.{name}": value for name, value in self.model.memory.items()}
        saved: dict[str, Any] = {"progress": asdict(self.progress)}
        saved |= {name: getattr(self, name) for name in _PLAIN}
        saved |= {name: value.clone() for name, value in tensors.items()}
        if self.clip is not None:
            saved["clip"] = self.clip
        return saved | self.participation.saved()

    def restored(self, saved: Mapping[str, Any]) -> RunState:
        """Restore what `saved` returned, in a run of the same settings.

        Raises:
            MismatchError: It is incomplete, or a tensor has another shape than here.
        """
        # A state of another simulation would fail rounds later.
        for name, value in self.saved().items():
            if name.startswith(_PAID):
                continue  # of claims that the other simulation need not have made
            if name not in saved:
                raise MismatchError(f"the state must have {name}")
            if isinstance(value, Tensor) and saved[name].shape != value.shape:
                wanted, shape = tuple(value.shape), tuple(saved[name].shape)
                raise MismatchError(f"{name} must have the shape {wanted}, got {shape}")

        def copied(name: str) -> Tensor:
            tensor: Tensor = saved[name].to(self.model.weights.device).clone()
            return tensor

        # Copies, as whoever gave the state may use its tensors again.
        memory = {name: copied(f"memory.{name}") for name in self.model.memory}
        return RunState(
            **{name: saved[name] for name in _PLAIN},
            model=ModelState(copied("weights"), memory),
            participation=self.participation.restored(saved),
            synced=saved["synced"].cpu().numpy().copy(),
            clip=None if self.clip is None else saved["clip"],
            progress=RunProgress(**saved["progress"]),
        )


def run_identity(task: Task, seed: int, settings: str) -> str:
    """Describe the run that a state belongs to. Reads all data: 0.2 s for 188 MB.

    Guarantees (`tests/training/test_simulation_state.py`): the same for the same run, on any
    device; another for other settings, examples, labels, owners of examples or models.

    Args:
        task: The task.
        seed: Seed of the run.
        settings: Everything else that changes a release.
    """
    # The test set as well: all evaluations of a continued run are of one set.
    devices, test = task.devices, task.test
    about = devices.examples.inputs, devices.examples.labels, devices.starts, devices.persons
    data = tensor_digest(*(values for values in about if values is not None))
    text = (
        f"task={task.name!r}, data={data}, test={tensor_digest(test.inputs, test.labels)}, "
        f"model={_digest(str(task.model(seed)).encode())}, seed={seed}, {settings}"
    )
    # Only where there is one, so that the identity of other runs stays what it was.
    if task.loss is not None:
        text += f", loss={_digest(_name_of(task.loss).encode())}"
    if task.keep_local:
        text += ", keep_local=True"
    return text


def _name_of(loss: Loss) -> str:
    """Return the name of a function, or the repr of an object."""
    name = getattr(loss, "__qualname__", None)
    return repr(loss) if name is None else f"{loss.__module__}.{name}"


def run_noise_key(task: Task, seed: int, identity: str) -> NoiseKey:
    """Derive a key of the noise that changes with anything in a run.

    The first weights count as well, and the first value of a custom loss. They are not in the
    identity: other machines may round them differently, and a run may be continued there, with
    other noise from then on.
    """
    model = task.model(seed)
    weights = tensor_digest(*model.state_dict().values())
    secret, text = NoiseKey.from_integer(seed).secret, f"{identity}, weights={weights}"
    if task.loss is not None:  # a name does not tell what a loss computes
        # A value of the loss on a few examples, in all bits: two functions may share a name.
        inputs, labels = task.devices.examples.inputs, task.devices.examples.labels
        model = working_copy(model, keep_local=task.keep_local).eval().to(inputs.device)
        with torch.no_grad():
            loss = task.loss(scores_of(model(inputs[:_PROBED])), labels[:_PROBED])
        text += f", loss={float(loss).hex()}"
    digest = hashlib.blake2b(text.encode(), key=secret, digest_size=32, person=b"ds-run-noise")
    return NoiseKey(digest.digest())


def tensor_digest(*tensors: Tensor) -> str:
    """Compute a digest of types, shapes and values; the same wherever the tensors are.

    >>> tensor_digest(torch.zeros(2)) == tensor_digest(torch.zeros(1, 2))
    False
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"ds-run-tensors")
    for tensor in tensors:
        # Types and shapes first, so that no two lists of tensors have the same bytes.
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        values = tensor.detach().cpu().contiguous().reshape(-1)
        content: Any = values.view(torch.uint8).numpy()  # no copy
        digest.update(content)
    return digest.hexdigest()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES, person=b"ds-run-content").hexdigest()
