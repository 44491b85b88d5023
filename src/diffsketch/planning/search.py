"""Requests for a plan, and the best settings of each method of the registry for it.

Methods predict their own errors (`diffsketch.methods.forecast`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from scipy.optimize import brentq

from diffsketch.errors import (
    ArgumentError,
    check,
    check_between,
    check_delta,
    check_positive,
    check_whole,
)
from diffsketch.methods import METHODS, Method, build_method, settings_of
from diffsketch.methods.forecast import Plannable, RelativeError, Vectors
from diffsketch.privacy.accounting.budget import PoissonSampler
from diffsketch.privacy.claim import (
    Epsilon,
    ProvenClaim,
    Relation,
    RelationName,
    Scope,
    Trust,
    TrustName,
    Unit,
    UnitName,
)
from diffsketch.sketch import SketchKey
from diffsketch.wire.message import payload_within

SAMPLINGS = ("shuffled", "uniform", "weighted", "poisson")
"""Ways to draw a round's devices, by the names of `diffsketch run --sampling`."""

TRUSTS = (Trust.LOCAL, Trust.DISTRIBUTED, Trust.CENTRAL)
"""The less one has to trust, the earlier."""

TIE = 1.01  # errors closer than this count as equal, and then bytes decide
_SEED = SketchKey.from_integer(0).seed(0)  # claims of the methods in plans are the same for all
_MIN_KEPT = 0.9  # of the mean: to clip it all away would look best where noise is larger still
_STEP = math.sqrt(2)  # between sizes of tables
_FEWEST_CELLS, _FEWEST_BITS = 16, 2  # of a table smaller than the budget, and of a cell
_LEAST, _MOST = 1e-3, 1e12  # levels of the noise
_FAR = 1e9  # stands for epsilons that are not proven
_FITS = 8  # attempts to fit a message whose bits depend on its size


