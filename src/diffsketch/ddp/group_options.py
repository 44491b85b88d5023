"""Which options of a `GroupMean` go together, and which all ranks must share."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError, check
from diffsketch.methods.base import Method
from diffsketch.methods.release import check_release
from diffsketch.privacy.accounting.accountant import Budget
from diffsketch.privacy.claim import Claim, NoClaim, ProvenClaim, Trust
from diffsketch.sketch.hashing import SketchKey

__all__ = ["Scaler", "Scales", "check_claim", "check_types", "check_vector"]


class Scaler(Protocol):
    """What is needed of a `torch.amp.GradScaler`."""

    def get_scale(self) -> float:
        """What losses are multiplied by."""


def check_types(method: Method, key: SketchKey, *, world: int) -> None:
    """Raise unless these are what they should be, for so many ranks.

    Raises:
        ArgumentError: One is of another type, or the method is for another cohort.
    """
    expected: tuple[tuple[str, object, type], ...] = (
        ("method", method, Method),
        ("key", key, SketchKey),
    )
    for name, value, kind in expected:
        if not isinstance(value, kind):
            raise ArgumentError(f"{name} must be a {kind.__name__}, got {type(value).__name__}")
    cohort = method.most_messages
    good = cohort is None or cohort == world
    check(good, "cohort", f"be {world}, the number of ranks", cohort)
    if method.round_clip is not None:
        raise ArgumentError(
            f"clip_quantile must be None in a process group, got method={method.name!r} with a "
            "clip that moves: simulations and Flower have it"
        )


def check_claim(
    claim: Claim,
    method: Method,
    *,
    budget: Budget | None,
    trusted_group: bool,
) -> None:
    """Raise unless a group can hold what a round claims.

    Raises:
        ArgumentError: It cannot, or a budget is given where nothing is proven.
    """
    check_release(method, claim)
    trust = claim.scope.trust
    if not (isinstance(claim, NoClaim) or trust is Trust.LOCAL or trusted_group):
        raise ArgumentError(
            f"trusted_group must be True for method={method.name!r}: its claim is under "
            f"{trust} trust, and an all-reduce shows messages and sums to all processes. With "
            "it, the claim is about those who see only what comes of the means"
        )
    if budget is not None and not isinstance(claim, ProvenClaim):
        raise ArgumentError(
            "budget must not be given where nothing is proven: the epsilon of "
            f"method={method.name!r} is {claim.basis} here ({claim})"
        )


class Scales:
    """The scales of a scaler, round by round.

    Where the claim is proven, a gradient that is not finite counts as zeros, and no mean is ever
    NaN. A `GradScaler` would take that for success and raise its scale without end: then all
    gradients overflow, and noise is all that is left. So there the scale must stay what it is.

    Guarantees (`tests/ddp/test_group_options.py`): a scale that follows overflows is refused
    where the claim is proven, and nowhere else.
    """

    def __init__(self, scaler: Scaler | None) -> None:
        self.scaler, self._first = scaler, 1.0 if scaler is None else None

    def check(self, claim: Claim) -> None:
        """Raise if the scaler is made to follow overflows, which it could not see.

        Raises:
            ArgumentError: It is an enabled `GradScaler`, or the like, and the claim proven.
        """
        enabled = getattr(self.scaler, "is_enabled", None)
        if isinstance(claim, ProvenClaim) and callable(enabled) and enabled():
            raise ArgumentError(
                "scaler must not change its scale where the claim is proven: there a gradient that "
                "overflows counts as zeros, so that the scaler never learns of it, got an enabled "
                f"{type(self.scaler).__name__}. Use bfloat16, which needs no scaler, or an object "
                "whose get_scale() always returns the factor by which you multiply the loss"
            )

    def next(self, claim: Claim) -> float:
        """Of a round with this claim.

        Raises:
            ArgumentError: The claim is proven, and it is another than before.
        """
        scale = 1.0 if self.scaler is None else float(self.scaler.get_scale())
        self._first = scale if self._first is None else self._first
        if isinstance(claim, ProvenClaim) and scale != self._first:
            raise ArgumentError(
                "scaler must keep its scale where the claim is proven, got "
                f"{scale:g} after {self._first:g}: an overflow would never be seen"
            )
        return scale


def check_vector(vector: Tensor, dim: int) -> None:
    """Raise unless this is a vector of so many coordinates.

    Raises:
        ArgumentError: It is of another type.
        MismatchError: It has another length.
    """
    if not isinstance(vector, Tensor) or vector.dtype not in (torch.float32, torch.float64):
        kind = vector.dtype if isinstance(vector, Tensor) else type(vector).__name__
        raise ArgumentError(f"vector must be a float32 or float64 tensor, got {kind}")
    if tuple(vector.shape) != (dim,):
        raise MismatchError(f"vector must have the shape ({dim},), got {tuple(vector.shape)}")
