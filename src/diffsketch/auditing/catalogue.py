"""The cases by name, and which of them `diffsketch audit` runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from diffsketch.auditing import bare
from diffsketch.auditing.cases import Case
from diffsketch.auditing.exploits import EXPLOITS
from diffsketch.auditing.planted import PLANTS
from diffsketch.auditing.releases import RELEASES, Release
from diffsketch.errors import ArgumentError

__all__ = ["INVERSION", "Selection", "case_of", "cases", "select"]

INVERSION = "inversion"
_Maker = Callable[[], Case]


@dataclass(frozen=True)
class Selection:
    """Which cases to run, by name, and how thoroughly."""

    cases: Mapping[str, _Maker]
    inversion: bool = False
    is_quick: bool = False


@cache
def cases() -> Mapping[str, _Maker]:
    """Every case, in the order in which they are reported; `case+error` has a planted error."""
    found: dict[str, _Maker] = {
        "bare-known": bare.bare_known,
        "bare-unknown": bare.bare_unknown,
        "bare-unknown-10000x2": lambda: bare.bare_unknown(10_000, 2, name="bare-unknown-10000x2"),
        "bare-unknown-10000x4": lambda: bare.bare_unknown(10_000, 4, name="bare-unknown-10000x4"),
        "bare-secret": bare.bare_secret,
        "bare-parity": bare.bare_parity,
        "bare-example": bare.bare_example,
        "bare-client": bare.bare_client,
        **EXPLOITS,
    }
    for make in RELEASES.values():
        found |= _planted(make(), PLANTS)
    return found


def case_of(name: str) -> Case:
    """The case of this name.

    Raises:
        ArgumentError: There is none.
    """
    if name not in cases():
        raise ArgumentError(f"case must be one of {', '.join(cases())}, got case={name!r}")
    return cases()[name]()


def select(
    *,
    names: Sequence[str] = (),
    plants: Sequence[str] = (),
    release: Release | None = None,
    is_quick: bool = False,
) -> Selection:
    """From names to what is run: all but what takes too long, or what was named.

    Args:
        names: Of cases; `inversion` is one, too.
        plants: Names of errors; each is put into every case that it applies to, beside that case.
        release: Of a user's own method, instead of the cases.
        is_quick: No planted errors by default, but those of attacks, and half of the trials.

    Raises:
        ArgumentError: There is no such name.
    """
    known = cases()
    errors = dict.fromkeys(name.partition("+")[2] for name in known if "+" in name)
    for error in plants:
        if error not in errors:
            raise ArgumentError(f"plant must be one of {', '.join(errors)}, got plant={error!r}")
    if release is not None:
        return Selection(_planted(release, plants), is_quick=is_quick)
    for name in names:
        if name not in known and name != INVERSION:
            options = ", ".join([*known, INVERSION])
            raise ArgumentError(f"case must be one of {options}, got case={name!r}")
    if names or plants:
        chosen = set(names)
        for name in known:
            twin, _, error = name.partition("+")
            if error and error in plants and (not names or twin in names):
                chosen |= {twin, name}
    elif is_quick:
        chosen = {"bare-known", "bare-parity", *EXPLOITS, *RELEASES, INVERSION}
    else:  # vectors of 10,000 numbers take too long to be drawn 10^5 times over
        chosen = {name for name in known if "10000" not in name} | {INVERSION}
    kept = {name: make for name, make in known.items() if name in chosen}
    return Selection(kept, inversion=INVERSION in chosen, is_quick=is_quick)


def _planted(release: Release, errors: Sequence[str] | Mapping[str, object]) -> dict[str, _Maker]:
    """The case of a release, and those of it with errors, where they apply."""
    found: dict[str, _Maker] = {release.name: release.case}
    for error in errors:
        planted = PLANTS[error].planted(release, error) if error in PLANTS else None
        if planted is not None:
            found[planted.name] = planted.case
    return found