@dataclass(frozen=True)
class PlanRequest:
    """Everything that a plan depends on.

    Args:
        dim: Length of the vectors whose mean is wanted.
        cohort: Clients that send a message in each round.
        rounds: Rounds of the whole run.
        target_epsilon: The most that the run may cost any client, at `delta`.
        message_bytes: The most that one client may send in one round, header included.
        population: Clients that a cohort is drawn from; None for the cohort itself.
        sampling: How it is drawn: in passes over all clients (`shuffled`), or so that a client may
            be in every round (`uniform`, `weighted`), or each on its own and in secret (`poisson`,
            for central trust and add-or-remove), which amplifies the guarantee.
        delta: The probability that epsilon may leave out; 0 for pure differential privacy.
        unit: What is protected: all data of a client, one coordinate of a vector, or an example or
            person among those that a client (a silo) holds. Its `vectors` are then gradients of
            single records, and `cohort` is the number of silos, all of them.
        relation: Which data sets are neighbours.
        trust: Whom one is willing to trust. Methods that need less trust are considered as well.
        vector_norm: Norm that a client's vector has. What is longer will be clipped. Must be
            public: not measured on private data.
        spread: How much the vectors differ: the variance around what they have in common over
            the squared norm of what they have in common. 0 if they are all the same.
        records: Records of a silo's message in the mean, for the units example and person.
        rate: Probability of a record to be in a message: a secret sample, which amplifies.

    Raises:
        ArgumentError: A value is out of range, or they do not go together.

    >>> PlanRequest(dim=0, cohort=10, rounds=1, target_epsilon=1.0, message_bytes=1000)
    Traceback (most recent call last):
        ...
    diffsketch.errors.ArgumentError: dim must be >= 1, got dim=0
    >>> devices = {"cohort": 1000, "population": 6000, "rounds": 60}
    >>> PlanRequest(dim=7850, **devices, target_epsilon=8.0, message_bytes=500).paying_rounds
    10
    """

    dim: int
    cohort: int
    rounds: int
    target_epsilon: float
    message_bytes: int
    population: int | None = None
    sampling: str = "shuffled"
    delta: float = 1e-5
    unit: UnitName = Unit.CLIENT
    relation: RelationName = Relation.REPLACE
    trust: TrustName = Trust.DISTRIBUTED
    vector_norm: float = 1.0
    spread: float = 0.0
    records: float | None = None
    rate: float = 1.0

    def __post_init__(self) -> None:
        for names, limit in (("dim message_bytes", 1 << 40), ("cohort rounds", 10**9)):
            for name in names.split():
                value = getattr(self, name)
                check_whole(name, value, least=1)
                check(value <= limit, name, f"be <= {limit}", value)
        if self.population is not None:
            check_whole("population", self.population, least=self.cohort)
        reason = "be >= 6, a header of 2 bytes and one number"
        check(self.message_bytes >= 6, "message_bytes", reason, self.message_bytes)
        scope = Scope(self.unit, self.relation, self.trust)  # checks, and converts names
        for name in ("unit", "relation", "trust"):
            object.__setattr__(self, name, getattr(scope, name))
        needed = "be given for the units example and person, and only then"
        check(self.of_records == (self.records is not None), "records", needed, self.records)
        for name in ("records", "rate", "spread"):
            value = getattr(self, name)
            number = isinstance(value, int | float) or (value is None and name == "records")
            check(number, name, "be a number", value)
        check(0 < self.rate <= 1 and (self.of_records or self.rate == 1), "rate",
              "be in (0, 1], and 1 for clients", self.rate)  # fmt: skip
        if self.records is not None:
            added = scope.relation is Relation.ADD_OR_REMOVE
            check(added, "relation", f"be add-or-remove for unit={self.unit}", scope.relation)
            check(1 <= self.cohort * self.records <= 10**9, "records",
                  "be 1..10**9 in all silos together", self.records)  # fmt: skip
            everyone = self.members == self.cohort and self.sampling == "shuffled"
            check(everyone, "population", "be the cohort: all silos take part", self.population)
        target, norm = self.target_epsilon, self.vector_norm
        check_positive("target_epsilon", target)
        check_between("vector_norm", norm, 1e-30, 1e30)  # squares fit
        check_delta(self.delta)
        names = ", ".join(SAMPLINGS)
        check(self.sampling in SAMPLINGS, "sampling", f"be one of {names}", self.sampling)
        if self.sampling == "poisson":
            only = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
            check(scope == only, "sampling", f"not be poisson but for {only}", self.sampling)
        _ = self.vectors  # checks the rest

    @cached_property
    def vectors(self) -> Vectors:
        """The vectors of one round."""
        count = round(self.cohort * (self.records or 1))
        return Vectors(self.dim, count, self.vector_norm, self.spread)

    @property
    def of_records(self) -> bool:
        """Whether the unit is a record of a silo."""
        return self.unit in (Unit.EXAMPLE, Unit.PERSON)

    @property
    def drawn(self) -> tuple[float, float]:
        """Probability to be in a round's mean, in secret, and the number that is expected there."""
        rate = self.rate if self.sampler is None else self.sampler.rate
        return rate, self.cohort * (self.records or 1)

    @property
    def payload_bits(self) -> int:
        """Bits that are left of a message for its cells."""
        return 8 * payload_within(self.message_bytes)

    @property
    def members(self) -> int:
        """All clients that may ever take part."""
        return self.population or self.cohort

    @property
    def paying_rounds(self) -> int:
        """Rounds that a client pays for, at most.

        As `diffsketch run` counts them, but for `uniform` and `weighted`: there it looks at who is
        drawn, and here nobody is yet.
        """
        if self.sampling != "shuffled":
            return self.rounds
        return -(-self.rounds // (self.members // self.cohort))

    @property
    def sampler(self) -> PoissonSampler | None:
        """Sampler of a secret sample, if there is one."""
        if self.sampling != "poisson":
            return None
        return PoissonSampler(self.members, self.cohort / self.members)

    def total(self, method: Method) -> Epsilon | None:
        """Compute the whole run's epsilon from the method's own claim; None if it is not proven."""
        claim = method.claim_for(self.cohort, _SEED)
        if not isinstance(claim, ProvenClaim):
            return None
        if self.sampler is not None:
            claim = self.sampler.amplified(claim)
        return claim.epsilon(delta=self.delta, rounds=self.paying_rounds)


@dataclass(frozen=True)
class Option:
    """A method with all its settings.

    Attributes:
        method: As the registry builds it.
        settings: What it is built from; `diffsketch run` and `FlowerPlan` take the same.
        error: Predicted relative error of one round.
        total: Epsilon of the whole run, from the method's own claim.
    """

    method: Method
    settings: dict[str, Any]
    error: RelativeError
    total: Epsilon

    @property
    def trust(self) -> Trust:
        """The trust that this method needs."""
        return Trust(self.total.scope.trust)


def search(request: PlanRequest) -> Iterator[Option]:
    """Find the best settings of every method, at every trust that there is, for the target."""
    trusts = TRUSTS[: TRUSTS.index(request.trust) + 1]
    if request.sampling == "poisson":
        trusts = (Trust.CENTRAL,)
    for name, kind in METHODS.items():
        if issubclass(kind, Plannable):
            for trust in trusts:
                scope = Scope(request.unit, request.relation, trust)
                option = _Search(request, name, kind, scope).best()
                if option is not None:
                    yield option


@dataclass(frozen=True)
class _Draft:
    """A method with the cells that fit the bytes, and its error."""

    cells: int
    bits: int | None
    margin: float
    settings: dict[str, Any]
    method: Plannable
    error: RelativeError


@dataclass(frozen=True)
class _Search:
    """The settings of one method at one trust, one after another: bits, size, clip, noise."""

    request: PlanRequest
    name: str
    kind: type[Plannable]
    scope: Scope

    def best(self) -> Option | None:
        """The settings with the least error, or nearly so; None if none keep target and bytes."""
        request, margins = self.request, self.kind.margins
        margin = margins[0]
        # The noise hardly depends on the other settings: near enough to compare them.
        level = self._calibrated(request.dim, None, margin)
        # No noise is enough: nothing is proven for this scope.
        if level is None:
            return None
        # Bits first, with as many cells as fit: rounding decides how many cells are worth having.
        most = min(request.dim, request.payload_bits // _FEWEST_BITS)
        start = self._draft(most, None, margin, level)
        finest = request.payload_bits if start is None else start.method.message_format.bits
        every = range(min(finest, 62), _FEWEST_BITS - 1, -1)
        drafts = [start, *(self._draft(most, bits, margin, level) for bits in every)]
        draft = _least(drafts, key=lambda draft: draft.method.message_format.bits)
        if draft is None:
            return None
        # Then fewer cells: where noise is most of the error, a smaller table costs nothing.
        sizes, size = [draft.cells], int(draft.cells / _STEP)
        while size >= _FEWEST_CELLS:
            sizes.append(size)
            size = int(size / _STEP)
        draft = _least(self._draft(size, draft.bits, margin, level) for size in sizes) or draft
        # The margin of the clip last: it moves the error least.
        cells, bits = draft.cells, draft.bits
        return self._settled(
            _least(self._draft(cells, bits, wider, level) for wider in margins) or draft
        )

    def _built(
        self, cells: int, bits: int | None, margin: float, level: float
    ) -> tuple[dict[str, Any], Plannable] | None:
        request = self.request
        settings = self.kind.planned(
            request.vectors, self.scope, cells=cells, bits=bits, margin=margin
        )
        if settings is None:
            return None
        usual = {field.name: field.default for field in fields(self.kind)}
        settings = {name: value for name, value in settings.items() if value != usual[name]}
        if request.of_records:
            drawn = {"rate": request.rate, "records": request.records}
            settings = {"unit": str(request.unit), **drawn, **settings}
        # Each method has its own scale of noise; larger levels are always more of it.
        settings |= self.kind.noise_settings(level)
        if "delta" in settings_of(self.name):
            # A claim that is made for one delta has to share the run's with all rounds of a client.
            settings["delta"] = request.delta / request.paying_rounds
        try:
            sizes = {"dim": request.dim, "cohort": request.cohort}
            method = build_method(self.name, **sizes, settings=settings)
            _ = method.wire_bytes
        except ArgumentError:
            return None
        return (settings, method) if isinstance(method, Plannable) else None

    def _draft(self, cells: int, bits: int | None, margin: float, level: float) -> _Draft | None:
        """Build with as many of the cells as fit the bytes, whatever bits they take."""
        request = self.request
        for _ in range(_FITS):
            built = self._built(cells, bits, margin, level)
            if built is None:
                return None
            settings, method = built
            if method.wire_bytes <= request.message_bytes:
                error = method.forecast(request.vectors)
                # A sum is divided by its expected size, and a sketch spreads what that misses.
                rate, expected = request.drawn
                varying = (1 - rate) / (expected * request.vectors.mean_energy)
                error = replace(error, recovery=error.recovery + varying * (1 + error.recovery))
                return _Draft(cells, bits, margin, settings, method, error)
            # The bits may depend on the number of cells (a sum must fit), so this is repeated.
            cells = min(request.payload_bits // method.message_format.bits, cells - 1)
        return None

    def _settled(self, draft: _Draft) -> Option | None:
        """The draft with exactly the noise that its own claim needs."""
        cells = draft.cells
        # Other noise may take other bits, and so leave room for fewer cells, which take other
        # noise: until nothing changes.
        for _ in range(_FITS):
            level = self._calibrated(cells, draft.bits, draft.margin)
            settled = level and self._draft(cells, draft.bits, draft.margin, level)
            if not settled:
                return None
            if settled.cells == cells:
                # The promise is the method's own claim, whatever the search made of it.
                total = self.request.total(settled.method)
                if total is None or float(total) > self.request.target_epsilon:
                    return None
                return Option(settled.method, settled.settings, settled.error, total)
            cells = settled.cells
        return None

    def _calibrated(self, cells: int, bits: int | None, margin: float) -> float | None:
        """The least level of the noise, to 0.1%, that keeps the target; None if there is none."""
        request = self.request
        target, delta, rounds = request.target_epsilon, request.delta, request.paying_rounds

        def excess(log_level: float) -> float:
            """Logarithm of epsilon over the target; far above where nothing is proven."""
            built = self._built(cells, bits, margin, math.exp(log_level))
            total = built and request.total(built[1])
            value = _FAR if total is None else float(total)
            return math.log(min(max(value / target, 1 / _FAR), _FAR))

        # Start near the multiplier of Gaussian noise: Dwork and Roth's bound for a delta, and
        # without one the noise of a Laplace mechanism, which adds up with the rounds.
        guess = rounds / target
        if delta > 0:
            guess = math.sqrt(rounds * 2 * (math.log(1.25 / delta) + target)) / target
        low = high = math.log(min(max(guess, _LEAST), _MOST))
        # A bracket around the root, in logarithms: levels range over fifteen powers of ten.
        step = math.log(1.5)
        while excess(high) > 0:
            if high >= math.log(_MOST):
                return None
            low, high = high, min(math.log(_MOST), high + step)
            step *= 2
        while low == high or excess(low) <= 0:
            if low <= math.log(_LEAST):
                return _LEAST
            low, high = max(math.log(_LEAST), low - step), low
            step *= 2
        # Each look may take a Fourier transform, and 0.02% of the noise cannot be noticed.
        log_noise = brentq(excess, low, high, xtol=2e-4)
        while excess(log_noise) > 0:  # the root is found from either side
            log_noise += 2e-4
        return math.exp(log_noise)


def _least(
    drafts: Iterable[_Draft | None],
    key: Callable[[_Draft], int] = lambda draft: draft.method.wire_bytes,
) -> _Draft | None:
    """The draft with the least error; of those that are nearly as good, the smallest message."""
    # A method that keeps less than most of the mean is not compared by its error.
    usable = [draft for draft in drafts if draft is not None and draft.error.kept >= _MIN_KEPT]
    if not usable:
        return None
    limit = TIE * min(draft.error.total for draft in usable)
    close = [draft for draft in usable if draft.error.total <= limit]
    return min(close, key=lambda draft: (key(draft), draft.error.total))
