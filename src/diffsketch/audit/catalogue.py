"""The cases by name, and which of them a plain `diffsketch audit` runs."""

from __future__ import annotations

from collections.abc import Callable

from diffsketch.audit import bare, proven
from diffsketch.audit.cases import Case
from diffsketch.audit.planted import PLANTS
from diffsketch.errors import ArgumentError

__all__ = ["CASES", "DEFAULT", "QUICK", "case_of"]

CASES: dict[str, Callable[[], Case]] = {
    "bare-known": bare.bare_known,
    "bare-unknown": bare.bare_unknown,
    "bare-unknown-10000x2": lambda: bare.bare_unknown(10_000, 2, name="bare-unknown-10000x2"),
    "bare-unknown-10000x4": lambda: bare.bare_unknown(10_000, 4, name="bare-unknown-10000x4"),
    "bare-secret": bare.bare_secret,
    "bare-parity": bare.bare_parity,
    "bare-example": bare.bare_example,
    "bare-client": bare.bare_client,
    "gaussian-coordinate": proven.gaussian_coordinate,
    "gaussian-example": proven.gaussian_example,
    "gaussian-client": proven.gaussian_client,
    "gaussian-central": proven.gaussian_central,
    "gaussian-rounds": proven.gaussian_rounds,
    "gaussian-workers": proven.gaussian_workers,
    "laplace-coordinate": proven.laplace_coordinate,
    "padded-coordinate": proven.padded_coordinate,
    "privunit-client": proven.privunit_client,
    "skellam-client": proven.skellam_client,
    **{f"planted-{name}": each.case for name, each in PLANTS.items()},
}
"""Every case, in the order in which they are reported."""

# Vectors of 10,000 numbers take too long to be drawn 10^5 times over.
DEFAULT = tuple(name for name in CASES if "10000" not in name)
QUICK = (
    "bare-known", "bare-parity", "gaussian-client", "gaussian-rounds", "gaussian-workers",
    "laplace-coordinate", *(f"planted-{name}" for name in PLANTS),
)  # fmt: skip


def case_of(name: str) -> Case:
    """The case of this name.

    Raises:
        ArgumentError: There is none.
    """
    if name not in CASES:
        raise ArgumentError(f"case must be one of {', '.join(CASES)}, got case={name!r}")
    return CASES[name]()
