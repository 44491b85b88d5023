"""What members and the server check alike, so that neither accepts what the other refuses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from diffsketch.secure_sum.errors import RefusedError
from diffsketch.secure_sum.messages import Fate, PublicKeys, records
from diffsketch.secure_sum.params import Params
from diffsketch.secure_sum.primitives import KeyPair, verify

__all__ = [
    "check_distinct",
    "check_fates",
    "check_keys",
    "check_secret",
    "signed_fates",
    "signed_keys",
]


_ANY_KEY = KeyPair(bytes(range(32)))


def signed_keys(keys: PublicKeys, index: int, params: Params) -> bytes:
    """What a member signs when it advertises its keys."""
    told = keys.cipher + keys.mask + keys.commitment
    return b"keys" + params.context + index.to_bytes(8, "little") + told


def signed_fates(fates: Mapping[int, Fate], params: Params) -> bytes:
    """What a member signs when it was told who is in the sum and who is not."""
    return b"fate" + params.context + records({index: bytes([fates[index]]) for index in fates})


def check_keys(keys: PublicKeys, index: int, params: Params) -> None:
    """Refuse keys that are not signed by the member, where members sign."""
    if params.identities is not None:
        try:
            verify(params.identities[index], keys.signature, signed_keys(keys, index, params))
        except RefusedError as error:
            raise RefusedError(f"the keys of {index} are not signed by it") from error


def check_secret(keys: PublicKeys, index: int) -> None:
    """Refuse keys with which everybody knows what is agreed on, whatever the other key is."""
    for public in (keys.cipher, keys.mask):
        try:
            _ANY_KEY.agree(public)
        except RefusedError as error:
            raise RefusedError(f"the keys of {index} are refused: one has no secret") from error


def check_distinct(keys: Iterable[PublicKeys]) -> None:
    """Refuse keys of which two are the same: masks of different pairs must be unrelated."""
    found = [key for pair in keys for key in (pair.cipher, pair.mask)]
    if len(set(found)) != len(found):
        raise RefusedError("two public keys are the same")


def check_fates(values: Mapping[int, bytes], params: Params) -> dict[int, Fate]:
    """Who is in the sum, if these are enough.

    Raises:
        RefusedError: Neither present nor dropped; or too few are present for the threshold, or for
            the noise that was promised.
    """
    known = {bytes([fate]): fate for fate in Fate}
    if not known.keys() >= set(values.values()):
        raise RefusedError("a member is neither present nor dropped")
    fates = {index: known[value] for index, value in values.items()}
    present = sum(fate is Fate.PRESENT for fate in fates.values())
    if present < params.min_present:
        raise RefusedError(
            f"{present} members are in the sum, and {params.min_present} are needed: it stays "
            "masked"
        )
    return fates
