"""The smallest table that compression may come down to at no cost, at a fixed proven epsilon.

The noise that a guarantee takes is, in every estimated coordinate, the same for a table of any
size: its part of the error is `dim (sigma / n)^2 / ||mean||^2`, and collisions add `dim / cells`.
So compression is free as long as the second is small beside the first: from some
`n^2 ||mean||^2 / sigma^2` cells on, however long the vectors are. With `sigma` of a target epsilon
that is `n^2 epsilon^2` but for logarithms and constants, which Chen et al. (2022, "The Fundamental
Price of Secure Aggregation in Differentially Private Federated Learning", arXiv 2203.03761) show to
be necessary as well (in bits). Here both parts come from the methods' own claims and forecasts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from diffsketch.errors import ArgumentError, check
from diffsketch.planning import Option, PlanRequest
from diffsketch.planning.search import option_at
from diffsketch.privacy.claim import Trust

ALLOWANCE = 0.1
"""A table costs nothing if its error is at most this share above that of the dense mean."""

_CELL_BYTES, _MOST_BYTES = 16, 1 << 40  # of a request: any message fits


@dataclass(frozen=True)
class FreeSize:
    """The smallest table that costs nothing, beside the dense mean with the same epsilon.

    Attributes:
        request: What was asked, with room for any message.
        dense: The vectors themselves under the same noise, as in DP-FedAvg.
        smallest: The smallest table that costs nothing; `dense` if every table costs something.
        allowance: The share of the dense mean's error that counts as nothing.
    """

    request: PlanRequest
    dense: Option
    smallest: Option
    allowance: float

    @property
    def cells(self) -> int:
        """Cells of the smallest message that costs nothing: `dim` if no table does."""
        return self.smallest.method.message_format.cell_count

    @property
    def theory(self) -> float:
        """The theory's cells, without constants and logarithms: `n^2 epsilon^2 / rounds`.

        A run's epsilon is some `sqrt(rounds)` times that of each round that a client pays for. It
        is a theory of secure sums and trusted servers, and not of local trust.
        """
        request = self.request
        return (request.cohort * request.target_epsilon) ** 2 / request.paying_rounds

    def excess(self, option: Option) -> float:
        """Compute the share by which an option's error is above that of the dense mean."""
        return option.error.total / self.dense.error.total - 1


def free_size(request: PlanRequest, *, allowance: float = ALLOWANCE) -> FreeSize:
    """Find the smallest table whose error is at most `allowance` above that of the dense mean.

    Both have the request's epsilon, proven for the trust that it names: Skellam noise under a
    secure sum, discrete Gaussian noise elsewhere, on one row. `request.message_bytes` does not
    count.

    Guarantees (`paper/tests/test_free_size.py`): the table is within the allowance, and one of 2%
    fewer cells is not; it is the same for all vectors that are far longer; simulated errors agree.

    Raises:
        ArgumentError: Nothing is proven for the unit, the delta or the trust.

    >>> wanted = {"cohort": 1000, "rounds": 1, "target_epsilon": 1.0, "message_bytes": 6}
    >>> [free_size(PlanRequest(dim=dim, **wanted)).cells for dim in (10**4, 10**7)]
    [10000, 178083]
    >>> of_docs = {"rounds": 20, "target_epsilon": 8.0, "message_bytes": 6, "dim": 10**7}
    >>> [
    ...     free_size(PlanRequest(cohort=cohort, spread=spread, **of_docs)).cells
    ...     for cohort, spread in ((1000, 8.0), (1000, 0.0), (100, 8.0))
    ... ]
    [39947, 336281, 440]
    """
    check(0 < allowance < 10, "allowance", "be > 0 and < 10", allowance)
    law = "skellam" if request.trust is Trust.DISTRIBUTED else "gaussian"
    roomy = replace(request, message_bytes=min(_CELL_BYTES * request.dim + 64, _MOST_BYTES))
    dense = option_at(roomy, law, request.dim)
    if dense is None:
        raise ArgumentError(
            f"no dense mean has a proven epsilon of {request.target_epsilon:g} at delta "
            f"{request.delta:g} for the {request.unit} unit and {request.trust} trust"
        )

    limit, costly, cells, smallest = (1 + allowance) * dense.error.total, 0, request.dim, dense
    while cells - costly > 1:  # collisions fall with the cells
        middle = (costly + cells) // 2
        option = option_at(roomy, f"sketch-{law}", middle)
        if option is not None and option.error.total <= limit:
            cells, smallest = middle, option
        else:
            costly = middle
    return FreeSize(roomy, dense, smallest, allowance)
