"""The best settings of each method of the registry: those with the least predicted error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from scipy.optimize import brentq

from diffsketch.errors import ArgumentError
from diffsketch.methods import METHODS, Method, build_method, settings_of
from diffsketch.methods.forecast import Plannable, RelativeError
from diffsketch.planning.request import PlanRequest
from diffsketch.privacy.claim import Epsilon, Scope, Trust

__all__ = ["TIE", "TRUSTS", "Option", "search"]

TRUSTS = (Trust.LOCAL, Trust.DISTRIBUTED, Trust.CENTRAL)
"""The less one has to trust, the earlier."""

TIE = 1.01  # errors closer than this count as equal, and then bytes decide
_MIN_KEPT = 0.9  # of the mean: to clip it all away would look best where noise is larger still
_STEP = math.sqrt(2)  # between sizes of tables
_FEWEST_CELLS = 16  # of a table smaller than the budget
_FEWEST_BITS = 2
_LEAST, _MOST = 1e-3, 1e12  # levels of the noise
_FAR = 1e9  # stands for epsilons that are not proven
_FITS = 8  # attempts to fit a message whose bits depend on its size


@dataclass(frozen=True)
class Option:
    """A method with all its settings.

    Attributes:
        method: As the registry builds it.
        settings: What it is built from; `diffsketch run` and Flower's `Plan` take the same.
        error: Predicted relative error of one round.
        total: Epsilon of the whole run, from the method's own claim.
    """

    method: Method
    settings: dict[str, Any]
    error: RelativeError
    total: Epsilon

    @property
    def trust(self) -> Trust:
        """Whom this method needs to be trusted."""
        return self.total.scope.trust

    @property
    def shape(self) -> str:
        """Shape of a message, as people write it."""
        return " x ".join(str(size) for size in self.method.message_format.shape)

    @property
    def scaling(self) -> int:
        """The noise's part of the error falls with this power of the number of clients."""
        return 1 if self.trust is Trust.LOCAL else 2


def search(request: PlanRequest) -> Iterator[Option]:
    """The best of every method, at every trust that there is, that keeps the target."""
    for name, kind in METHODS.items():
        if issubclass(kind, Plannable):
            for trust in TRUSTS[: TRUSTS.index(request.trust) + 1]:
                if request.sampling == "poisson" and trust is not Trust.CENTRAL:
                    continue
                scope = Scope(request.unit, request.relation, trust)
                option = _Search(request, name, kind, scope).best()
                if option is not None:
                    yield option


@dataclass(frozen=True)
class _Draft:
    """What to build, all but the noise, with its error at about the right noise."""

    cells: int
    bits: int | None
    margin: float
    error: RelativeError
    width: int  # bits that a cell takes
    wire_bytes: int


