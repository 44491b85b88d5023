"""Shamir's secret sharing over a prime field.

A secret `s` of 32 bytes, as a number below `2**256`, is the value at 0 of a polynomial of degree
`threshold - 1` whose other coefficients are random; a share is its value at a member's point. As
many shares as the threshold give the polynomial, and fewer say nothing about `s` (Shamir 1979),
as far as the coefficients are random.

The prime is the smallest above `2**256`. Python's whole numbers do not take the same time for all
values: an attacker who can time these computations at a member is out of scope.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diffsketch.errors import check
from diffsketch.secure_sum.errors import RefusedError

__all__ = ["COEFFICIENT_BYTES", "PRIME", "SECRET_BYTES", "SHARE_BYTES", "Recovery", "split"]

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
COEFFICIENT_BYTES = 64
"""Random bytes for one coefficient: reduced modulo the prime, `2**-255` from uniform."""


def split(secret: bytes, points: Sequence[int], *, threshold: int, random: bytes) -> list[bytes]:
    """The shares of a secret at the points.

    Args:
        secret: 32 bytes.
        points: Distinct, at least `threshold` of them, none of them 0.
        threshold: Shares that are needed to have the secret back.
        random: `threshold - 1` times `COEFFICIENT_BYTES` secret random bytes.
    """
    check(len(secret) == SECRET_BYTES, "secret", "have 32 bytes", len(secret))
    wanted = (threshold - 1) * COEFFICIENT_BYTES
    check(len(random) == wanted, "random", f"have {wanted} bytes", len(random))
    _check_points(points, threshold)
    starts = range(0, wanted, COEFFICIENT_BYTES)
    higher = [int.from_bytes(random[at : at + COEFFICIENT_BYTES], "little") for at in starts]
    coefficients = [number % PRIME for number in reversed(higher)]
    coefficients.append(int.from_bytes(secret, "little"))
    shares = []
    for point in points:
        value = 0
        for coefficient in coefficients:
            value = (value * point + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES, "little"))
    return shares


def number_of(share: bytes) -> int:
    """A share as a number.

    Raises:
        RefusedError: It is not below the prime.
    """
    value = int.from_bytes(share, "little")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise RefusedError("a share is not a number of the field")
    return value


class Recovery:
    """Secrets from their shares at the same points: the weights are computed once.

    With more shares than the threshold, the others must lie on the same polynomial. That is
    checked at once for all of them: with the weights `v_i = 1 / prod_{j != i} (x_i - x_j)`,
    `sum_i v_i g(x_i) y_i = 0` for every polynomial `g` of degree below `points - threshold`,
    exactly if all `y_i` are values of one polynomial of degree below the threshold. Taking
    `g(x) = (x - r) ** (points - threshold - 1)` with `r` that nobody could foresee, wrong shares
    pass with a probability below `points / 2**256`.

    Guarantees (`tests/secure_sum/test_shamir.py`): the secret comes back from any shares, as many
    as the threshold or more; one wrong share beyond that is found.

    Args:
        points: Where the shares are.
        threshold: Of the sharing.
        unforeseen: The number `r`: from secret randomness of whoever recovers.
    """

    def __init__(self, points: Sequence[int], *, threshold: int, unforeseen: int) -> None:
        _check_points(points, threshold)
        self.points = tuple(points)
        ends: list[int] = []
        for point in self.points:
            product = 1
            for other in self.points:
                if other != point:
                    product = product * (point - other) % PRIME
            ends.append(pow(product, -1, PRIME))
        everything = 1
        for point in self.points:
            everything = everything * -point % PRIME
        # The value at 0 is sum_i y_i v_i prod_{j != i} (0 - x_j).
        self._at_zero = [
            end * everything * pow(-point, -1, PRIME) % PRIME
            for end, point in zip(ends, self.points, strict=True)
        ]
        degree = len(self.points) - threshold - 1
        self._checks = (
            [
                end * pow(point - unforeseen, degree, PRIME) % PRIME
                for end, point in zip(ends, self.points, strict=True)
            ]
            if degree >= 0
            else []
        )

    def secret(self, shares: Mapping[int, bytes]) -> bytes:
        """The secret of shares by their points.

        Raises:
            RefusedError: They are not shares of one secret of 32 bytes.
        """
        values = [number_of(shares[point]) for point in self.points]
        if sum(map(_product, self._checks, values)) % PRIME:  # stops at the shorter: none, or all
            raise RefusedError("shares do not belong to one secret: somebody sent a wrong one")
        found = sum(map(_product, self._at_zero, values)) % PRIME
        if found >> (8 * SECRET_BYTES):
            raise RefusedError("shares give no secret of 32 bytes: somebody sent a wrong one")
        return found.to_bytes(SECRET_BYTES, "little")


def _product(left: int, right: int) -> int:
    return left * right


def _check_points(points: Sequence[int], threshold: int) -> None:
    check(1 <= threshold <= len(points), "threshold", "be in 1..points", threshold)
    good = len(set(points)) == len(points) and all(0 < point < PRIME for point in points)
    check(good, "points", "be distinct and > 0", list(points))