@dataclass(frozen=True)
class _Search:
    """The settings of one method at one trust, one after another: bits, size, clip, noise."""

    request: PlanRequest
    name: str
    kind: type[Plannable]
    scope: Scope

    def best(self) -> Option | None:
        """The settings with the least error, or nearly so; None if none keep target and bytes."""
        if self.level is None:
            return None
        margin, most = self.kind.margins[0], self._most_cells
        start = self._fitted(most, None, margin)
        finest = self.request.payload_bits if start is None else start[1].message_format.bits
        every = [None, *range(min(finest, 62), _FEWEST_BITS - 1, -1)]
        drafts = [self._draft(most, bits, margin) for bits in every]
        draft = _least(drafts, key=lambda draft: draft.width)
        if draft is None:
            return None
        sizes = _shrinking(draft.cells)
        draft = _least(self._draft(cells, draft.bits, margin) for cells in sizes) or draft
        draft = _least(self._draft(draft.cells, draft.bits, m) for m in self.kind.margins) or draft
        return self._settled(draft)

    @property
    def _most_cells(self) -> int:
        return min(self.request.dim, self.request.payload_bits // _FEWEST_BITS)

    @cached_property
    def level(self) -> float | None:
        """Of the noise, near enough to compare settings: it hardly depends on them."""
        margin = self.kind.margins[0]
        return self._calibrated(lambda level: self._built(self.request.dim, None, margin, level))

    def _built(
        self, cells: int, bits: int | None, margin: float, level: float
    ) -> tuple[dict[str, Any], Plannable] | None:
        request = self.request
        found = self.kind.planned(
            request.vectors, self.scope, cells=cells, bits=bits, margin=margin
        )
        if found is None:
            return None
        usual = {field.name: field.default for field in fields(self.kind)}
        found = {name: value for name, value in found.items() if value != usual[name]}
        found |= self.kind.noise_settings(level)
        if "delta" in settings_of(self.name):
            # A claim that is made for one delta has to share the run's with all rounds of a client.
            found["delta"] = request.delta / request.paying_rounds
        try:
            method = build_method(self.name, dim=request.dim, cohort=request.cohort, settings=found)
            _ = method.wire_bytes
        except ArgumentError:
            return None
        return (found, method) if isinstance(method, Plannable) else None

    def _fitted(
        self, cells: int, bits: int | None, margin: float, level: float | None = None
    ) -> tuple[int, Plannable, dict[str, Any]] | None:
        """With as many of the cells as fit the bytes, whatever bits they take."""
        for _ in range(_FITS):
            built = self._built(cells, bits, margin, level or self.level or math.inf)
            if built is None:
                return None
            settings, method = built
            if method.wire_bytes <= self.request.message_bytes:
                return cells, method, settings
            fewer = self.request.payload_bits // method.message_format.bits
            cells = min(fewer, cells - 1)
        return None

    def _draft(self, cells: int, bits: int | None, margin: float) -> _Draft | None:
        fitted = self._fitted(cells, bits, margin)
        if fitted is None:
            return None
        cells, method, _ = fitted
        error = self._error(method)
        width = method.message_format.bits
        return _Draft(cells, bits, margin, error, width, method.wire_bytes)

    def _error(self, method: Plannable) -> RelativeError:
        """With what it adds that a Poisson sample is divided by its expected size."""
        error, request = method.forecast(self.request.vectors), self.request
        if request.sampler is None:
            return error
        varying = (1 - request.sampler.rate) / request.cohort
        return replace(error, recovery=error.recovery + varying)

    def _settled(self, draft: _Draft) -> Option | None:
        """The draft with exactly the noise that its own claim needs."""
        cells = draft.cells
        for _ in range(_FITS):
            level = self._calibrated(
                lambda level: self._built(cells, draft.bits, draft.margin, level)  # noqa: B023
            )
            if level is None:
                return None
            fitted = self._fitted(cells, draft.bits, draft.margin, level)
            if fitted is None:
                return None
            if fitted[0] == cells:
                _, method, settings = fitted
                total = self.request.total(method)
                if total is None or float(total) > self.request.target_epsilon:
                    return None
                return Option(method, settings, self._error(method), total)
            cells = fitted[0]
        return None

    def _calibrated(
        self, built: Callable[[float], tuple[dict[str, Any], Plannable] | None]
    ) -> float | None:
        """The least level, to 0.1%, that keeps the target; None if there is none."""
        target = self.request.target_epsilon

        def excess(log_level: float) -> float:
            """Logarithm of epsilon over the target; far above where nothing is proven."""
            found = built(math.exp(log_level))
            total = None if found is None else self.request.total(found[1])
            value = _FAR if total is None else float(total)
            return math.log(min(max(value / target, 1 / _FAR), _FAR))

        low = high = math.log(min(max(self._guess, _LEAST), _MOST))
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
        found = brentq(excess, low, high, xtol=2e-4)
        while excess(found) > 0:  # the root is found from either side
            found += 2e-4
        return math.exp(found)

    @property
    def _guess(self) -> float:
        """Near the multiplier of Gaussian noise, where the search starts."""
        rounds, target, delta = (
            self.request.paying_rounds, self.request.target_epsilon, self.request.delta
        )  # fmt: skip
        if delta == 0:
            return rounds / target
        return math.sqrt(rounds * 2 * (math.log(1.25 / delta) + target)) / target


def _shrinking(cells: int) -> Iterator[int]:
    while True:
        yield cells
        cells = int(cells / _STEP)
        if cells < _FEWEST_CELLS:
            return


def _least(
    drafts: Iterable[_Draft | None],
    key: Callable[[_Draft], int] = lambda draft: draft.wire_bytes,
) -> _Draft | None:
    """The draft with the least error; of those that are nearly as good, the smallest message."""
    good = [draft for draft in drafts if draft is not None and draft.error.kept >= _MIN_KEPT]
    if not good:
        return None
    limit = TIE * min(draft.error.total for draft in good)
    close = [draft for draft in good if draft.error.total <= limit]
    return min(close, key=lambda draft: (key(draft), draft.error.total))
